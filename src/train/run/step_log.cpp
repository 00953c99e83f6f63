#include "train/run/step_log.hpp"

#include <cmath>

#include "base/log.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

void StepLog::step_done(const io::StepRow& row) {
    constexpr std::int64_t kMostWarnings = 3;
    tokens_ += static_cast<double>(row.tokens);
    time_s_ += row.time_s;
    ++steps_;
    const bool targets = !std::isnan(row.loss);
    if (!targets && ++without_targets_ <= kMostWarnings)
        log::info(
            "warning: step {}: no token of its samples has a loss weight, so it has no loss and its gradient "
            "is 0; momentum and weight decay still change the weights{}",
            row.step,
            without_targets_ == kMostWarnings ? ". Further steps like this are counted at the end" : "");
    if (row.step % settings_.log_every != 0 && row.step != settings_.steps && row.step != done_ + 1) return;
    const double left = (comm::now_s() - begin_s_) / static_cast<double>(row.step - done_) *
                        static_cast<double>(settings_.steps - row.step);
    log::info(
        "step {:>6}/{}  loss {}  {:>8.0f} tokens/s  grad norm {:.3f}  learning rate {:.2e}  left "
        "{}:{:02}",
        row.step, settings_.steps, targets ? fmt::format("{:.4f}", row.loss) : "none (no targets)",
        tokens_ / time_s_, row.grad_norm, row.learning_rate, static_cast<int>(left) / 60,
        static_cast<int>(left) % 60);
    tokens_ = time_s_ = 0;
}

std::string StepLog::describe() const {
    if (without_targets_ == 0) return {};
    return fmt::format("warning: {} of {} steps had no targets: no token of their samples has a loss weight",
                       without_targets_, steps_);
}

}  // namespace maestro::train
