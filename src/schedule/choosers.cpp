#include "schedule/choosers.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace maestro::schedule {

void NodeQueue::push(int priority, int node) {
    const std::pair<int, int> entry(priority, node);
    if (empty()) clear();
    if (empty() || nodes_.back() < entry) {
        nodes_.push_back(entry);
        return;
    }
    const auto begin = nodes_.begin() + first_;
    const auto place = std::upper_bound(begin, nodes_.end(), entry);
    if (place == begin && first_ > 0)
        nodes_[--first_] = entry;
    else
        nodes_.insert(place, entry);
}

namespace {

/// Of the sections that share a lane the one nearest to the loss goes first: what frees memory and feeds the
/// others' backwards.
class NearestToLoss {
public:
    void offer(const Choice& choice, bool loss) {
        const int order = (loss ? 0 : 2) + (choice.phase == Phase::forward ? 1 : 0);
        if (choice.node < 0 || order >= order_) return;
        best_ = choice;
        order_ = order;
    }
    Choice best() const { return best_; }

private:
    Choice best_;
    int order_ = 4;
};

}  // namespace

ReadyOrder::ReadyOrder(const Machine& machine, const std::vector<std::vector<Task>>& tasks,
                       std::vector<std::vector<Choice>> agendas)
    : machine_(machine), agendas_(std::move(agendas)) {
    std::vector<bool> sends;
    for (const SectionShape& shape : machine.instance().sections) sends.push_back(!shape.loss);
    for (const auto& agenda : tasks) open_.emplace_back(agenda, sends);
}

Choice ReadyOrder::choose(int lane, double) {
    ReadyAgenda& open = open_[lane];
    const auto& own = agendas_[lane];
    const auto next = open.next([&](std::size_t place) { return machine_.can_start(own[place]); });
    if (!next) return {};
    open.start(*next);
    return own[*next];
}

ListOrder::ListOrder(const Machine& machine) : machine_(machine) {
    const Instance& instance = machine.instance();
    on_lane_.resize(instance.lanes);
    for (std::size_t s = 0; s < instance.sections.size(); ++s)
        for (int r = 0; r < instance.sections[s].replicas; ++r)
            on_lane_[instance.sections[s].first_lane + r].push_back(
                {.loss = instance.sections[s].loss,
                 .next = machine.first_node(static_cast<int>(s), r),
                 .end = machine.first_node(static_cast<int>(s), r + 1),
                 .backwards = {}});
}

ListOrder::Slot& ListOrder::slot_of(const Node& n) {
    // Lanes hold their sections in the order of colours.
    std::size_t at = 0;
    const Instance& instance = machine_.instance();
    for (int s = 0; s < n.section; ++s)
        if (const SectionShape& shape = instance.shape(s);
            n.lane >= shape.first_lane && n.lane < shape.first_lane + shape.replicas)
            ++at;
    return on_lane_[n.lane][at];
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
    for (Slot& slot : slots) {
        Choice mine{slot.next, Phase::forward};
        if (slot.next == slot.end || !machine_.can_start(mine)) mine.node = -1;
        if (!slot.backwards.empty() && (slot.loss || mine.node < 0 || slots.size() > 1))
            mine = {slot.backwards.top(), Phase::backward};
        nearest.offer(mine, slot.loss);
    }
    return nearest.best();
}

StarveFirst::StarveFirst(const Machine& machine) : machine_(machine) {
    const Instance& instance = machine.instance();
    const int anchors = instance.shape(instance.anchor).replicas;
    on_lane_.resize(instance.lanes);
    for (std::size_t s = 0; s < instance.sections.size(); ++s) {
        first_slot_.push_back(static_cast<int>(slots_.size()));
        const SectionShape& shape = instance.sections[s];
        for (int r = 0; r < shape.replicas; ++r) {
            Slot slot;
            slot.section = static_cast<int>(s);
            slot.replica = r;
            slot.loss = shape.loss;
            slot.anchor = static_cast<int>(s) == instance.anchor;
            slot.first_anchor = (r * anchors + shape.replicas - 1) / shape.replicas;
            const int last = ((r + 1) * anchors + shape.replicas - 1) / shape.replicas;
            slot.forwards.resize(shape.loss ? 1 : std::max(last - slot.first_anchor, 1));
            const bool source = std::none_of(instance.edges.begin(), instance.edges.end(),
                                             [&](const EdgeShape& e) { return e.to == static_cast<int>(s); });
            if (source && !shape.loss) {
                const Family own{slot.first_anchor, last - slot.first_anchor, {}};
                const auto same = std::find_if(families_.begin(), families_.end(), [&](const Family& f) {
                    return f.first_anchor == own.first_anchor && f.anchors == own.anchors;
                });
                slot.family = static_cast<int>(same - families_.begin());
                if (same == families_.end()) families_.push_back(own);
            }
            on_lane_[shape.first_lane + r].push_back(static_cast<int>(slots_.size()));
            slots_.push_back(std::move(slot));
        }
    }
}

void StarveFirst::begin(const Rule& rule, const std::vector<int>& priority, bool in_order) {
    rule_ = rule;
    priority_ = &priority;
    const Instance& instance = machine_.instance();
    food_s_.assign(instance.shape(instance.anchor).replicas, 0.0);
    sent_s_ = food_s_;
    in_sequence_.assign(machine_.nodes().size(), 0);
    for (Family& family : families_) family.sequence.clear();
    for (Slot& slot : slots_) {
        slot.followed = 0;
        const SectionShape& shape = instance.shape(slot.section);
        const auto served = static_cast<int>(slot.forwards.size());
        slot.quota = 0;
        if (rule.fair && !slot.loss && shape.window > 0)
            slot.quota = std::max((shape.window_samples() + served - 1) / served,
                                  instance.shape(instance.anchor).micro_batch);
        if (slot.quota > 0) slot.held.assign(slot.forwards.size(), 0);
        for (NodeQueue& queue : slot.forwards) queue.clear();
        slot.backwards.clear();
        slot.target = -1;
        slot.next = -1;
        slot.left = machine_.first_node(slot.section, slot.replica + 1) -
                    machine_.first_node(slot.section, slot.replica);
        if (!(slot.anchor ? rule.strict : in_order && !slot.loss)) continue;
        slot.next = machine_.first_node(slot.section, slot.replica);
    }
}

void StarveFirst::ready(int node, Phase phase, double now) {
    const Node& n = machine_.node(node);
    Slot& slot = slot_of(n);
    const int priority = (*priority_)[node];
    if (phase == Phase::backward) {
        slot.backwards.push(priority, node);
        return;
    }
    if (slot.loss) {
        if (slot.next < 0) slot.forwards.front().push(priority, node);
        if (slot.anchor && counts(n)) eat_later(n, now);
        return;
    }
    if (slot.next >= 0) return;
    const int anchor = machine_.node(anchor_node(n)).replica - slot.first_anchor;
    slot.forwards[anchor].push(priority, node);
}

void StarveFirst::started(const Choice& choice, double end_s) {
    const Node& n = machine_.node(choice.node);
    Slot& slot = slot_of(n);
    if (choice.phase == Phase::backward) {
        slot.backwards.pop();
        hold(n, -1);
        return;
    }
    --slot.left;
    if (!slot.loss) hold(n, 1);
    if (slot.loss) {
        if (slot.anchor)
            for (const Link& up : machine_.upstream(n))
                if (!machine_.node(up.node).has_backward) hold(machine_.node(up.node), -1);
        if (slot.next >= 0)
            ++slot.next;
        else
            slot.forwards.front().pop();
        if (!slot.anchor) return;
        if (!counts(n)) eat_later(n, end_s - n.forward_s);
    } else if (slot.next >= 0) {
        ++slot.next;
    } else {
        slot.target = anchor_node(n);
        const Node& anchor = machine_.node(slot.target);
        if (!follows(slot)) {
            slot.forwards[anchor.replica - slot.first_anchor].pop();
        } else if (char& known = in_sequence_[slot.target]; !known) {
            known = 1;
            families_[slot.family].sequence.push_back(slot.target);
            sent_s_[anchor.replica] += anchor.forward_s + anchor.backward_s;
        }
    }
}

void StarveFirst::hold(const Node& n, int change) {
    Slot& slot = slot_of(n);
    if (slot.quota > 0) slot.held[machine_.node(anchor_node(n)).replica - slot.first_anchor] += change;
}

StarveFirst::Forward StarveFirst::best_forward(Slot& slot) {
    if (slot.left == 0) return {};
    if (slot.next >= 0) {
        if (!machine_.can_start({slot.next, Phase::forward})) return {};
        if (slot.loss) return {slot.next, 0};
        const int anchor = machine_.node(anchor_node(machine_.node(slot.next))).replica;
        return {slot.next, food_s_[anchor]};
    }
    if (slot.loss) {
        if (slot.forwards.front().empty()) return {};
        return {slot.forwards.front().top(), 0};
    }
    return follows(slot) ? next_in_sequence(slot) : hungriest(slot);
}

StarveFirst::Forward StarveFirst::next_in_sequence(Slot& slot) {
    std::vector<int>& sequence = families_[slot.family].sequence;
    for (; slot.followed < sequence.size(); ++slot.followed) {
        const Node& anchor = machine_.node(sequence[slot.followed]);
        for (const int sample : machine_.samples_of(anchor)) {
            const int node = machine_.node_of(slot.section, sample);
            if (node >= 0 && !machine_.node(node).started) return {node, food_s_[anchor.replica]};
        }
    }
    return hungriest(slot);
}

/// The first node of the anchor replica that runs out of work first, once what is sent has arrived.
StarveFirst::Forward StarveFirst::hungriest(Slot& slot) {
    Forward best;
    double least = std::numeric_limits<double>::infinity();
    const bool bundles = machine_.instance().shape(machine_.instance().anchor).micro_batch > 1;
    for (std::size_t h = 0; h < slot.forwards.size(); ++h) {
        const std::size_t anchor = slot.first_anchor + h;
        const double runs_out = food_s_[anchor] + sent_s_[anchor];
        if (runs_out >= least && !bundles) continue;
        NodeQueue& queue = slot.forwards[h];
        while (follows(slot) && !queue.empty() && in_sequence_[anchor_node(machine_.node(queue.top()))])
            queue.pop();
        if (queue.empty()) continue;
        const int node = queue.top();
        const bool completes = bundles && slot.target >= 0 && anchor_node(machine_.node(node)) == slot.target;
        if (!completes && (runs_out >= least || (slot.quota > 0 && slot.held[h] >= slot.quota))) continue;
        best = {node, food_s_[anchor]};
        least = runs_out;
        if (completes) break;
    }
    return best;
}

Choice StarveFirst::choose(int lane, double now) {
    NearestToLoss nearest;
    const auto& own = on_lane_[lane];
    for (const int s : own) {
        Slot& slot = slots_[s];
        const Forward forward = best_forward(slot);
        Choice mine{forward.node, Phase::forward};
        if (mine.node >= 0 && !machine_.window_open(machine_.node(mine.node))) mine.node = -1;
        if (!slot.backwards.empty() &&
            (slot.loss || mine.node < 0 || own.size() > 1 || forward.starves_s - now >= rule_.fed_s))
            mine = {slot.backwards.top(), Phase::backward};
        nearest.offer(mine, slot.loss);
    }
    return nearest.best();
}

}  // namespace maestro::schedule
