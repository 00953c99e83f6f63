#include "schedule/execution/choosers.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/execution/interleaving.hpp"

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
    std::vector<LaneStage> stages;
    for (const StageShape& shape : machine.instance().stages) stages.push_back({shape.section, !shape.loss});
    for (const auto& agenda : tasks) open_.emplace_back(agenda, stages);
}

Choice ReadyOrder::choose(int lane, double) {
    ReadyAgenda& open = open_[lane];
    const auto& agenda = agendas_[lane];
    const auto next = open.next([&](std::size_t place) { return machine_.can_start(agenda[place]); });
    if (!next) return {};
    open.start(*next);
    return agenda[*next];
}

ListOrder::ListOrder(const Machine& machine, int at_once) : machine_(machine) {
    const Instance& instance = machine.instance();
    on_lane_.resize(instance.lanes);
    turn_.resize(machine.nodes().size());
    std::iota(turn_.begin(), turn_.end(), 0);
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        const StageShape& shape = instance.stages[s];
        for (int r = 0; r < shape.groups; ++r) {
            auto& slots = on_lane_[shape.lane(r)];
            // A later chunk of a section that has its slot already.
            if (!slots.empty() && slots.back().section == shape.section) continue;
            Slot& slot = slots.emplace_back();
            slot.section = shape.section;
            slot.pipelined = shape.pipelined();
            if (shape.chunks > 1) {
                slot.fixed = instance.shape(instance.last_stage(shape.section)).loss;
                interleave(slot, s, r, at_once);
                continue;
            }
            const int end = machine.first_node(s, r + 1);
            for (int n = machine.first_node(s, r); n < end; ++n) slot.tasks.push_back({n, Phase::forward});
        }
    }
}

/// Lists the tasks of a group's chunks on the lane of `stage`, its stage there in the first chunk.
void ListOrder::interleave(Slot& slot, int stage, int group, int at_once) {
    const StageShape& shape = machine_.instance().shape(stage);
    const int first_stage = machine_.instance().first_stage(shape.section), ranks = shape.lane_stride;
    const int count = machine_.first_node(stage, group + 1) - machine_.first_node(stage, group);
    int backwards = 0;
    for (int first = 0; first < count; first += std::min(at_once, count - first))
        for (const ChunkTask& task : interleaved_tasks(ranks, shape.chunks, stage - first_stage,
                                                       std::min(at_once, count - first), true)) {
            const int node =
                machine_.first_node(stage + task.chunk * ranks, group) + first + task.micro_batch;
            const bool backward = task.phase == Phase::backward;
            if (backward) turn_[node] = backwards++;
            if (!backward || (slot.fixed && machine_.node(node).has_backward))
                slot.tasks.push_back({node, task.phase});
        }
}

ListOrder::Slot& ListOrder::slot_of(const Node& n) {
    auto& slots = on_lane_[n.lane];
    const int section = machine_.instance().section_of(n.stage);
    return *std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.section == section; });
}

void ListOrder::ready(int node, Phase phase, double) {
    if (phase == Phase::forward) return;
    Slot& slot = slot_of(machine_.node(node));
    if (!slot.fixed) slot.backwards.push(turn_[node], node);
}

void ListOrder::started(const Choice& choice, double) {
    Slot& slot = slot_of(machine_.node(choice.node));
    if (!slot.fixed && choice.phase == Phase::backward) {
        slot.backwards.pop();
        return;
    }
    ++slot.next;
    // The machine runs the backward of a closed micro-batch as one with its forward. It is the next of the
    // list.
    if (slot.fixed && choice.phase == Phase::forward && machine_.node(choice.node).closed) ++slot.next;
}

Choice ListOrder::choose(int lane, double) {
    NearestToLoss nearest;
    auto& slots = on_lane_[lane];
    const auto has_loss = [&](const Choice& c) {
        return c.node >= 0 && machine_.instance().shape(machine_.node(c.node).stage).loss;
    };
    // Upstream, forwards go first: they feed the sections below, while a backward only frees a slot of the
    // window. It therefore runs when the window is full or the inputs of the next forward are late. On a
    // shared lane nothing starves while the lane works, so that a backward goes first there and frees its
    // memory sooner. So it does in a pipeline, whose stages wait for each other's gradients: with a window of
    // as many micro-batches as stages follow, this is the schedule 1F1B (Narayanan et al., "PipeDream",
    // 2019).
    for (Slot& slot : slots) {
        Choice mine;
        if (slot.next < slot.tasks.size() && machine_.can_start(slot.tasks[slot.next]))
            mine = slot.tasks[slot.next];
        if (!slot.backwards.empty()) {
            const Choice backward{slot.backwards.top(), Phase::backward};
            if (has_loss(backward) || slot.pipelined || mine.node < 0 || slots.size() > 1) mine = backward;
        }
        nearest.offer(mine, has_loss(mine));
    }
    return nearest.best();
}

}  // namespace maestro::schedule
