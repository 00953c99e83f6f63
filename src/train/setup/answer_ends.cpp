#include "train/setup/answer_ends.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "families/json_text.hpp"
#include "safetensors/input_file.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

/// Empty where the folder has no such file.
std::string text_of(const fs::path& folder, const char* name, Pulse& pulse) {
    const fs::path path = folder / name;
    return safetensors::has_file(path) ? safetensors::read_small_text(path, "model's configuration", pulse)
                                       : std::string();
}

/// Adds the ends of all answers of a sample.
void add_ends(const data::Sample& sample, const Markers& markers, const tokens::Detokenizer& detokenizer,
              std::set<std::int32_t>& ends) {
    const std::size_t size = sample.tokens.size();
    for (std::size_t begin = 0, end = 0; begin < size; begin = end + 1) {
        for (end = begin; end < size && sample.weights[end] > 0;) ++end;
        if (end == begin || (end < size && markers.kind_of(sample.tokens[end]))) continue;
        if (const auto last = end_of(std::span(sample.tokens).subspan(begin, end - begin), detokenizer))
            ends.insert(*last);
    }
}

}  // namespace

tokens::Detokenizer detokenizer_of(const data::SampleFile& file, Pulse& pulse) {
    if (file.tokenizer() == "bytes") return tokens::Detokenizer::bytes();
    return tokens::Detokenizer::from_json(file.tokenizer_json(pulse),
                                          file.path().string() + ": tokenizer_json");
}

std::optional<std::int32_t> end_of(std::span<const std::int32_t> answer,
                                   const tokens::Detokenizer& detokenizer) {
    while (!answer.empty() && !detokenizer.is_special(answer.back())) {
        if (detokenizer.text(answer.last(1)).find_first_not_of(" \t\r\n") != std::string::npos) return {};
        answer = answer.first(answer.size() - 1);
    }
    if (answer.empty()) return {};
    return answer.back();
}

AnswerEnds trained_ends(const data::SampleFile& file, Pulse& pulse) {
    constexpr std::int64_t kMost = 1000;
    pulse.doing("the ends of answers in " + file.path().string());
    std::optional<tokens::Detokenizer> detokenizer;
    try {
        detokenizer = detokenizer_of(file, pulse);
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_data) throw;
        return {};
    }
    std::set<std::int32_t> ends;
    const std::int64_t count = std::min(file.size(), kMost), apart = file.size() / count,
                       longer = file.size() % count;
    data::Sample sample;
    for (std::int64_t i = 0; i < count; ++i) {
        file.read(i * apart + i * longer / count, sample, data::SampleFields::text, pulse);
        add_ends(sample, file.markers(), *detokenizer, ends);
    }
    return Ids(ends.begin(), ends.end());
}

std::vector<std::int32_t> ends_of_folder(const fs::path& folder, Pulse& pulse) {
    const Ids ends = tokens::end_tokens(text_of(folder, kGenerationConfig, pulse));
    return ends.empty() ? tokens::end_tokens(text_of(folder, "config.json", pulse)) : ends;
}

std::vector<std::int32_t> missing_ends(const fs::path& folder, const AnswerEnds& trained, Pulse& pulse) {
    const std::string text = text_of(folder, kGenerationConfig, pulse);
    const Ids known = tokens::end_tokens(text.empty() ? text_of(folder, "config.json", pulse) : text);
    Ids missing = trained.value_or(Ids());
    std::erase_if(missing,
                  [&](std::int32_t id) { return std::find(known.begin(), known.end(), id) != known.end(); });
    return missing;
}

std::string generation_config(const fs::path& folder, const Ids& added, Pulse& pulse) {
    const std::string path = (folder / kGenerationConfig).string();
    const std::string text = text_of(folder, kGenerationConfig, pulse);
    nlohmann::ordered_json config = nlohmann::ordered_json::object();
    if (!text.empty()) {
        families::parse_object(text, path);  // refuses what is no object
        config = nlohmann::ordered_json::parse(text);
        config.erase("_from_model_config");  // for which transformers would take config.json's ids instead
    } else {
        // What transformers takes from config.json where there is no generation_config.json.
        const std::string model = text_of(folder, "config.json", pulse);
        const auto keys = families::parse_object(model, (folder / "config.json").string());
        for (const char* key : {"bos_token_id", "pad_token_id"})
            if (keys.contains(key) && !keys.at(key).is_null()) config[key] = keys.at(key);
    }
    Ids ends = ends_of_folder(folder, pulse);
    for (const std::int32_t id : added)
        if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    config["eos_token_id"] =
        ends.size() == 1 ? nlohmann::ordered_json(ends.front()) : nlohmann::ordered_json(ends);
    return config.dump(2) + "\n";
}

}  // namespace maestro::train
