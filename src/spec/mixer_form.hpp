// What mixes the rows of a sequence in the first half of a transformer layer, as plain sizes. A model has a
// list of distinct forms, and each of its layers has one of them (ModelSpec::mixers). model/mixer.hpp has the
// block of each form.
#pragma once

#include <array>
#include <string>
#include <variant>

#include "spec/rotary_pairs.hpp"

namespace maestro::model {

/// Attention with rotary positions.
struct AttentionForm {
    int heads = 1;
    int kv_heads = 1;
    int head_dim = 64;
    double rope_theta = 10000;
    RotaryScaling rope_scaling = {};  ///< language models only
    /// Language models only: how many pairs of channels rotate by time, row and column (Qwen3-VL), or zeros:
    /// all by the position in the sample.
    std::array<int, 3> rope_sections = {};

    /// Returns what is wrong with the sizes, or an empty text. `unit`: ModelKind::head_dim_unit.
    std::string check_sizes(int unit) const;
    /// Returns what tp ranks cannot split evenly, "6 heads", or an empty text. They split the heads, and each
    /// holds whole KV heads or shares one with its neighbours.
    std::string not_split_by(int tp) const;
    /// The same of cp ranks that exchange rows for heads (ContextKind::all_to_all), of the heads that tp
    /// leaves, which have to be split evenly.
    std::string not_split_by(int tp, int cp) const;
    /// The most ranks that can split it.
    int most_ranks() const { return heads; }
    bool operator==(const AttentionForm&) const = default;
};

using MixerForm = std::variant<AttentionForm>;

}  // namespace maestro::model
