// The reference folders of tests/golden/families: their models, samples, and what transformers computed.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "safetensors/safetensors_file.hpp"
#include "storage/file.hpp"
#include "workload/scenario.hpp"

namespace maestro::testing_support {

/// The families that have folders.
inline std::vector<std::string> folder_families() {
    std::vector<std::string> names;
    for (const families::Family* const family : families::families())
        if (family->has_folders()) names.emplace_back(family->name);
    return names;
}

inline std::string folder_of(const std::string& family) {
    return std::string(MAESTRO_SOURCE_DIR "/tests/golden/families/") + family;
}

/// A file of reference values. They are read as they are stored, because the reader of weights rounds f64.
class FamilyReference {
public:
    explicit FamilyReference(const std::string& family)
        : FamilyReference(std::filesystem::path(folder_of(family) + "/reference.safetensors")) {}
    explicit FamilyReference(const std::filesystem::path& file)
        : file_(file.string(), pulse_), bytes_(file_.path(), std::ios::binary) {}
    template <class T>
    std::vector<T> read(const std::string& name) {
        const safetensors::TensorInfo* const info = file_.find(name);
        MAESTRO_CHECK(info, "{}: no {}", file_.path().string(), name);
        std::vector<T> values(static_cast<std::size_t>(info->elements));
        MAESTRO_CHECK(values.size() * sizeof(T) == info->bytes, "{}: {} bytes", name, info->bytes);
        bytes_.seekg(static_cast<std::streamoff>(info->offset));
        bytes_.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(info->bytes));
        return values;
    }
    bool has(const std::string& name) const { return file_.find(name) != nullptr; }
    std::vector<std::int64_t> shape(const std::string& name) const { return file_.find(name)->shape; }
    const std::vector<safetensors::TensorInfo>& tensors() const { return file_.tensors(); }

private:
    Pulse pulse_;
    safetensors::SafetensorsFile file_;
    std::ifstream bytes_;
};

/// The samples of a reference, in its order.
class FamilySamples {
public:
    explicit FamilySamples(FamilyReference& reference) {
        for (int s = 0; reference.has(fmt::format("tokens.{}", s)); ++s) {
            const auto ids = reference.read<std::int64_t>(fmt::format("tokens.{}", s));
            const auto each = reference.read<double>(fmt::format("weights.{}", s));
            tokens_.emplace_back(ids.begin(), ids.end());
            weights_.emplace_back(each.begin(), each.end());
            flags_.emplace_back(ids.size(), 0);
            weight_ = std::accumulate(each.begin(), each.end(), weight_);
            pictures_.emplace_back();
            for (int p = 0; reference.has(fmt::format("picture.{}.{}", s, p)); ++p) {
                const std::string name = fmt::format("picture.{}.{}", s, p);
                pixels_.push_back(reference.read<std::uint8_t>(name));
                const auto shape = reference.shape(name);
                pictures_.back().push_back(
                    {pixels_.back().data(), static_cast<int>(shape[0]), static_cast<int>(shape[1])});
            }
        }
        for (std::size_t s = 0; s < tokens_.size(); ++s)
            views_.push_back(
                {static_cast<std::int64_t>(s), tokens_[s], weights_[s], flags_[s], pictures_[s]});
    }
    const std::vector<model::SampleView>& views() const { return views_; }
    model::Batch batch() const { return {.samples = views_, .loss_scale = 1 / weight_}; }
    double weight() const { return weight_; }  ///< the sum of the loss weights

private:
    std::deque<std::vector<std::int32_t>> tokens_;
    std::deque<std::vector<float>> weights_;
    std::deque<std::vector<std::uint8_t>> flags_;
    std::deque<std::vector<std::uint8_t>> pixels_;
    std::deque<std::vector<model::ItemView>> pictures_;
    std::vector<model::SampleView> views_;
    double weight_ = 0;
};

/// The token of the reference's samples that stands for a picture (image_token_id).
inline constexpr int kFamilyMarker = 45;

inline nlohmann::json config_of_folder(const std::string& family, const std::string& file = "config.json") {
    return nlohmann::json::parse(storage::read_text(folder_of(family) + "/" + file));
}

/// A deck whose sections start from the folder: the language model, and the vision model where the folder has
/// one. `more`: further lines of each section.
inline workload::Scenario scenario_of_folder(const std::string& family,
                                             const std::string& config = "config.json",
                                             const std::string& more = "") {
    const std::string path = folder_of(family) + "/" + config;
    const std::string text = storage::read_text(path);
    std::vector<std::string> kinds{"language"};
    if (families::read_config(text, path, "vision").at("kind") == "vision") kinds.emplace_back("vision");
    std::string deck =
        "[run]\noutput = \"run\"\n[data]\ntrain = \"x\"\nglobal_batch = 1\nsequence_length = 64\n[train]\n"
        "steps = 1\n[optimizer]\nlearning_rate = 1e-3\n";
    for (const std::string& kind : kinds)
        deck += fmt::format(
            "[model.{0}]\nkind = \"{0}\"\n[[section]]\nname = \"{0}\"\nmodel = \"{0}\"\nweights = "
            "\"{1}\"\n{2}",
            kind, family, more);
    if (kinds.size() > 1) deck += "[[edge]]\nfrom = \"vision\"\nto = \"language\"\n";
    const auto keys = [&](const std::string&, const std::string& kind) {
        return families::read_config(text, path, kind);
    };
    const config::Deck read =
        config::parse_deck(deck, "deck.toml", {}, config::Command::train, config::Times::model, {}, keys);
    return workload::make_scenario(read);
}
/// Its models, the language model first.
inline std::vector<model::ModelSpec> specs_of_folder(const std::string& family,
                                                     const std::string& config = "config.json") {
    return scenario_of_folder(family, config).models;
}
inline model::ModelSpec spec_of_folder(const std::string& family) {
    return specs_of_folder(family).front();
}

}  // namespace maestro::testing_support
