// The reference folders of tests/golden/families: their models, samples, and what transformers computed.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/text_file.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "safetensors/safetensors_file.hpp"
#include "workload/scenario.hpp"

namespace maestro::testing_support {

inline std::string folder_of(const std::string& family) {
    return std::string(MAESTRO_SOURCE_DIR "/tests/golden/families/") + family;
}

/// A file of reference values. They are read as they are stored, because the reader of weights rounds f64.
class FamilyReference {
public:
    explicit FamilyReference(const std::string& family)
        : file_(folder_of(family) + "/reference.safetensors", pulse_),
          bytes_(file_.path(), std::ios::binary) {}
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
    const std::vector<safetensors::TensorInfo>& tensors() const { return file_.tensors(); }

private:
    Pulse pulse_;
    safetensors::SafetensorsFile file_;
    std::ifstream bytes_;
};

/// The samples of a reference.
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
        }
        for (std::size_t s = 0; s < tokens_.size(); ++s)
            views_.push_back({static_cast<std::int64_t>(s), tokens_[s], weights_[s], flags_[s], {}});
    }
    const std::vector<model::SampleView>& views() const { return views_; }
    double weight() const { return weight_; }  ///< the sum of the loss weights

private:
    std::deque<std::vector<std::int32_t>> tokens_;
    std::deque<std::vector<float>> weights_;
    std::deque<std::vector<std::uint8_t>> flags_;
    std::vector<model::SampleView> views_;
    double weight_ = 0;
};

/// The model of a deck whose section starts from the folder.
inline model::ModelSpec spec_of_folder(const std::string& family) {
    const std::string deck = fmt::format(
        "[run]\noutput = \"run\"\n[data]\ntrain = \"x\"\nglobal_batch = 1\nsequence_length = 64\n[train]\n"
        "steps = 1\n[optimizer]\nlearning_rate = 1e-3\n[model.llm]\n[[section]]\nname = \"text\"\nmodel = "
        "\"llm\"\nweights = \"{}\"\n",
        family);
    const auto keys = [&](const std::string& folder, const std::string& kind) {
        const std::string path = folder_of(folder) + "/config.json";
        return families::read_config(*read_text_file(path), path, kind);
    };
    const config::Deck read =
        config::parse_deck(deck, "deck.toml", {}, config::Command::train, config::Times::model, {}, keys);
    return workload::make_scenario(read).models.at(0);
}

}  // namespace maestro::testing_support
