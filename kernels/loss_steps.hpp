// The steps of a loss over rows of logits: 0 finds the largest of each row, 1 sums of exponentials, 2 the
// loss and its gradient. Where ranks share out the vocabulary they go one by one, and in between what is
// found becomes that of all ranks.
#pragma once

namespace maestro::kernels {

struct LossSteps {
    static constexpr int kAll = 3;
    int first, last;  ///< [first, last)

    bool begin() const { return first == 0; }
    bool end() const { return last == kAll; }
};

}  // namespace maestro::kernels
