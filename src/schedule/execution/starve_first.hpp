// StarveFirst: the list scheduling by which the wavefront policy executes a step.
#pragma once

#include <algorithm>
#include <vector>

#include "schedule/execution/choosers.hpp"
#include "schedule/execution/machine.hpp"
#include "schedule/execution/stage_lists.hpp"
#include "schedule/problem/min_tree.hpp"

namespace maestro::schedule {

/// Parameters of StarveFirst, which the search varies.
struct DispatchRule {
    /// An upstream group runs backwards once every anchor group that still waits for it has a backlog of
    /// at least this many seconds; until then it runs forwards for the one with the smallest backlog.
    double fed_s = 0;
    bool count_text = false;  ///< samples without work upstream count in the backlog
    bool fair = false;        ///< an anchor group may hold no more than its share of an upstream window
    bool aligned =
        false;  ///< no upstream micro-batch has samples of two anchor micro-batches (SubProblem::compose)
    bool apart = false;   ///< sources choose independently instead of following one sequence
    bool strict = false;  ///< anchor groups keep their order, even where a later micro-batch is ready
};

/// Work-conserving list scheduling by priority. An anchor group starts the ready micro-batch with the
/// lowest priority value; an upstream group works for the anchor group that would starve first, which is
/// the rule of starvation avoidance (Glassey and Resende, "Closed-loop job release control for VLSI circuit
/// manufacturing", 1988). Sources that serve the same anchor groups follow one sequence, so that the inputs
/// of a micro-batch arrive at about the same time. Of a pipeline the first stage chooses, and the others
/// follow (StageLists), as do the chunks of a lane; it starves when its fullest lane would have nothing to
/// do.
class StarveFirst {
public:
    static constexpr bool kBackwardFollows = true;
    explicit StarveFirst(const Machine& machine);
    /// Call before every run. `priority`: [node], lowest first, kept by reference; the nodes of an anchor
    /// group are numbered in that order. `in_order`: upstream sections run their forwards in the order of
    /// their nodes.
    void begin(const DispatchRule& rule, const std::vector<int>& priority, bool in_order);
    void ready(int node, Phase phase, double now);
    void started(const Choice& choice, double end_s);
    Choice choose(int lane, double now);

private:
    struct Slot {  ///< a group of a stage
        int stage = 0, group = 0;
        bool loss = false;     ///< of a section with a loss
        bool anchor = false;   ///< the first stage of the anchor's section
        bool follows = false;  ///< a later stage of its section
        int chunks = -1;       ///< the slot of its lane's first chunk, which has the backwards of all chunks
        int first_anchor = 0;  ///< the first of the anchor groups that an upstream group serves
        std::vector<NodeQueue> forwards;  ///< [anchor group - first_anchor]; a loss section has one
        MinTree runs_dry_s;               ///< likewise: runs_dry_s() of those that it can work for
        NodeQueue backwards;
        int next = -1;             ///< the next forward where their order is fixed, otherwise -1
        int left = 0;              ///< nodes whose forward has not started
        int target = -1;           ///< anchor node whose inputs are about to be complete
        int sources = -1;          ///< of a source: which of sources_ it belongs to
        std::size_t followed = 0;  ///< how far it is in the sequence of its sources
        int quota = 0;             ///< limit of `held`; 0: none
        std::vector<int> held;     ///< [anchor group - first_anchor], samples in flight
    };
    struct Sources {                ///< source groups that serve the same anchor groups
        std::vector<int> sequence;  ///< anchor nodes in the order in which they get their inputs
    };
    struct Forward {
        int node = -1;
        double starves_s = 0;  ///< when the backlog of the anchor group that it is for ends
    };
    bool in_line(const Slot& slot) const { return slot.sources >= 0 && !rule_.apart; }
    /// Counts the samples that an upstream group has in flight for an anchor group.
    void hold(const Node& n, int change);
    Forward best_forward(Slot& slot);
    Forward next_in_sequence(Slot& slot);
    Forward smallest_backlog(Slot& slot);
    Slot& slot_of(const Node& n) { return slots_[first_slot_[n.stage] + n.group]; }
    /// Returns whether a micro-batch, a node of the anchor's first stage, counts in the backlog once its
    /// inputs are there.
    bool counts(const Node& n) const { return rule_.count_text || n.up_first < n.up_last; }
    /// Consumers of micro-batches that have no backward give their places in the window free.
    void release_upstream(const Slot& slot, const Node& n);
    /// Returns in which order a backward is taken.
    int order_of(int node, const Node& n) const {
        return machine_.instance().shape(n.stage).pipelined() ? lists_.backward_turn(n) : (*priority_)[node];
    }
    /// Adds a node whose inputs have arrived to the backlog of its anchor group.
    void extend_backlog(const Node& n, double now);
    /// Returns when an anchor group will have done what has arrived and what is in a sequence.
    double runs_dry_s(std::size_t anchor) const { return backlog_end_s_[anchor] + announced_s_[anchor]; }
    /// Called when an upstream group may have become able or unable to work for an anchor group.
    void refresh(Slot& slot, std::size_t served);
    void refresh_all(int anchor);
    /// Returns the node of the anchor's first stage that has a micro-batch's first sample.
    int anchor_node(const Node& n) const {
        return machine_.node_of(machine_.instance().entry, n.first_sample);
    }

    const Machine& machine_;
    DispatchRule rule_;
    const std::vector<int>* priority_ = nullptr;
    std::vector<Slot> slots_;
    std::vector<int> first_slot_;             ///< [stage]
    std::vector<std::vector<int>> on_lane_;   ///< [lane], slots
    std::vector<std::vector<int>> upstream_;  ///< [anchor group], slots that serve it
    std::vector<double> backlog_end_s_;       ///< [anchor group], when it will have done what has arrived
    std::vector<double> announced_s_;         ///< [anchor group], work in sequences that has not arrived
    std::vector<Sources> sources_;
    std::vector<char> in_sequence_;  ///< [node], of the anchor's first stage
    StageLists lists_;
};

}  // namespace maestro::schedule
