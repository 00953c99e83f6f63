#include "schedule/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "schedule/placement.hpp"

namespace maestro::schedule {

namespace {

constexpr double kSame = 1e-9;         ///< relative; makespans that differ by less, as by rounding, are equal
constexpr std::size_t kAnnealed = 96;  ///< groups of up to so many samples are annealed
constexpr double kTemperature = 0.03;  ///< at the start, of the makespan
/// How much longer a kept change may make the schedule on average, of the temperature; the draw is
/// exponential.
constexpr double kPrice = 0.3;

/// How many of nine random changes are of each kind, in this order. The last two kinds, changes of replicas,
/// need a second replica. Exchanges are more frequent than single changes, because they leave loads about
/// level.
constexpr int kExchangePlaces = 2, kMovePlace = 2, kOtherRule = 1, kExchangeReplicas = 3, kOtherReplica = 1;
constexpr int kOfOrder = kExchangePlaces + kMovePlace, kOfRule = kOfOrder + kOtherRule;
constexpr int kAllKinds = kOfRule + kExchangeReplicas + kOtherReplica;
/// DispatchRule::fed_s to draw from, in mean tasks of the anchor: from backwards first to forwards first.
constexpr std::array<double, 6> kFed{0, 0.5, 1, 2, 4, 1e9};
constexpr int kSeldom = 4;  ///< one of so many rules lets sources choose independently

/// Returns the instance with upstream micro-batches of one sample, whose windows hold as many samples as
/// before.
Instance singly(Instance instance) {
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        if (instance.of_loss(s)) continue;
        StageShape& shape = instance.stages[s];
        shape.window = shape.window_samples();
        shape.micro_batch = 1;
    }
    return instance;
}

}  // namespace

bool Outcome::better_than(const Outcome& o) const {
    if (makespan_s < o.makespan_s * (1 - kSame)) return true;
    // Most changes leave the makespan as it is, because another replica ends last. Earlier ends of the others
    // give later changes room, and lead the search across such plateaus.
    return makespan_s <= o.makespan_s * (1 + kSame) && ends_s < o.ends_s * (1 - kSame);
}

std::vector<ConstructionRule> construction_rules(const Problem& problem) {
    bool windows = false, pipeline = false;
    const int anchor = anchor_stage(problem);
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& shape = problem.stages[s];
        pipeline = pipeline || (shape.section == problem.stages[anchor].section && shape.pipelined());
        windows = windows || (!problem.of_loss(shape.section) && shape.window > 0);
    }
    std::vector<ConstructionRule> all;
    // The order counts: with many samples a group tries only the first few. Without windows there is nothing
    // of which anchor replicas could have fair shares.
    if (pipeline)
        for (const double fed : {kNever, 1.0})
            for (int order = kOrders; order < kOrders + kPlacements; ++order)
                for (const Kinds kinds : {Kinds::together, Kinds::apart})
                    all.push_back({.kinds = kinds, .order = order, .fed = fed, .strict = true});
    for (const double fed : {1.0, 3.0, kNever, 0.0})
        for (int order = 0; order < kOrders; ++order)
            for (const bool fair : {false, true})
                if (windows || !fair) all.push_back({.order = order, .fed = fed, .fair = fair});
    return all;
}

Group::Group(Instance instance, std::uint64_t seed) : instance_(std::move(instance)), random_(seed) {
    const StageShape& anchor = instance_.shape(instance_.anchor);
    anchors_ = anchor.replicas;
    pipeline_ = anchor.pipelined();
    for (int s = 0; s < static_cast<int>(instance_.stages.size()); ++s)
        bundles_ = bundles_ || (!instance_.of_loss(s) && instance_.shape(s).micro_batch > 1);
    if (bundles_) single_ = singly(instance_);
    upstream_.resize(instance_.sections());
    for (const StageShape& shape : instance_.stages) upstream_[shape.section].resize(shape.replicas);
    add_cut(Kinds::apart);
    if (cuts_.back().made) add_cut(Kinds::together);
    starts_.resize(cuts_.size());
}

void Group::add_cut(Kinds kinds) {
    const StageShape& anchor = instance_.shape(instance_.anchor);
    Cut& cut = cuts_.emplace_back();
    cut.items = MicroBatches(samples());
    cut.work = measure(instance_, cut.items);
    cut.spread = spread(cut.work);
    cut.made = pipeline_ && anchor.micro_batch > 1;
    if (cut.made) {
        const std::vector<int> replica_of = cut.spread;
        cut.items = cut_evenly(cut.work.anchor_s, cut.work.other_work, replica_of, anchors_,
                               anchor.micro_batch, kinds);
        cut.work = measure(instance_, cut.items);
        cut.spread.resize(cut.items.size());
        for (std::size_t item = 0; item < cut.items.size(); ++item)
            cut.spread[item] = replica_of[cut.items.samples(item).front()];
    }
    cut.orders = orders(cut.work);
    if (!pipeline_) return;
    // In a pipeline text goes from short to long and back to short, so that neighbours are alike.
    for (auto& order : cut.orders) {
        const auto text = std::stable_partition(order.begin(), order.end(),
                                                [&](int item) { return cut.work.other_work[item] != 0; });
        const std::vector<int> list = rising_and_falling({text, order.end()}, cut.work.anchor_s);
        std::copy(list.begin(), list.end(), text);
    }
    for (auto& order : placements(instance_, cut.items, cut.work, cut.orders.front(), cut.spread))
        cut.orders.push_back(std::move(order));
}

double Group::construct(const ConstructionRule& rule) {
    Solution candidate;
    candidate.cut = rule.kinds == Kinds::apart ? 0 : static_cast<int>(cuts_.size()) - 1;
    const Cut& cut = cut_of(candidate);
    candidate.replica_of = cut.spread;
    candidate.order = cut.orders[rule.order];
    candidate.rule.fed_s = rule.fed * cut.work.mean_s;
    candidate.rule.fair = rule.fair;
    candidate.rule.aligned = rule.aligned;
    candidate.rule.strict = rule.strict;
    const Outcome outcome = execute(candidate);
    if (Start& start = starts_[candidate.cut]; outcome.better_than(start.outcome))
        start = {candidate, outcome};
    if (outcome.better_than(outcome_)) {
        keep(outcome);
        solution_ = candidate;
    }
    return outcome.makespan_s;
}

void Group::construct_aligned(const std::vector<ConstructionRule>& rules) {
    if (!bundles_) return;
    for (ConstructionRule rule : rules) {
        rule.aligned = true;
        construct(rule);
    }
}

bool Group::try_solution(const Solution& solution) {
    const Outcome outcome = execute(solution);
    if (!outcome.better_than(outcome_)) return false;
    keep(outcome);
    solution_ = solution;
    return true;
}

void Group::improve(std::int64_t moves, double enough_s) {
    if (outcome_.makespan_s == kNever) return;
    // Text-only items first, because moving them does not change the order of the upstream sections.
    for (const bool all : {false, true})
        for (bool better = true; better && moves > 0 && outcome_.makespan_s > enough_s; --moves)
            better = try_level(all);
    std::vector<Solution> starts{solution_};
    // Which cut is the better one shows only in the end. Large groups have too few moves for both.
    for (const Start& other : starts_)
        if (other.solution.cut != solution_.cut && other.outcome.makespan_s < kNever &&
            other.solution.order.size() <= kAnnealed)
            starts.push_back(other.solution);
    const std::int64_t share = moves / static_cast<std::int64_t>(starts.size());
    for (const Solution& start : starts) vary(start, share, enough_s);
}

/// Changes a solution `moves` times. Keeps the best so far.
void Group::vary(const Solution& start, std::int64_t moves, double enough_s) {
    if (start.order.size() < 2) return;
    Solution current = start, best = solution_;
    Outcome current_outcome = outcome_;
    if (pipeline_ && moves > 0 && outcome_.makespan_s > enough_s) {
        current = as_executed(start);
        current_outcome = execute(current);
        if (current_outcome.better_than(outcome_)) {
            keep(current_outcome);
            best = current;
        }
    }
    // Simulated annealing (Kirkpatrick et al. 1983) of small groups; large ones have too few moves to recover
    // from a worse solution, and are improved by descent. The best solution is kept beside the current one,
    // so that the result is never worse than the start.
    const bool anneal = current.order.size() <= kAnnealed;
    const std::int64_t all = moves;
    for (; moves > 0 && outcome_.makespan_s > enough_s; --moves) {
        const Solution candidate = varied(current, current_outcome.last_replica);
        const Outcome outcome = execute(candidate);
        // A change that lengthens the schedule by d is accepted with probability exp(-d / T), by the
        // criterion of Metropolis et al. (1953): the same as d being below T times an exponential draw. T
        // falls to 0 in proportion to the moves that are left. 1 - uniform() is never 0.
        const double heat = anneal ? kTemperature * outcome_.makespan_s * static_cast<double>(moves) /
                                         static_cast<double>(all) * -std::log(1 - random_.uniform()) * kPrice
                                   : 0;
        if (outcome.better_than(outcome_)) {
            keep(outcome);
            best = candidate;
        }
        if (outcome.better_than(current_outcome) || outcome.makespan_s < current_outcome.makespan_s + heat) {
            current = candidate;
            current_outcome = outcome;
        }
    }
    solution_ = best;
}

/// Levels the anchor replicas with their idle times and tails as extra work, and keeps the result if its
/// execution is better.
bool Group::try_level(bool all) {
    std::vector<double> extra_s = outcome_.idle_s;
    for (std::size_t a = 0; a < extra_s.size(); ++a) extra_s[a] += outcome_.tail_s[a];
    Solution candidate = solution_;
    return level(cut_of(candidate).work, extra_s, all, candidate.replica_of) && try_solution(candidate);
}

/// Fixes the order in which the anchor starts its micro-batches: from there the search may also let text
/// wait, which list scheduling never does, so that enough of it is left for the end of a short step.
Solution Group::as_executed(Solution solution) {
    execute(solution);
    solution.rule.strict = true;
    solution.order.clear();
    for (const Executed& e : trial().executed) {
        const Node& n = trial().machine.node(e.node);
        if (e.phase == Phase::forward && n.stage == instance_.entry)
            solution.order.push_back(cut_of(solution).items.item_of(n.first_sample));
    }
    return solution;
}

/// One random change: two items change replicas or one changes its replica; two change places in the order
/// or one moves in it; or another rule.
Solution Group::varied(const Solution& solution, int last_replica) {
    Solution next = solution;
    const int n = static_cast<int>(next.order.size());
    const int kind = random_.below(anchors_ > 1 ? kAllKinds : kOfRule);
    int a = random_.below(n);
    // Only changes of the replica that ends last can shorten the schedule. One draw in `anchors_` finds a
    // item of it, on average; after twice as many the change is made elsewhere.
    for (int k = 0; kind >= kOfRule && k < 2 * anchors_ && next.replica_of[a] != last_replica; ++k)
        a = random_.below(n);
    // Any other than a, each with the same probability.
    const int b = (a + 1 + random_.below(n - 1)) % n;
    if (kind < kExchangePlaces) {
        std::swap(next.order[a], next.order[b]);
    } else if (kind < kOfOrder) {
        const auto from = next.order.begin() + a, to = next.order.begin() + b;
        if (a < b)
            std::rotate(from, from + 1, to + 1);
        else
            std::rotate(to, from, from + 1);
    } else if (kind < kOfRule) {
        next.rule.fed_s = kFed[random_.below(kFed.size())] * cut_of(next).work.mean_s;
        next.rule.count_text = random_.below(2) == 0;
        next.rule.fair = random_.below(2) == 0;
        next.rule.apart = random_.below(kSeldom) == 0;
        next.rule.strict = next.order.size() <= kAnnealed && random_.below(2) == 0;
    } else if (kind < kOfRule + kExchangeReplicas) {
        std::swap(next.replica_of[a], next.replica_of[b]);
    } else {
        next.replica_of[a] = random_.below(anchors_);
    }
    return next;
}

/// Sets the micro-batches of all sections. Those of the anchor are the items, if these were cut before. Those
/// of another loss section have samples of one kind, with or without work in other sections: text must not
/// wait for pictures. Upstream micro-batches have one sample (`one_by_one`) or are cut from upstream_.
void Group::compose(const Solution& solution, bool one_by_one, std::vector<Batches>& batches) {
    const Cut& cut = cut_of(solution);
    batches.resize(instance_.sections());
    on_.resize(anchors_);
    for (auto& list : on_) list.clear();
    for (const int item : solution.order) on_[solution.replica_of[item]].push_back(item);
    std::vector<int> list;
    for (int s = 0; s < instance_.sections(); ++s) {
        Batches& section_batches = batches[s];
        section_batches.samples.clear();
        section_batches.ends.clear();
        section_batches.replica_ends.assign(1, 0);
        const int stage = instance_.last_stage(s);
        const StageShape& shape = instance_.shape(stage);
        if (cut.made && stage == instance_.anchor) {
            for (const auto& items : on_) {
                for (const int item : items) {
                    for (const int i : cut.items.samples(item)) section_batches.samples.push_back(i);
                    section_batches.close_batch();
                }
                section_batches.close_replica();
            }
            continue;
        }
        const bool mixed = shape.loss && shape.micro_batch > 1;
        int a = 0;
        for (int r = 0; r < shape.replicas; ++r) {
            list.clear();
            if (!shape.loss && !one_by_one) {
                list = upstream_[s][r];
            } else {
                for (; a < anchors_ && instance_.replica_of(stage, a) == r; ++a)
                    for (const int item : on_[a])
                        for (const int i : cut.items.samples(item))
                            if (instance_.active[instance_.at(stage, i)]) list.push_back(i);
            }
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
            section_batches.close_replica();
        }
    }
}

double Group::run(Trial& trial, const DispatchRule& rule, bool in_order) {
    trial.machine.build(trial.batches);
    const std::span<const Node> nodes = trial.machine.nodes();
    priority_.resize(nodes.size());
    // A micro-batch is as urgent as the first of its samples in the order of the solution.
    for (std::size_t n = 0; n < nodes.size(); ++n) priority_[n] = place_[nodes[n].first_sample];
    trial.chooser.begin(rule, priority_, in_order);
    trial.executed.clear();
    return trial.machine.run(trial.chooser, &trial.executed);
}

Outcome Group::execute(const Solution& solution) {
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
            for (auto& replica : section) replica.clear();
        for (const Executed& e : single_trial_->executed) {
            const Node& n = single_trial_->machine.node(e.node);
            if (e.phase == Phase::forward && instance_.first_of_section(n.stage))
                upstream_[instance_.section_of(n.stage)][n.replica].push_back(n.first_sample);
        }
    }
    compose(solution, !bundles_, trial().batches);
    outcome.makespan_s = run(trial(), solution.rule, bundles_);
    if (outcome.makespan_s != kNever) judge(trial(), outcome);
    return outcome;
}

void Group::judge(const Trial& trial, Outcome& outcome) {
    const Machine& machine = trial.machine;
    outcome.idle_s.assign(anchors_, 0.0);
    outcome.tail_s.assign(anchors_, 0.0);
    std::vector<double> work(anchors_, 0.0);
    std::vector<int> last(anchors_, -1);
    end_.assign(machine.nodes().size(), 0.0);
    for (const Executed& e : trial.executed) {
        const Node& n = machine.node(e.node);
        // Tasks of a lane come in the order of their start: what stays is the end of a node's backward, and
        // the last task of a replica.
        end_[e.node] = e.end_s;
        const int a = n.replica;
        // A pipeline works at the rate of its longest stage, and ends with the backwards of its first.
        for (const int stage : instance_.bottleneck)
            if (n.stage == stage) work[a] += e.end_s - e.start_s;
        if (n.stage != instance_.entry) continue;
        outcome.idle_s[a] = e.end_s;
        last[a] = e.node;
    }
    // Until the end of the loop, idle_s holds the ends of the replicas.
    double latest = -1;
    for (int a = 0; a < anchors_; ++a) {
        if (last[a] >= 0)
            for (const Link& up : machine.upstream(machine.node(last[a])))
                outcome.tail_s[a] = std::max(outcome.tail_s[a], end_[up.node] - outcome.idle_s[a]);
        if (outcome.idle_s[a] + outcome.tail_s[a] > latest) {
            latest = outcome.idle_s[a] + outcome.tail_s[a];
            outcome.last_replica = a;
        }
        outcome.ends_s += outcome.idle_s[a] / anchors_;
        outcome.idle_s[a] -= work[a];
    }
}

bool Group::try_exchange(int i, Group& other, int j) {
    // Micro-batches that are cut have samples of one kind, and keep it.
    if (cut_of(solution_).made && instance_.other_work[i] != other.instance_.other_work[j]) return false;
    // The samples change their groups and take over each other's number, and with it the replica and the
    // place in the order. The tables of construct() are not updated, because exchanges come after all
    // constructions.
    const auto swap = [&] {
        for (int s = 0; s < static_cast<int>(instance_.stages.size()); ++s) {
            const std::size_t a = instance_.at(s, i), b = other.instance_.at(s, j);
            std::swap(instance_.forward[a], other.instance_.forward[b]);
            std::swap(instance_.backward[a], other.instance_.backward[b]);
            std::swap(instance_.transfer[a], other.instance_.transfer[b]);
            std::swap(instance_.active[a], other.instance_.active[b]);
        }
        std::swap(instance_.other_work[i], other.instance_.other_work[j]);
        std::swap(instance_.ids[i], other.instance_.ids[j]);
        for (const auto& [group, sample] : {std::pair(this, i), std::pair(&other, j)}) {
            for (Cut& cut : group->cuts_) {
                const int item = cut.items.item_of(sample);
                cut.work.set(item, group->instance_, cut.items.samples(item));
            }
            if (group->bundles_) group->single_ = singly(group->instance_);
        }
    };
    swap();
    const double before = std::max(outcome_.makespan_s, other.outcome_.makespan_s);
    const Outcome mine = execute(solution_);
    // If this group has become longer than both were, the exchange has failed, and the other execution is
    // saved.
    const Outcome theirs = mine.makespan_s <= before ? other.execute(other.solution_) : Outcome();
    const double after = std::max(mine.makespan_s, theirs.makespan_s);
    // Either the longer schedule becomes shorter, or it stays and the sum becomes shorter. The step is never
    // made longer, and exchanges cannot go in circles.
    const bool better =
        after < before * (1 - kSame) ||
        (after <= before && mine.makespan_s + theirs.makespan_s <
                                (outcome_.makespan_s + other.outcome_.makespan_s) * (1 - kSame));
    // The executions used the next trials; those of the best solutions are as they were.
    if (!better) {
        swap();
        return false;
    }
    keep(mine);
    other.keep(theirs);
    return true;
}

void Group::release() {
    trials_[next_].reset();
    single_trial_.reset();
}

void Group::emit(PlanBuilder& builder, int group) {
    const Trial& best = *trials_[1 - next_];
    builder.add(best.machine, best.batches, best.executed, group);
}

}  // namespace maestro::schedule
