// Tables that say which tensors of a folder hold which parameters of a model.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace maestro::families {

/// How many rows of a parameter a tensor has.
enum class Rows { all, queries, keys, mlp, expert_mlp };

/// A tensor with consecutive rows of a parameter.
struct TensorRows {
    std::string_view tensor;  ///< "self_attn.q_proj.weight"
    Rows rows = Rows::all;
};

/// In which form a tensor has the values.
enum class TensorForm {
    matrix,       ///< that of the parameter
    convolution,  ///< [C, channels, frames, patch, patch], the parameter a linear layer over patches
    /// By expert, "mlp.experts.N.TENSOR" for each of `tensors`. Where transformers 5 has written the folder,
    /// one tensor `all_experts` [E, rows of each, columns].
    experts,
    /// One tensor `all_experts` [E, columns, rows of each], or, by transformers 5, as above. No `tensors`.
    transposed_experts,
};

/// The tensors of a parameter, in the order of its rows.
struct TensorNames {
    std::string_view parameter;  ///< what follows the beginning of its group
    std::array<TensorRows, 3> tensors;
    TensorForm form = TensorForm::matrix;
    std::string_view all_experts = {};  ///< "mlp.experts.down_proj"
};

/// Parameters with a common beginning, and the beginning of their tensors. With `numbered`, both go on with
/// the same number and a dot.
struct TensorGroup {
    std::string_view parameters, tensors;
    bool numbered = false;
    std::span<const TensorNames> names;
};

}  // namespace maestro::families
