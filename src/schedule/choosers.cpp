#include "schedule/choosers.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace maestro::schedule {

void NodeQueue::push(int priority, int node) {
    const std::pair<int, int> entry(priority, node);
    // The popped nodes at the front are dropped whenever the queue runs empty, which happens often, so that
    // the list stays short.
    if (empty()) clear();
    if (empty() || nodes_.back() < entry) {
        nodes_.push_back(entry);
        return;
    }
    const auto begin = nodes_.begin() + first_;
    const auto place = std::upper_bound(begin, nodes_.end(), entry);
    // A new first node takes the place of one that was popped, and moves nothing.
    if (place == begin && first_ > 0)
        nodes_[--first_] = entry;
    else
        nodes_.insert(place, entry);
}

ReadyOrder::ReadyOrder(const Machine& machine, const std::vector<std::vector<Task>>& tasks,
                       std::vector<std::vector<Choice>> agendas)
    : machine_(machine), agendas_(std::move(agendas)) {
    // A stage computes a loss exactly if it has no outgoing edge.
    std::vector<bool> sends;
    for (const StageShape& shape : machine.instance().stages) sends.push_back(!shape.loss);
    for (const auto& agenda : tasks) open_.emplace_back(agenda, sends);
}

Choice ReadyOrder::choose(int lane, double) {
    ReadyAgenda& open = open_[lane];
    const auto& agenda = agendas_[lane];
    const auto next = open.next([&](std::size_t place) { return machine_.can_start(agenda[place]); });
    if (!next) return {};
    open.start(*next);
    return agenda[*next];
}

ListOrder::ListOrder(const Machine& machine) : machine_(machine) {
    const Instance& instance = machine.instance();
    on_lane_.resize(instance.lanes);
    for (std::size_t s = 0; s < instance.stages.size(); ++s)
        for (int r = 0; r < instance.stages[s].replicas; ++r)
            on_lane_[instance.stages[s].lane(r)].push_back(
                {.stage = static_cast<int>(s),
                 .loss = instance.stages[s].loss,
                 .pipelined = instance.stages[s].pipelined(),
                 .next = machine.first_node(static_cast<int>(s), r),
                 .end = machine.first_node(static_cast<int>(s), r + 1),
                 .backwards = {}});
}

ListOrder::Slot& ListOrder::slot_of(const Node& n) {
    auto& slots = on_lane_[n.lane];
    return *std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.stage == n.stage; });
}

void ListOrder::ready(int node, Phase phase, double) {
    if (phase == Phase::backward) slot_of(machine_.node(node)).backwards.push(node, node);
}

void ListOrder::started(const Choice& choice, double) {
    Slot& slot = slot_of(machine_.node(choice.node));
    if (choice.phase == Phase::forward)
        ++slot.next;
    else
        slot.backwards.pop();
}

Choice ListOrder::choose(int lane, double) {
    NearestToLoss nearest;
    auto& slots = on_lane_[lane];
    // Upstream, forwards go first: they feed the sections below, while a backward only frees a slot of the
    // window. It therefore runs when the window is full or the inputs of the next forward are late. On a
    // shared lane nothing starves while the lane works, so that a backward goes first there and frees its
    // memory sooner. So it does in a pipeline, whose stages wait for each other's gradients: with a window of
    // as many micro-batches as stages follow, this is the schedule 1F1B (Narayanan et al., "PipeDream",
    // 2019).
    for (Slot& slot : slots) {
        Choice mine{slot.next, Phase::forward};
        if (slot.next == slot.end || !machine_.can_start(mine)) mine.node = -1;
        if (!slot.backwards.empty() && (slot.loss || slot.pipelined || mine.node < 0 || slots.size() > 1))
            mine = {slot.backwards.top(), Phase::backward};
        nearest.offer(mine, slot.loss);
    }
    return nearest.best();
}

}  // namespace maestro::schedule
