// The steps of a loss over rows of logits: step 0 computes each row's maximum and sums of exponentials, step
// 1 rescales these sums to the maximum over all ranks, and step 2 computes the loss and its gradient. Where
// ranks split the vocabulary, a launch runs one step, and the ranks reduce maxima and sums between the steps.
// Otherwise one launch runs them all.
#pragma once

namespace maestro::kernels {

struct LossSteps {
    static constexpr int kAll = 3;
    int first, last;  ///< [first, last)

    bool begin() const { return first == 0; }
    bool end() const { return last == kAll; }
};

}  // namespace maestro::kernels
