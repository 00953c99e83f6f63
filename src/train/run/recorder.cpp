#include "train/run/recorder.hpp"

#include <algorithm>

#include "comm/agree.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

bool Recorder::due() const {
    return comm::now_s() - last_s_ >= interval_s_;
}

void Recorder::tasks_done(const schedule::StepPlan& plan, std::span<const io::TaskRow> rows) {
    if (timeline_every_ == 0 || plan.step % timeline_every_ != 0) return;
    tasks_.insert(tasks_.end(), rows.begin(), rows.end());
    if (world_.rank() != 0) return;
    for (std::size_t s = 0; s < plan.batches.size(); ++s)
        for (std::size_t r = 0; r < plan.batches[s].size(); ++r)
            for (std::size_t k = 0; k < plan.batches[s][r].size(); ++k)
                for (const std::int64_t sample : plan.batches[s][r][k].samples)
                    assignment_.push_back({.step = plan.step,
                                           .section = static_cast<int>(s),
                                           .replica = static_cast<int>(r),
                                           .micro_batch = static_cast<int>(k),
                                           .sample = sample});
}

void Recorder::flush() {
    const auto gathered = world_.gather(std::span<const io::TaskRow>(tasks_));
    tasks_.clear();
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        io::Rows rows{.steps = steps_, .tasks = {}, .assignment = assignment_};
        for (const auto& part : gathered) rows.tasks.insert(rows.tasks.end(), part.begin(), part.end());
        // Rows come rank by rank. Within a step this order is kept, so that it does not depend on timing.
        std::stable_sort(rows.tasks.begin(), rows.tasks.end(),
                         [](const auto& a, const auto& b) { return a.step < b.step; });
        io::append_metrics(path_, rows, pulse_);
    });
    steps_.clear();
    assignment_.clear();
    last_s_ = comm::now_s();
}

}  // namespace maestro::train
