// How a sub-problem executes a solution: search.hpp.
#include <algorithm>

#include "schedule/execution/parts.hpp"
#include "schedule/policies/search.hpp"

namespace maestro::schedule {

/// Sets the sets of all samples, in the order of on_.
void SubProblem::assign_sets(const Solution& solution) {
    set_of_.resize(samples());
    SetAssignment sets(instance_);
    for (int a = 0; a < anchors_; ++a)
        for (const int item : on_[a])
            for (const int i : cut_of(solution).items.samples(item)) {
                if (solution.set_of.empty() || solution.set_of[i] == kByLoad) {
                    set_of_[i] = sets.add(i, a);
                    continue;
                }
                set_of_[i] = instance_.sets_of(a).first + solution.set_of[i];
                sets.add_to(set_of_[i], i);
            }
}

/// Sets the micro-batches of all sections. Those of the anchor are the items, if these were cut before. Those
/// of another loss section have samples of one kind, with or without work in other sections: text must not
/// wait for pictures. Upstream micro-batches have one sample (`one_by_one`) or are cut from upstream_.
void SubProblem::compose(const Solution& solution, bool one_by_one, std::vector<Batches>& batches) {
    const Cut& cut = cut_of(solution);
    batches.resize(instance_.sections());
    on_.resize(anchors_);
    for (auto& list : on_) list.clear();
    for (const int item : solution.order) on_[solution.group_of[item]].push_back(item);
    assign_sets(solution);
    for (int s = 0; s < instance_.sections(); ++s) {
        Batches& section_batches = batches[s];
        section_batches.samples.clear();
        section_batches.ends.clear();
        section_batches.group_ends.assign(1, 0);
        const int stage = instance_.last_stage(s);
        const StageShape& shape = instance_.shape(stage);
        if (cut.made && stage == instance_.anchor) {
            for (const auto& items : on_) {
                for (const int item : items) {
                    for (const int i : cut.items.samples(item)) section_batches.samples.push_back(i);
                    section_batches.close_batch();
                }
                section_batches.close_group();
            }
            continue;
        }
        const bool mixed = shape.loss && shape.micro_batch > 1;
        lists_.resize(shape.groups);
        if (!shape.loss && !one_by_one) {
            std::copy(upstream_[s].begin(), upstream_[s].end(), lists_.begin());
        } else {
            for (auto& list : lists_) list.clear();
            for (const auto& items : on_)
                for (const int item : items)
                    for (const int i : cut.items.samples(item))
                        if (instance_.active[instance_.at(stage, i)])
                            lists_[instance_.group_of(stage, set_of_[i])].push_back(i);
        }
        for (auto& list : lists_) {
            const auto other_work = [&](int i) { return instance_.other_work[i]; };
            if (mixed)
                std::stable_partition(list.begin(), list.end(), [&](int i) { return other_work(i) != 0; });
            const int size = one_by_one && !shape.loss ? 1 : shape.micro_batch;
            int filled = 0;
            for (std::size_t k = 0; k < list.size(); ++k) {
                const bool other_kind = mixed && filled > 0 && other_work(list[k]) != other_work(list[k - 1]);
                // Sample by sample, single_ has the same micro-batches of the anchor, so that its machine
                // identifies them.
                const bool other_bundle = solution.rule.aligned && !one_by_one && !shape.loss && filled > 0 &&
                                          single_trial_->machine.node_of(instance_.entry, list[k]) !=
                                              single_trial_->machine.node_of(instance_.entry, list[k - 1]);
                if (filled == size || other_kind || other_bundle) {
                    section_batches.close_batch();
                    filled = 0;
                }
                section_batches.samples.push_back(list[k]);
                ++filled;
            }
            if (filled > 0) section_batches.close_batch();
            section_batches.close_group();
        }
    }
    assign_parts(one_by_one && bundles_ ? single_ : instance_, Sharing::by_cost, batches);
}

double SubProblem::run(Trial& trial, const DispatchRule& rule, bool in_order) {
    trial.machine.build(trial.batches);
    const std::span<const Node> nodes = trial.machine.nodes();
    priority_.resize(nodes.size());
    // A micro-batch is as urgent as the first of its samples in the order of the solution.
    for (std::size_t n = 0; n < nodes.size(); ++n) priority_[n] = place_[nodes[n].first_sample];
    trial.chooser.begin(rule, priority_, in_order);
    trial.executed.clear();
    return trial.machine.run(trial.chooser, &trial.executed);
}

Outcome SubProblem::execute(const Solution& solution) {
    Outcome outcome;
    place_.resize(samples());
    for (std::size_t k = 0; k < solution.order.size(); ++k)
        for (const int i : cut_of(solution).items.samples(solution.order[k])) place_[i] = static_cast<int>(k);
    if (bundles_) {
        // Upstream sections work sample by sample first; the order that results is cut into micro-batches.
        // Which samples should travel together is only known once it is known when each is needed.
        compose(solution, true, single_trial().batches);
        if (run(single_trial(), solution.rule, false) == kNever) return outcome;
        for (auto& section : upstream_)
            for (auto& group : section) group.clear();
        for (const Executed& e : single_trial_->executed) {
            const Node& n = single_trial_->machine.node(e.node);
            if (e.phase == Phase::forward && instance_.first_of_section(n.stage))
                upstream_[instance_.section_of(n.stage)][n.group].push_back(n.first_sample);
        }
    }
    compose(solution, !bundles_, trial().batches);
    outcome.makespan_s = run(trial(), solution.rule, bundles_);
    if (outcome.makespan_s != kNever) judge(trial(), outcome);
    return outcome;
}

void SubProblem::judge(const Trial& trial, Outcome& outcome) {
    const Machine& machine = trial.machine;
    outcome.idle_s.assign(anchors_, 0.0);
    outcome.tail_s.assign(anchors_, 0.0);
    std::vector<double> work(anchors_, 0.0);
    std::vector<int> last(anchors_, -1);
    end_.assign(machine.nodes().size(), 0.0);
    for (const Executed& e : trial.executed) {
        const Node& n = machine.node(e.node);
        // Tasks of a lane come in the order of their start: what stays is the end of a node's backward, and
        // the last task of a group.
        end_[e.node] = e.end_s;
        const int a = n.group;
        // A pipeline works at the rate of its longest stage, and ends with the backwards of its first.
        for (const int stage : instance_.bottleneck)
            if (n.stage == stage) work[a] += e.end_s - e.start_s;
        if (n.stage != instance_.entry) continue;
        outcome.idle_s[a] = e.end_s;
        last[a] = e.node;
    }
    // Until the end of the loop, idle_s holds the ends of the groups.
    double latest = -1;
    for (int a = 0; a < anchors_; ++a) {
        if (last[a] >= 0)
            for (const Link& up : machine.upstream(machine.node(last[a])))
                outcome.tail_s[a] = std::max(outcome.tail_s[a], end_[up.node] - outcome.idle_s[a]);
        if (outcome.idle_s[a] + outcome.tail_s[a] > latest) {
            latest = outcome.idle_s[a] + outcome.tail_s[a];
            outcome.last_group = a;
        }
        outcome.ends_s += outcome.idle_s[a] / anchors_;
        outcome.idle_s[a] -= work[a];
    }
}

}  // namespace maestro::schedule
