#include "schedule/stage_lists.hpp"

namespace maestro::schedule {

StageLists::StageLists(const Machine& machine) : machine_(machine) {
    const Instance& instance = machine.instance();
    int slots = 0;
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        first_stage_.push_back(instance.first_of_section(s) ? s : first_stage_.back());
        slots_.push_back(slots);
        slots += instance.shape(s).replicas;
    }
    order_.resize(slots);
    done_.resize(slots);
}

void StageLists::begin() {
    for (auto& order : order_) order.clear();
    done_.assign(done_.size(), 0);
    place_.resize(machine_.nodes().size());
}

void StageLists::started(const Node& n) {
    const std::size_t at = slot(n.stage, n.replica);
    if (first_stage_[n.stage] == n.stage) {
        place_[machine_.in_stage(n, n.stage)] = static_cast<int>(order_[at].size());
        order_[at].push_back(n.index);
    }
    ++done_[at];
}

}  // namespace maestro::schedule
