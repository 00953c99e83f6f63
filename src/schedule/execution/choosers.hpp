// How a free lane of the machine chooses its next task: the next of a fixed order, the first of that order
// that is ready, or the next of each section's list. StarveFirst (starve_first.hpp) is another one.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "schedule/execution/machine.hpp"
#include "schedule/execution/ready_agenda.hpp"

namespace maestro::schedule {

/// A priority queue of nodes, the lowest priority value first. It is a sorted list, because most nodes arrive
/// in order and few wait at a time.
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

/// Of the sections that share a lane the one nearest to the loss goes first, because its tasks free memory
/// and are inputs of the other sections' backwards.
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

/// Executes agendas: every lane keeps the order of its agenda and starts each task as early as it can.
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

/// Every lane starts the first task of its agenda that is ready, by the rules of ReadyAgenda.
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

/// Every section keeps the order of its micro-batches. A stage with a loss runs each backward right after its
/// forward, a stage of a pipeline runs a backward as soon as it can start. Any other upstream stage runs
/// forwards before backwards unless its window is full. The chunks of a lane are interleaved as
/// interleaving.hpp says: forwards in the order of its list, and in a section with a loss backwards as well.
/// Elsewhere backwards depend on what other sections do and are not held to a place among the forwards. On
/// shared lanes the section nearest to the loss goes first.
class ListOrder {
public:
    static constexpr bool kBackwardFollows = true;
    /// `at_once`: chunks are interleaved over at most so many micro-batches. In a section with a loss others
    /// begin only when these are done.
    explicit ListOrder(const Machine& machine, int at_once = std::numeric_limits<int>::max());
    void ready(int node, Phase phase, double now);
    void started(const Choice& choice, double end_s);
    Choice choose(int lane, double now);

private:
    struct Slot {  ///< a section on a lane: one stage of a group, or several chunks
        int section = 0;
        bool pipelined = false;
        bool fixed = false;         ///< `tasks` has the backwards too; otherwise forwards alone
        std::vector<Choice> tasks;  ///< in their order
        std::size_t next = 0;       ///< the first of them that has not started
        NodeQueue backwards;        ///< those that can start
    };
    void interleave(Slot& slot, int stage, int group, int at_once);
    Slot& slot_of(const Node& n);

    const Machine& machine_;
    std::vector<std::vector<Slot>> on_lane_;  ///< [lane], in the order of the sections
    std::vector<int> turn_;                   ///< [node], the order of backwards among a lane's chunks
};

}  // namespace maestro::schedule
