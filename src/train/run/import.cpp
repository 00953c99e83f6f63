#include "train/run/import.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text_file.hpp"
#include "comm/agree.hpp"
#include "train/run/folder_keys.hpp"

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

std::string deck_of(const std::string& folder, const families::ModelKeys& keys) {
    const auto absolute = std::filesystem::path(folder).lexically_normal();
    const std::string name =
        absolute.has_filename() ? absolute.filename().string() : absolute.parent_path().filename().string();
    return fmt::format(
        R"(# Fine-tunes {folder}: family {family}, {layers} layers of width {width}, {heads} heads, vocabulary {vocabulary}.
# docs/deck.md describes every key.

[run]
output = "runs/{name}"
precision = "bf16"               # "fp32" needs about twice the memory

[data]                           # made by scripts/data/conversations.py
train = "data/{name}-train.h5"
validation = "data/{name}-validation.h5"
global_batch = 32                # samples of a step, over all replicas
sequence_length = 4096           # the longest sample, in tokens

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

[model.language]                 # sizes come from the folder of the section's weights

[[section]]
name = "language"
model = "language"
weights = "{folder}"
micro_batch = 1                  # samples

[section.layout]                 # ranks: dp x tp x cp x pp
dp = 1                           # replicas
tp = 1                           # ranks that split heads ({heads}, {kv_heads} of keys and values), channels and vocabulary
cp = 1                           # ranks that split sequences
pp = 1                           # pipeline stages
)",
        fmt::arg("folder", in_toml(folder)), fmt::arg("name", in_toml(name)),
        fmt::arg("family", keys.at("family")), fmt::arg("layers", keys.at("layers")),
        fmt::arg("width", keys.at("width")), fmt::arg("heads", keys.at("heads")),
        fmt::arg("kv_heads", keys.at("kv_heads")), fmt::arg("vocabulary", keys.at("vocabulary")));
}

}  // namespace

void run_import(const comm::Communicator& world, const config::CommandLine& line) {
    const auto keys = folder_keys(world, line.folder);
    if (!keys)
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: has no config.json; give the folder of a model", line.folder),
                    Scope::all_ranks);
    const std::string deck = deck_of(line.folder, *keys);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        if (line.out.empty())
            std::fputs(deck.c_str(), stdout);
        else
            write_text_file(line.out, deck);
    });
}

}  // namespace maestro::train
