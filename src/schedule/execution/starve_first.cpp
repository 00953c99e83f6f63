#include "schedule/execution/starve_first.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace maestro::schedule {

StarveFirst::StarveFirst(const Machine& machine) : machine_(machine), lists_(machine) {
    const Instance& instance = machine.instance();
    const int anchors = instance.shape(instance.anchor).groups;
    on_lane_.resize(instance.lanes);
    upstream_.resize(anchors);
    std::map<std::pair<int, int>, std::size_t> served;  // anchor groups, from and to -> their sources
    for (std::size_t s = 0; s < instance.stages.size(); ++s) {
        first_slot_.push_back(static_cast<int>(slots_.size()));
        const StageShape& shape = instance.stages[s];
        for (int r = 0; r < shape.groups; ++r) {
            Slot slot;
            slot.stage = static_cast<int>(s);
            slot.group = r;
            slot.loss = instance.of_loss(static_cast<int>(s));
            slot.anchor = static_cast<int>(s) == instance.entry;
            slot.follows = !instance.first_of_section(static_cast<int>(s));
            slot.chunks = static_cast<int>(slots_.size());
            for (const int other : on_lane_[shape.lane(r)])
                if (instance.section_of(slots_[other].stage) == shape.section)
                    slot.chunks = slots_[other].chunks;
            // The anchor groups that a group serves are consecutive, so two numbers identify them.
            const auto [first, last] = instance.anchors_of(static_cast<int>(s), r);
            slot.first_anchor = first;
            slot.forwards.resize(slot.loss ? 1 : last - first);
            // Only sources follow a sequence: their forwards need no inputs, so the next of the sequence can
            // start whenever the window allows it. A section between must take what arrives.
            const bool source = std::none_of(instance.edges.begin(), instance.edges.end(),
                                             [&](const EdgeShape& e) { return e.to == static_cast<int>(s); });
            if (source && !slot.loss) {
                const auto same = served.emplace(std::pair(first, last), sources_.size()).first;
                slot.sources = static_cast<int>(same->second);
                if (same->second == sources_.size()) sources_.emplace_back();
            }
            if (!slot.loss && !slot.follows)
                for (int a = first; a < last; ++a) upstream_[a].push_back(static_cast<int>(slots_.size()));
            on_lane_[shape.lane(r)].push_back(static_cast<int>(slots_.size()));
            slots_.push_back(std::move(slot));
        }
    }
}

void StarveFirst::begin(const DispatchRule& rule, const std::vector<int>& priority, bool in_order) {
    rule_ = rule;
    priority_ = &priority;
    const Instance& instance = machine_.instance();
    backlog_end_s_.assign(instance.shape(instance.anchor).groups, 0.0);
    announced_s_ = backlog_end_s_;
    in_sequence_.assign(machine_.nodes().size(), 0);
    for (Sources& sources : sources_) sources.sequence.clear();
    lists_.begin();
    for (Slot& slot : slots_) {
        slot.followed = 0;
        const StageShape& shape = instance.shape(slot.stage);
        const auto served = static_cast<int>(slot.forwards.size());
        slot.quota = 0;
        // Rounded up, so that no part of the window lies idle. An anchor group may always hold one whole
        // anchor micro-batch: with less it could never start it, and the step would be stuck.
        if (rule.fair && !slot.loss && !slot.follows && shape.window > 0)
            slot.quota = std::max((shape.window_samples() + served - 1) / served,
                                  instance.shape(instance.anchor).micro_batch);
        if (slot.quota > 0) slot.held.assign(slot.forwards.size(), 0);
        for (NodeQueue& queue : slot.forwards) queue.clear();
        slot.runs_dry_s.reset(slot.forwards.size());
        slot.backwards.clear();
        slot.target = -1;
        slot.next = -1;
        slot.left =
            machine_.first_node(slot.stage, slot.group + 1) - machine_.first_node(slot.stage, slot.group);
        if (slot.follows || !(slot.anchor ? rule.strict : in_order && !slot.loss)) continue;
        slot.next = machine_.first_node(slot.stage, slot.group);
    }
}

void StarveFirst::ready(int node, Phase phase, double now) {
    const Node& n = machine_.node(node);
    Slot& slot = slot_of(n);
    if (phase == Phase::backward) {
        if (!lists_.fixed(n.stage)) slots_[slot.chunks].backwards.push(order_of(node, n), node);
        return;
    }
    if (slot.follows) return;
    if (slot.loss) {
        if (slot.next < 0) slot.forwards.front().push((*priority_)[node], node);
        // Text that no encoder produces would hide that a group runs out of inputs: it counts when it
        // starts.
        if (slot.anchor && counts(n)) extend_backlog(n, now);
        return;
    }
    // A section with a fixed order asks the machine what can start and needs no queue.
    if (slot.next >= 0) return;
    const int anchor = machine_.node(anchor_node(n)).group - slot.first_anchor;
    slot.forwards[anchor].push((*priority_)[node], node);
    refresh(slot, anchor);
}

void StarveFirst::started(const Choice& choice, double end_s) {
    const Node& n = machine_.node(choice.node);
    Slot& slot = slot_of(n);
    if (machine_.instance().shape(n.stage).pipelined()) lists_.started(n, choice.phase);
    if (choice.phase == Phase::backward) {
        if (!lists_.fixed(n.stage)) slots_[slot.chunks].backwards.pop();
        hold(n, -1);
        return;
    }
    --slot.left;
    if (!slot.loss) hold(n, 1);
    release_upstream(slot, n);
    if (slot.follows) return;
    if (slot.loss) {
        if (slot.next >= 0)
            ++slot.next;
        else
            slot.forwards.front().pop();
        if (slot.anchor && !counts(n)) extend_backlog(n, end_s - n.forward_s);
    } else if (slot.next >= 0) {
        ++slot.next;
    } else {
        slot.target = anchor_node(n);
        // The first source that chooses an anchor micro-batch appends it to the sequence, and the others
        // follow. The node stays in its queue, as the nodes of the other sources stay in theirs:
        // smallest_backlog() skips them.
        const Node& anchor = machine_.node(slot.target);
        if (!in_line(slot)) {
            slot.forwards[anchor.group - slot.first_anchor].pop();
            refresh(slot, anchor.group - slot.first_anchor);
        } else if (char& known = in_sequence_[slot.target]; !known) {
            known = 1;
            sources_[slot.sources].sequence.push_back(slot.target);
            for (const int stage : machine_.instance().bottleneck) {
                const Node& longest = machine_.node(machine_.in_stage(anchor, stage));
                announced_s_[anchor.group] += longest.forward_s + longest.backward_s;
            }
            refresh_all(anchor.group);
        }
    }
}

/// Without a backward, a sample leaves the upstream window when its consumer ends its forward. Counting it
/// out at the start already is harmless: the quota guides the choice, the machine enforces the window.
void StarveFirst::release_upstream(const Slot& slot, const Node& n) {
    const Instance& instance = machine_.instance();
    if (!slot.loss || instance.section_of(n.stage) != instance.section_of(instance.anchor)) return;
    for (const Link& link : machine_.upstream(n)) {
        const Node& up = machine_.node(link.node);
        if (up.has_backward) continue;
        // The window that it holds is the one of its section's first stage.
        hold(machine_.node(machine_.in_stage(up, lists_.first_stage(up.stage))), -1);
    }
}

/// A group that has run dry begins the work when it arrives, another one when it has done what it has. Work
/// that was announced has arrived now. The difference may be
/// negative, because work that no source announced is subtracted as well.
void StarveFirst::extend_backlog(const Node& n, double now) {
    double& end = backlog_end_s_[n.group];
    end = std::max(end, now);
    double left = announced_s_[n.group];
    for (const int stage : machine_.instance().bottleneck) {
        const Node& longest = machine_.node(machine_.in_stage(n, stage));
        end = end + longest.forward_s + longest.backward_s;
        left = left - longest.forward_s - longest.backward_s;
    }
    announced_s_[n.group] = std::max(0.0, left);
    refresh_all(n.group);
}

void StarveFirst::hold(const Node& n, int change) {
    Slot& slot = slot_of(n);
    if (slot.quota == 0) return;
    const int served = machine_.node(anchor_node(n)).group - slot.first_anchor;
    slot.held[served] += change;
    refresh(slot, served);
}

/// The tree holds only the groups that the slot can work for now, so that its smallest value is the answer.
/// A choice takes constant time and a change logarithmic time, where a scan would take time proportional to
/// the fanout.
void StarveFirst::refresh(Slot& slot, std::size_t served) {
    const bool full = slot.quota > 0 && slot.held[served] >= slot.quota;
    slot.runs_dry_s.set(served, slot.forwards[served].empty() || full
                                    ? MinTree::kNone
                                    : runs_dry_s(slot.first_anchor + served));
}

void StarveFirst::refresh_all(int anchor) {
    for (const int s : upstream_[anchor]) refresh(slots_[s], anchor - slots_[s].first_anchor);
}

StarveFirst::Forward StarveFirst::best_forward(Slot& slot) {
    if (slot.left == 0) return {};
    if (slot.follows) {
        const int node = lists_.next_forward(slot.stage, slot.group);
        if (node < 0 || !machine_.can_start({node, Phase::forward})) return {};
        if (slot.loss) return {node, 0};
        return {node, backlog_end_s_[machine_.node(anchor_node(machine_.node(node))).group]};
    }
    if (slot.next >= 0) {
        // In a fixed order the next forward is the only one that may start: another one would change the
        // order.
        if (!machine_.can_start({slot.next, Phase::forward})) return {};
        if (slot.loss) return {slot.next, 0};
        const int anchor = machine_.node(anchor_node(machine_.node(slot.next))).group;
        return {slot.next, backlog_end_s_[anchor]};
    }
    if (slot.loss) {
        if (slot.forwards.front().empty()) return {};
        return {slot.forwards.front().top(), 0};
    }
    return in_line(slot) ? next_in_sequence(slot) : smallest_backlog(slot);
}

StarveFirst::Forward StarveFirst::next_in_sequence(Slot& slot) {
    std::vector<int>& sequence = sources_[slot.sources].sequence;
    // Each source goes through the sequence once: the machine never undoes a start.
    // An anchor micro-batch of several samples is passed once all of its nodes here have started.
    for (; slot.followed < sequence.size(); ++slot.followed) {
        const Node& anchor = machine_.node(sequence[slot.followed]);
        for (const int sample : machine_.samples_of(anchor)) {
            const int node = machine_.node_of(slot.stage, sample);
            if (node < 0 || machine_.node(node).group != slot.group) continue;
            if (!machine_.node(node).started) return {node, backlog_end_s_[anchor.group]};
        }
    }
    return smallest_backlog(slot);
}

/// The first node for the anchor group whose backlog, with what is announced to it, ends first. Nodes that
/// are in a sequence are removed from the queues only here (lazy deletion), each once in an execution.
StarveFirst::Forward StarveFirst::smallest_backlog(Slot& slot) {
    // What is in a sequence is started from there.
    const auto skip_sequence = [&](std::size_t served) {
        NodeQueue& queue = slot.forwards[served];
        if (!in_line(slot)) return;
        while (!queue.empty() && in_sequence_[anchor_node(machine_.node(queue.top()))]) queue.pop();
        refresh(slot, served);
    };
    const auto forward = [&](std::size_t served) {
        return Forward{slot.forwards[served].top(), backlog_end_s_[slot.first_anchor + served]};
    };
    // An anchor micro-batch of several samples is completed before the next one is begun. It cannot start
    // with a part of its inputs, and two that are half complete could fill the window and block each other.
    if (slot.target >= 0 && machine_.instance().shape(machine_.instance().anchor).micro_batch > 1) {
        const std::size_t served = machine_.node(slot.target).group - slot.first_anchor;
        skip_sequence(served);
        const NodeQueue& queue = slot.forwards[served];
        if (!queue.empty() && anchor_node(machine_.node(queue.top())) == slot.target) return forward(served);
    }
    while (slot.runs_dry_s.smallest() < MinTree::kNone) {
        const std::size_t served = slot.runs_dry_s.smallest_index();
        const double before = slot.runs_dry_s.smallest();
        // Skipping may have emptied the queue, and then another group is next. Each turn of the loop
        // removes a node or returns, so that it ends.
        skip_sequence(served);
        if (slot.runs_dry_s.smallest_index() == served && slot.runs_dry_s.smallest() == before)
            return forward(served);
    }
    return {};
}

Choice StarveFirst::choose(int lane, double now) {
    NearestToLoss nearest;
    const auto& slots = on_lane_[lane];
    for (const int s : slots) {
        Slot& slot = slots_[s];
        const Forward forward = lists_.in_turn(slot.stage, slot.group) ? best_forward(slot) : Forward{};
        Choice mine{forward.node, Phase::forward};
        // The window is the group's, so that a full one holds back all of its forwards.
        if (mine.node >= 0 && !machine_.window_open(machine_.node(mine.node))) mine.node = -1;
        // A backward frees a place in the window and ends the step sooner, but while a group starves a
        // forward is worth more.
        if (lists_.fixed(slot.stage)) {
            const Choice backward{lists_.next_backward(slot.stage, slot.group), Phase::backward};
            if (backward.node >= 0 && machine_.can_start(backward)) mine = backward;
        } else if (!slot.backwards.empty() &&
                   (slot.loss || mine.node < 0 || slots.size() > 1 || forward.starves_s - now >= rule_.fed_s))
            mine = {slot.backwards.top(), Phase::backward};
        nearest.offer(mine, slot.loss);
    }
    return nearest.best();
}

}  // namespace maestro::schedule
