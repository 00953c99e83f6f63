// How a free lane of the machine chooses its next task: by a fixed order, what is ready of one, strictly in
// the order of each section's list, or starve-first.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "schedule/machine.hpp"
#include "schedule/ready_agenda.hpp"

namespace maestro::schedule {

/// Nodes by priority, the least first. A sorted list: most arrive in order, and few wait at a time.
class NodeQueue {
public:
    void clear() {
        nodes_.clear();
        first_ = 0;
    }
    bool empty() const { return first_ == nodes_.size(); }
    int top() const { return nodes_[first_].second; }
    void push(int priority, int node);
    void pop() { ++first_; }

private:
    std::vector<std::pair<int, int>> nodes_;  ///< priority and node; those from first_ on
    std::size_t first_ = 0;
};

/// Replays agendas: every lane its own in strict order, each as early as it may start.
class FixedOrder {
public:
    static constexpr bool kBackwardFollows = false;
    FixedOrder(const Machine& machine, std::vector<std::vector<Choice>> agendas)
        : machine_(machine), agendas_(std::move(agendas)), next_(agendas_.size(), 0) {}
    void ready(int, Phase, double) {}
    void started(const Choice&, double) {}
    Choice choose(int lane, double) {
        auto& at = next_[lane];
        const auto& list = agendas_[lane];
        if (at == list.size() || !machine_.can_start(list[at])) return {};
        return list[at++];
    }

private:
    const Machine& machine_;
    std::vector<std::vector<Choice>> agendas_;
    std::vector<std::size_t> next_;
};

/// Every lane starts what is ready (ready_agenda.hpp).
class ReadyOrder {
public:
    static constexpr bool kBackwardFollows = false;
    /// `tasks`: the plan's agendas, kept by reference; `agendas`: the same as nodes.
    ReadyOrder(const Machine& machine, const std::vector<std::vector<Task>>& tasks,
               std::vector<std::vector<Choice>> agendas);
    void ready(int, Phase, double) {}
    void started(const Choice&, double) {}
    Choice choose(int lane, double now);

private:
    const Machine& machine_;
    std::vector<std::vector<Choice>> agendas_;
    std::vector<ReadyAgenda> open_;
};

/// Every section in the order of its list: a loss section runs each backward at once, an upstream section
/// forwards before backwards unless its window is full. On shared lanes the section nearest to the loss goes
/// first.
class ListOrder {
public:
    static constexpr bool kBackwardFollows = true;
    explicit ListOrder(const Machine& machine);
    void ready(int node, Phase phase, double now);
    void started(const Choice& choice, double end_s);
    Choice choose(int lane, double now);

private:
    struct Slot {  ///< a replica of a section
        bool loss = false;
        int next = 0, end = 0;  ///< nodes not yet forward
        NodeQueue backwards;
    };
    const Machine& machine_;
    std::vector<std::vector<Slot>> on_lane_;  ///< [lane], slots by colour
    Slot& slot_of(const Node& n);
};

/// What starve-first may be told.
struct Rule {
    /// An upstream replica runs backwards once each anchor replica that still waits for it has work for this
    /// long, seconds; before that it feeds the one that would starve first.
    double fed_s = 0;
    bool count_text = false;  ///< does work that skips the upstream sections count as food?
    bool fair = false;        ///< no anchor replica may hold more than its part of an upstream window
    bool aligned = false;     ///< upstream micro-batches do not reach over two of the anchor (search.cpp)
    bool apart = false;       ///< sources choose apart, instead of following one sequence
    bool strict = false;  ///< anchor replicas wait for the next of their order, also where another is ready
};

/// Work-conserving list scheduling by priority. An anchor replica starts the ready micro-batch of the least
/// priority value; an upstream replica feeds the anchor replica that would starve first. Sources that serve
/// the same anchor replicas follow one sequence, so that a micro-batch's inputs arrive about together.
class StarveFirst {
public:
    static constexpr bool kBackwardFollows = true;
    explicit StarveFirst(const Machine& machine);
    /// Before every run. `priority`: [node], smaller first, kept by reference; nodes of an anchor replica are
    /// numbered in that order. `in_order`: upstream sections forward strictly in the order of their nodes.
    void begin(const Rule& rule, const std::vector<int>& priority, bool in_order);
    void ready(int node, Phase phase, double now);
    void started(const Choice& choice, double end_s);
    Choice choose(int lane, double now);

private:
    struct Slot {
        int section = 0, replica = 0;
        bool loss = false, anchor = false;
        int first_anchor = 0;             ///< anchor replicas that an upstream replica works for
        std::vector<NodeQueue> forwards;  ///< by anchor replica; a loss section: one
        NodeQueue backwards;
        int next = -1;             ///< node to forward where they keep their order; -1: free choice
        int left = 0;              ///< nodes not yet forward
        int target = -1;           ///< anchor node whose inputs it is about to complete
        int family = -1;           ///< of a source: those that serve the same anchor replicas
        std::size_t followed = 0;  ///< of the family's sequence
        int quota = 0;             ///< samples in flight for an anchor replica at most; 0: no limit
        std::vector<int> held;     ///< [anchor replica - first_anchor], samples in flight
    };
    struct Family {
        int first_anchor = 0, anchors = 0;
        std::vector<int> sequence;  ///< anchor nodes, in the order in which they are fed
    };
    struct Forward {
        int node = -1;
        double starves_s = 0;  ///< when the anchor replica that it is for runs out of work
    };
    bool follows(const Slot& slot) const { return slot.family >= 0 && !rule_.apart; }
    /// Counts what an upstream replica has in flight for an anchor replica.
    void hold(const Node& n, int change);
    Forward best_forward(Slot& slot);
    Forward next_in_sequence(Slot& slot);
    Forward hungriest(Slot& slot);
    Slot& slot_of(const Node& n) { return slots_[first_slot_[n.section] + n.replica]; }
    bool counts(const Node& n) const { return rule_.count_text || n.up_first < n.up_last; }
    /// The replica of the anchor node will have it to work on.
    void eat_later(const Node& n, double now) {
        double& food = food_s_[n.replica];
        food = std::max(food, now) + n.forward_s + n.backward_s;
        double& sent = sent_s_[n.replica];
        sent = std::max(0.0, sent - n.forward_s - n.backward_s);
    }
    int anchor_node(const Node& n) const {
        return machine_.node_of(machine_.instance().anchor, n.first_sample);
    }

    const Machine& machine_;
    Rule rule_;
    const std::vector<int>* priority_ = nullptr;
    std::vector<Slot> slots_;
    std::vector<int> first_slot_;            ///< [section]
    std::vector<std::vector<int>> on_lane_;  ///< [lane], slots
    std::vector<double> food_s_;             ///< [anchor replica], when it would run out of work
    std::vector<double> sent_s_;             ///< [anchor replica], work in sequences that is not yet food
    std::vector<Family> families_;
    std::vector<char> in_sequence_;  ///< [node], of the anchor
};

}  // namespace maestro::schedule
