#include "schedule/execution/ready_agenda.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace maestro::schedule {

ReadyAgenda::ReadyAgenda(std::span<const Task> agenda, std::vector<LaneStage> stages)
    : agenda_(agenda), stages_(std::move(stages)), open_(agenda.size()) {
    std::iota(open_.begin(), open_.end(), std::size_t{0});
    std::vector<int> stage_of;  // [section], one of its stages on the lane
    for (const Task& task : agenda) {
        const auto section = static_cast<std::size_t>(stages_[task.stage].section);
        if (section >= stage_of.size()) stage_of.resize(section + 1, -1);
        interleaved_.resize(stage_of.size(), 0);
        if (stage_of[section] < 0) stage_of[section] = task.stage;
        if (stage_of[section] != task.stage) interleaved_[section] = 1;
    }
}

void ReadyAgenda::start(std::size_t place) {
    const auto at = open_.erase(std::lower_bound(open_.begin(), open_.end(), place));
    follows_.reset();
    const Task& task = agenda_[place];
    if (task.phase == Phase::backward || stages_[task.stage].sends) return;
    // The backward of a loss section needs nothing but its forward, so it can always follow at once. It is
    // behind its forward in the agenda, where the search begins.
    const auto backward = std::find_if(at, open_.end(), [&](std::size_t other) {
        return agenda_[other].stage == task.stage && agenda_[other].micro_batch == task.micro_batch;
    });
    if (backward != open_.end()) follows_ = *backward;
}

}  // namespace maestro::schedule
