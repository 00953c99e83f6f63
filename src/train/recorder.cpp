#include "train/recorder.hpp"

#include <algorithm>

#include "comm/environment.hpp"
#include "train/agree.hpp"

namespace maestro::train {

bool Recorder::due() const {
    return comm::now_s() - last_s_ >= interval_s_;
}

void Recorder::flush() {
    const auto gathered = world_.gather(std::span<const io::TaskRow>(tasks_));
    tasks_.clear();
    agree(world_, [&] {
        if (world_.rank() != 0) return;
        io::Rows rows{.steps = steps_, .tasks = {}};
        for (const auto& part : gathered) rows.tasks.insert(rows.tasks.end(), part.begin(), part.end());
        std::stable_sort(rows.tasks.begin(), rows.tasks.end(),
                         [](const auto& a, const auto& b) { return a.step < b.step; });
        io::append_metrics(path_, rows);
    });
    steps_.clear();
    last_s_ = comm::now_s();
}

}  // namespace maestro::train
