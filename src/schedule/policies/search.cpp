#include "schedule/policies/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "schedule/execution/hide_sums.hpp"

namespace maestro::schedule {

namespace {

constexpr double kSame = 1e-9;         ///< relative; makespans that differ by less, as by rounding, are equal
constexpr std::size_t kAnnealed = 96;  ///< sub-problems of up to so many samples are annealed
constexpr double kTemperature = 0.03;  ///< at the start, of the makespan
/// How much longer a kept change may make the schedule on average, of the temperature; the draw is
/// exponential.
constexpr double kPrice = 0.3;

/// How many of nine random changes are of each kind, in this order. The last two kinds, changes of groups,
/// need a second group. Exchanges are more frequent than single changes, because they leave loads about
/// level.
constexpr int kExchangePlaces = 2, kMovePlace = 2, kOtherRule = 1, kExchangeGroups = 3, kOtherGroup = 1;
constexpr int kOfOrder = kExchangePlaces + kMovePlace, kOfRule = kOfOrder + kOtherRule;
constexpr int kAllKinds = kOfRule + kExchangeGroups + kOtherGroup;
/// DispatchRule::fed_s to draw from, in mean tasks of the anchor: from backwards first to forwards first.
constexpr std::array<double, 6> kFed{0, 0.5, 1, 2, 4, 1e9};
/// One of so many changes is of a sample's set, where its anchor group has several.
constexpr int kOfSets = 4;
constexpr int kSeldom = 4;  ///< one of so many rules lets sources choose independently

/// Returns the instance with upstream micro-batches of one sample, whose windows hold as many samples as
/// before.
Instance singly(Instance instance) {
    for (int s = 0; s < static_cast<int>(instance.stages.size()); ++s) {
        if (instance.of_loss(s)) continue;
        StageShape& shape = instance.stages[s];
        shape.window = shape.window_samples();
        shape.micro_batch = 1;
        // As if every sample were divided among the parts of a lane.
        for (int i = 0; i < instance.samples && shape.parts > 1; ++i) {
            instance.forward[instance.at(s, i)] /= shape.parts;
            instance.backward[instance.at(s, i)] /= shape.parts;
        }
        shape.parts = 1;
    }
    return instance;
}

}  // namespace

bool Outcome::better_than(const Outcome& o) const {
    if (makespan_s < o.makespan_s * (1 - kSame)) return true;
    // Most changes leave the makespan as it is, because another group ends last. Earlier ends of the others
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
    // The order counts: with many samples a sub-problem tries only the first few. Without windows there is
    // nothing of which anchor groups could have fair shares.
    if (pipeline)
        for (const double fed : {kNever, 1.0})
            for (int order = kOrders; order < kOrders + kPlacements; ++order)
                for (const Kinds kinds : {Kinds::together, Kinds::apart})
                    all.push_back({.kinds = kinds, .order = order, .fed = fed, .strict = true});
    // Buckets for the parts of the anchor are of either kind; other items are single samples.
    const bool buckets = problem.stages[anchor].parts > 1 && !pipeline;
    for (const double fed : {1.0, 3.0, kNever, 0.0})
        for (int order = 0; order < kOrders; ++order)
            for (const bool fair : {false, true})
                for (const Kinds kinds : {Kinds::apart, Kinds::together})
                    if ((windows || !fair) && (buckets || kinds == Kinds::apart))
                        all.push_back({.kinds = kinds, .order = order, .fed = fed, .fair = fair});
    return all;
}

SubProblem::SubProblem(Instance instance, std::uint64_t seed)
    : instance_(std::move(instance)), random_(seed) {
    const StageShape& anchor = instance_.shape(instance_.anchor);
    anchors_ = anchor.groups;
    pipeline_ = anchor.pipelined();
    for (int s = 0; s < static_cast<int>(instance_.stages.size()); ++s)
        bundles_ = bundles_ || (!instance_.of_loss(s) && instance_.shape(s).micro_batch > 1);
    if (bundles_) single_ = singly(instance_);
    upstream_.resize(instance_.sections());
    for (const StageShape& shape : instance_.stages) upstream_[shape.section].resize(shape.groups);
    cuts_.push_back(make_cut(instance_, Kinds::apart));
    if (cuts_.front().made) cuts_.push_back(make_cut(instance_, Kinds::together));
    starts_.resize(cuts_.size());
}

double SubProblem::construct(const ConstructionRule& rule) {
    Solution candidate;
    candidate.cut = rule.kinds == Kinds::apart ? 0 : static_cast<int>(cuts_.size()) - 1;
    const Cut& cut = cut_of(candidate);
    candidate.group_of = cut.spread;
    if (instance_.sets_of(0).size() > 1) candidate.set_of.assign(samples(), kByLoad);
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

void SubProblem::construct_aligned(const std::vector<ConstructionRule>& rules) {
    if (!bundles_) return;
    for (ConstructionRule rule : rules) {
        rule.aligned = true;
        construct(rule);
    }
}

bool SubProblem::try_solution(const Solution& solution) {
    const Outcome outcome = execute(solution);
    if (!outcome.better_than(outcome_)) return false;
    keep(outcome);
    solution_ = solution;
    return true;
}

void SubProblem::improve(std::int64_t moves, double enough_s, const std::stop_token& unwanted) {
    if (outcome_.makespan_s == kNever) return;
    // Text-only items first, because moving them does not change the order of the upstream sections.
    for (const bool all : {false, true})
        for (bool better = true; better && moves > 0 && outcome_.makespan_s > enough_s; --moves)
            better = try_level(all);
    std::vector<Solution> starts{solution_};
    // Which cut is the better one shows only in the end. Large sub-problems have too few moves for both.
    for (const Start& other : starts_)
        if (other.solution.cut != solution_.cut && other.outcome.makespan_s < kNever &&
            other.solution.order.size() <= kAnnealed)
            starts.push_back(other.solution);
    const std::int64_t share = moves / static_cast<std::int64_t>(starts.size());
    for (const Solution& start : starts) vary(start, share, enough_s, unwanted);
}

/// Changes a solution `moves` times. Keeps the best so far.
void SubProblem::vary(const Solution& start, std::int64_t moves, double enough_s,
                      const std::stop_token& unwanted) {
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
    // Simulated annealing (Kirkpatrick et al. 1983) of small sub-problems; large ones have too few moves to
    // recover from a worse solution, and are improved by descent. The best solution is kept beside the
    // current one, so that the result is never worse than the start.
    const bool anneal = current.order.size() <= kAnnealed;
    const std::int64_t all = moves;
    for (; moves > 0 && outcome_.makespan_s > enough_s && !unwanted.stop_requested(); --moves) {
        const Solution candidate = varied(current, current_outcome.last_group);
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

/// Levels the anchor groups with their idle times and tails as extra work, and keeps the result if its
/// execution is better.
bool SubProblem::try_level(bool all) {
    std::vector<double> extra_s = outcome_.idle_s;
    for (std::size_t a = 0; a < extra_s.size(); ++a) extra_s[a] += outcome_.tail_s[a];
    Solution candidate = solution_;
    return level(cut_of(candidate).work, extra_s, all, candidate.group_of) && try_solution(candidate);
}

/// Fixes the order in which the anchor starts its micro-batches: from there the search may also let text
/// wait, which list scheduling never does, so that enough of it is left for the end of a short step.
Solution SubProblem::as_executed(Solution solution) {
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

/// One random change: two items change groups or one changes its group; two change places in the order
/// or one moves in it; another rule; or a sample changes its set.
Solution SubProblem::varied(const Solution& solution, int last_group) {
    Solution next = solution;
    const int n = static_cast<int>(next.order.size());
    if (!next.set_of.empty() && random_.below(kOfSets) == 0) {
        next.set_of[random_.below(samples())] = random_.below(instance_.sets_of(0).size() + 1) - 1;
        return next;
    }
    const int kind = random_.below(anchors_ > 1 ? kAllKinds : kOfRule);
    int a = random_.below(n);
    // Only changes of the group that ends last can shorten the schedule. One draw in `anchors_` finds an
    // item of it, on average; after twice as many the change is made elsewhere.
    for (int k = 0; kind >= kOfRule && k < 2 * anchors_ && next.group_of[a] != last_group; ++k)
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
    } else if (kind < kOfRule + kExchangeGroups) {
        std::swap(next.group_of[a], next.group_of[b]);
    } else {
        next.group_of[a] = random_.below(anchors_);
    }
    return next;
}

bool SubProblem::try_exchange(int i, SubProblem& other, int j) {
    // Micro-batches that are cut have samples of one kind, and keep it.
    if (cut_of(solution_).made && instance_.other_work[i] != other.instance_.other_work[j]) return false;
    // The samples change their sub-problems and take over each other's number, and with it the group and
    // the place in the order. The tables of construct() are not updated, because exchanges come after all
    // constructions.
    const auto swap = [&] {
        for (int s = 0; s < static_cast<int>(instance_.stages.size()); ++s) {
            const std::size_t a = instance_.at(s, i), b = other.instance_.at(s, j);
            std::swap(instance_.forward[a], other.instance_.forward[b]);
            std::swap(instance_.common[a], other.instance_.common[b]);
            std::swap(instance_.backward[a], other.instance_.backward[b]);
            std::swap(instance_.transfer[a], other.instance_.transfer[b]);
            std::swap(instance_.active[a], other.instance_.active[b]);
        }
        std::swap(instance_.other_work[i], other.instance_.other_work[j]);
        std::swap(instance_.ids[i], other.instance_.ids[j]);
        for (const auto& [sub_problem, sample] : {std::pair(this, i), std::pair(&other, j)}) {
            for (Cut& cut : sub_problem->cuts_) {
                const int item = cut.items.item_of(sample);
                cut.work.set(item, sub_problem->instance_, cut.items.samples(item));
            }
            if (sub_problem->bundles_) sub_problem->single_ = singly(sub_problem->instance_);
        }
    };
    swap();
    const double before = std::max(outcome_.makespan_s, other.outcome_.makespan_s);
    const Outcome mine = execute(solution_);
    // If this sub-problem has become longer than both were, the exchange has failed, and the other execution
    // is saved.
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

void SubProblem::release() {
    trials_[next_].reset();
    single_trial_.reset();
}

void SubProblem::emit(PlanBuilder& builder, int sub_problem) {
    Trial& best = *trials_[1 - next_];
    best.executed = hide_sums(best.machine, best.batches, std::move(best.executed));
    builder.add(best.machine, best.batches, best.executed, sub_problem);
}

}  // namespace maestro::schedule
