#include "schedule/ready_lane.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace maestro::schedule {

ReadyLane::ReadyLane(std::span<const Task> lane, std::vector<bool> sends)
    : lane_(lane), sends_(std::move(sends)), open_(lane.size()) {
    std::iota(open_.begin(), open_.end(), std::size_t{0});
}

void ReadyLane::start(std::size_t place) {
    const auto at = open_.erase(std::lower_bound(open_.begin(), open_.end(), place));
    follows_.reset();
    const Task& task = lane_[place];
    if (task.phase == Phase::backward || sends_[static_cast<std::size_t>(task.section)]) return;
    const auto backward = std::find_if(at, open_.end(), [&](std::size_t other) {
        return lane_[other].section == task.section && lane_[other].micro_batch == task.micro_batch;
    });
    if (backward != open_.end()) follows_ = *backward;
}

}  // namespace maestro::schedule
