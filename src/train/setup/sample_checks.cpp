#include "train/setup/sample_checks.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>

#include "comm/agree.hpp"
#include "safetensors/input_file.hpp"
#include "tokens/vocabulary.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;

/// The text of a file of a model's folder; nothing where there is none. Error(bad_data, io_error).
std::optional<std::string> text_of(const fs::path& path, Pulse& pulse) {
    constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
    if (!safetensors::has_file(path)) return {};
    const safetensors::InputFile file(path);
    if (file.size() > kMostBytes)
        throw Error(ExitCode::bad_data, fmt::format("{}: it has {} bytes, and tokenizers at most {}",
                                                    path.string(), file.size(), kMostBytes));
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0, "the tokenizer", pulse);
    return text;
}

/// The tokenizer of the folder; nothing where it has no tokenizer.json.
std::optional<tokens::Vocabulary> vocabulary_of(const fs::path& folder, Pulse& pulse) {
    const fs::path path = folder / "tokenizer.json", config = folder / "tokenizer_config.json";
    const auto text = text_of(path, pulse);
    if (!text) return {};
    auto vocabulary = tokens::Vocabulary::from_json(*text, path.string());
    if (const auto added = text_of(config, pulse)) vocabulary.add_config(*added, config.string());
    return vocabulary;
}

/// Without communication. Returns why the folder and the samples cannot be compared, if they cannot.
std::string compare(const data::SampleFile& samples, const std::string& folder, Pulse& pulse) {
    constexpr std::int32_t kBytes = 260;  // the vocabulary of the tokenizer "bytes" (docs/file_formats.md)
    const std::string path = samples.path().string();
    const bool of_bytes = samples.tokenizer() == "bytes";
    if (of_bytes && samples.vocabulary() != kBytes)  // of a program that wrote ids of its choice
        return path + " names no tokenizer that has its vocabulary";
    const auto of_folder = vocabulary_of(folder, pulse);
    if (!of_folder) return folder + " has no tokenizer.json";
    std::string difference;
    if (of_bytes)
        difference = fmt::format("its tokens are bytes, and the folder has a tokenizer of {} tokens",
                                 of_folder->size());
    else
        difference = tokens::Vocabulary::from_json(samples.tokenizer_json(pulse), path + ": tokenizer_json")
                         .difference(*of_folder, "the samples", "the folder");
    if (difference.empty()) return {};
    throw Error(ExitCode::bad_data,
                fmt::format("{}: made with another tokenizer than that of {}: {}. The model would read other "
                            "text than was meant; make the samples again with this folder "
                            "(scripts/data/conversations.py {} ...)",
                            path, folder, difference, folder));
}

/// The same for the folders of all language sections. Returns what the log should say.
std::vector<std::string> compare_with_folders(const RunContext& context, const data::SampleFile& samples) {
    std::vector<std::string> notices;
    std::set<std::string> compared;
    for (std::size_t s = 0; s < context.deck.sections.size(); ++s) {
        const config::Section& section = context.deck.sections[s];
        const bool reads_text = !model::Units(context.scenario.models[s]).encodes();
        if (!reads_text || !section.from_folder || !compared.insert(section.weights).second) continue;
        context.pulse.doing("the tokenizer of " + section.weights);
        if (const std::string why = compare(samples, section.weights, context.pulse); !why.empty())
            notices.push_back(
                fmt::format("{}: it could not be checked that {} was made with the tokenizer of {}", why,
                            samples.path().string(), section.weights));
    }
    return notices;
}

}  // namespace

std::vector<std::string> check_tokenizer(const RunContext& context, const data::SampleFile& samples) {
    std::vector<std::string> notices;
    comm::agree(context.world, [&] {
        if (context.world.rank() == 0) notices = compare_with_folders(context, samples);
    });
    return notices;
}

void check_validation(const RunContext& context) {
    comm::agree(context.world, [&] {
        if (context.world.rank() != 0 || context.deck.data.validation.empty()) return;
        std::optional<data::SampleFile> samples;
        try {
            samples.emplace(context.deck.data.validation, context.pulse);
        } catch (const Error&) {
            return;  // evaluate says so
        }
        workload::check_targets(*samples);
        compare_with_folders(context, *samples);
    });
}

}  // namespace maestro::train
