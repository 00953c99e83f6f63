// What a kind of model is. Each kind is one object, defined beside its module, and the rest of the program
// asks the object instead of distinguishing kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/module.hpp"

namespace maestro::model {

/// What a file of samples holds at most.
struct SampleRange {
    std::int64_t vocabulary = 0;  ///< token ids are below this
    int channels = 0;             ///< of pictures
};

struct ModelKind {
    ModelSpec::Kind kind;
    std::string_view word;  ///< of model.NAME.kind
    int head_dim_unit;      ///< of which the channels of a head are a multiple
    /// Returns by which angles the heads of attention rotate, along the positions that the model's module
    /// gives each row.
    RotaryPairs (*rotary)(const AttentionForm& form);
    Units (*units)(const ModelSpec& spec);
    /// Returns what is wrong with the sizes of a model, or an empty text.
    std::string (*check_sizes)(const ModelSpec& spec, const Role& role);
    /// Returns why a model cannot read these samples, or an empty text.
    std::string (*check_samples)(const ModelSpec& spec, const SampleRange& samples);
    std::unique_ptr<Module> (*make)(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                                    parallel::Mesh mesh);
    /// Returns the parameters before the layers, without ".weight" or ".bias".
    std::vector<std::string> (*before_layers)(const ModelSpec& spec);
    /// Returns sizes that tp ranks split in addition to those of the layers: their keys and values.
    std::vector<std::pair<const char*, int>> (*split_sizes)(const ModelSpec& spec);
};

extern const ModelKind kLanguageKind, kVisionKind;
std::span<const ModelKind* const> kinds();
const ModelKind& kind_of(ModelSpec::Kind kind);
inline const ModelKind& kind_of(const ModelSpec& spec) {
    return kind_of(spec.kind);
}
/// Null where no kind has this word.
const ModelKind* find_kind(std::string_view word);

}  // namespace maestro::model
