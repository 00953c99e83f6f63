// The router of a layer with experts: which experts a row is sent to, and the weights of their results. Shape
// letters: R rows, E experts, k choices of a row. `A` stands for the accumulation type of the model's type
// (ops::accumulate_type): f32, or f64 where the model computes in f64.
//
// Source: Shazeer et al., "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer",
// ICLR 2017; with `sigmoid` and a bias DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.1.2.
#pragma once

#include "backend/arena.hpp"
#include "backend/backend.hpp"

namespace maestro::ops {

enum class RouterScore {
    softmax,  ///< over all experts
    sigmoid,  ///< of each expert by itself
};

struct RouterForm {
    RouterScore score = RouterScore::softmax;
    /// Whether the weights of a row are divided by their sum. As in DeepSeek-V3, 1e-20 is added to the sum,
    /// so that weights are 0 and not NaN where all chosen scores are.
    bool normalize = true;
};

/// scores[R, E] (A) = the softmax or the sigmoid of logits[R, E] (A). choice[R, k] (i32) = the k experts with
/// the largest scores, plus bias[E] (A) unless it is absent, in descending order; of equal ones the lower
/// number comes first, and NaN counts as infinite. The choices of a row are always k different experts.
/// weight[R, k] (A) = their scores without the bias, divided by their sum where the form says so. The result
/// does not depend on other rows. Throws Error(broken_invariant) for shapes and types that do not fit, and
/// for k beyond E.
void route(backend::Backend& b, const Tensor& logits, const Tensor& bias, RouterForm form,
           const Tensor& scores, const Tensor& choice, const Tensor& weight);
/// d_logits[R, E] (A) = the gradient of the logits from d_weight[R, k] (A), that of the weights. No gradient
/// passes through the choice or the bias. Errors as above, and on the CPU for a choice that is no expert.
void route_backward(backend::Backend& b, const Tensor& d_weight, const Tensor& scores, const Tensor& choice,
                    RouterForm form, const Tensor& d_logits);
/// d_logits[R, E] (A) += the gradient of a loss that grows with the scores of experts that are chosen often:
/// the sum over all rows r of factor[s] * sum of chosen[s, e] * q[r, e], with s = group[r] (i32), and q the
/// scores[R, E] (A), divided by their sum where they are sigmoids. chosen[S, E] and factor[S] (A) are
/// constants. The loss is added to loss[1] (f64), unless that is absent. Errors as above, and on the CPU for
/// a group beyond S.
///
/// Source: the complementary sequence-wise auxiliary loss of the technical report on DeepSeek-V3.
void balance_backward(backend::Backend& b, const Tensor& scores, const Tensor& group, const Tensor& chosen,
                      const Tensor& factor, RouterForm form, const Tensor& d_logits, const Tensor& loss,
                      backend::Arena& scratch);

}  // namespace maestro::ops
