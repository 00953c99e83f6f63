#include "train/interchange/import.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text_file.hpp"
#include "comm/agree.hpp"
#include "train/interchange/folder_keys.hpp"

namespace maestro::train {

namespace {

/// The text between the quotes of a TOML string.
std::string in_toml(const std::string& text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '"' || c == '\\') escaped += '\\';
        escaped += c;
    }
    return escaped;
}

std::string name_of(const std::string& folder) {
    const auto path = std::filesystem::path(folder).lexically_normal();
    return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

constexpr const char* kRun = R"(
[run]
output = "runs/{name}"
precision = "bf16"               # "fp32" needs about twice the memory

[data]                           # made by scripts/data/conversations.py
train = "data/{name}-train.h5"
validation = "data/{name}-validation.h5"
global_batch = 16                # samples of a step, over all replicas
sequence_length = 4096           # the longest sample, in tokens{pictures}

[train]
steps = 1000
recompute = "cheap"              # "none": faster, more memory; "layer": slower, least memory

[optimizer]
learning_rate = 1e-5
warmup_steps = 30
decay_steps = 1000
weight_decay = 0.0
clip = 1.0

[checkpoint]
every = 100
keep = 2

[schedule]
policy = "wavefront"
)";

constexpr const char* kModels = R"(
{table:<32} # sizes come from the folder of the section's weights
kind = "{kind}"
)";

constexpr const char* kVision = R"(
[[section]]
name = "vision"
model = "vision"
weights = "{folder}"
mode = "train"                   # "forward": frozen
micro_batch = 1                  # samples

[section.layout]                 # ranks: dp x tp x cp
dp = 1                           # replicas
tp = 1                           # ranks that split heads ({heads}) and channels
cp = 1                           # ranks that split pictures
)";

constexpr const char* kLanguage = R"(
[[section]]
name = "language"
model = "language"
weights = "{folder}"
micro_batch = 1                  # samples
# freeze = ["embedding"]         # parts of the model that are not trained, also "layers.0-3"

[section.layout]                 # ranks: dp x tp x cp x pp
dp = 1                           # replicas
tp = 1                           # ranks that split heads ({heads}, {kv_heads} of keys and values), channels and vocabulary
cp = 1                           # ranks that split sequences
pp = 1                           # pipeline stages
)";

constexpr const char* kExperts =
    "ep = 1                           # ranks that share the {experts} experts of a layer, of one replica or "
    "of several\n";

constexpr const char* kEdge = R"(
[[edge]]                         # embeddings of pictures
from = "vision"
to = "language"
)";

/// `vision`: of a folder that has a vision model.
std::string deck_of(const std::string& folder, const families::ModelKeys& language,
                    const families::ModelKeys* vision) {
    const std::string name = in_toml(name_of(folder));
    const auto sizes = [](const families::ModelKeys& keys) {
        std::string text = fmt::format("{} layers of width {}, {} heads", keys.at("layers"), keys.at("width"),
                                       keys.at("heads"));
        if (keys.contains("experts"))
            text += fmt::format(", {} of {} experts for a token", keys.at("experts_per_token"),
                                keys.at("experts"));
        return text;
    };
    std::string deck =
        fmt::format("# Fine-tunes {}: family {}, {}, vocabulary {}{}.\n# docs/deck.md describes every key.\n",
                    in_toml(folder), language.at("family"), sizes(language), language.at("vocabulary"),
                    vision ? "; a tower of " + sizes(*vision) : "");
    deck += fmt::format(kRun, fmt::arg("name", name),
                        fmt::arg("pictures", vision ? ", those of pictures included" : ""));
    if (vision) deck += fmt::format(kModels, fmt::arg("table", "[model.vision]"), fmt::arg("kind", "vision"));
    deck += fmt::format(kModels, fmt::arg("table", "[model.language]"), fmt::arg("kind", "language"));
    if (vision)
        deck +=
            fmt::format(kVision, fmt::arg("folder", in_toml(folder)), fmt::arg("heads", vision->at("heads")));
    deck +=
        fmt::format(kLanguage, fmt::arg("folder", in_toml(folder)), fmt::arg("heads", language.at("heads")),
                    fmt::arg("kv_heads", language.at("kv_heads")));
    if (language.contains("experts"))
        deck += fmt::format(kExperts, fmt::arg("experts", language.at("experts")));
    if (vision) deck += kEdge;
    return deck;
}

/// Creates the file and its folder; a deck that is there already may have been edited.
void write_deck(const std::string& path, const std::string& deck) {
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown))
        throw Error(ExitCode::cannot_create,
                    path + ": exists already; remove it or give another path for the deck", Scope::all_ranks);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), unknown);
    write_text_file(path, deck);
    log::info("{}: a deck to begin with; its first lines name the sample files that it needs", path);
}

}  // namespace

void run_import(const comm::Communicator& world, const config::CommandLine& line) {
    const auto language = folder_keys(world, line.folder, "language"),
               vision = folder_keys(world, line.folder, "vision");
    if (!language)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: has no config.json; give the folder of a model", line.folder),
                    Scope::all_ranks);
    const std::string deck =
        deck_of(line.folder, *language, vision->at("kind") == "vision" ? &*vision : nullptr);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        if (line.out.empty())
            std::fputs(deck.c_str(), stdout);
        else
            write_deck(line.out, deck);
    });
}

}  // namespace maestro::train
