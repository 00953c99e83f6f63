#include "train/run/step_log.hpp"

#include "base/log.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

void StepLog::step_done(const io::StepRow& row) {
    tokens_ += static_cast<double>(row.tokens);
    time_s_ += row.time_s;
    if (row.step % settings_.log_every != 0 && row.step != settings_.steps && row.step != done_ + 1) return;
    const double left = (comm::now_s() - begin_s_) / static_cast<double>(row.step - done_) *
                        static_cast<double>(settings_.steps - row.step);
    log::info(
        "step {:>6}/{}  loss {:.4f}  {:>8.0f} tokens/s  grad norm {:.3f}  learning rate {:.2e}  left "
        "{}:{:02}",
        row.step, settings_.steps, row.loss, tokens_ / time_s_, row.grad_norm, row.learning_rate,
        static_cast<int>(left) / 60, static_cast<int>(left) % 60);
    tokens_ = time_s_ = 0;
}

}  // namespace maestro::train
