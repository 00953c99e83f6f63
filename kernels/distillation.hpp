// ops/distillation.hpp on a GPU.
#pragma once

#include "base/stream.hpp"
#include "kernels/array.hpp"
#include "kernels/loss_steps.hpp"

namespace maestro::kernels {

/// student becomes the gradient. first_token: the first column's. From step to step are kept, of the logits'
/// type: the largest logits of student and teacher in tops[2, n], which become those over all ranks, and in
/// own_tops[2, n], which stay; sums[5, n]. The last step writes losses[2 n], the hard ones before the soft.
void distillation(Stream stream, LossSteps steps, const Array& student, const Array& teacher,
                  const Array& targets, const Array& weights, double alpha, double temperature, double scale,
                  std::int64_t first_token, const Array& tops, const Array& own_tops, const Array& sums,
                  const Array& losses);

}  // namespace maestro::kernels
