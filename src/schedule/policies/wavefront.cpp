#include "schedule/policies/wavefront.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "schedule/execution/plan_builder.hpp"
#include "schedule/policies/baselines.hpp"
#include "schedule/policies/partitioner.hpp"
#include "schedule/policies/search.hpp"
#include "schedule/problem/bounds.hpp"

namespace maestro::schedule {

namespace {

constexpr double kEnough = 2e-4;         ///< of the bound; the search stops when it is that near
constexpr std::size_t kFewSamples = 96;  ///< samples up to which every rule and several partitions are tried
constexpr std::size_t kManySamples =
    512;  ///< samples beyond which sub-problems mostly try rules that were good for others
constexpr double kAlike = 1.002;  ///< makespans that differ by less are not worth more rules
constexpr double kFailed = 10;    ///< times the bound: the makespan that counts for a rule that does not run
constexpr int kPartitions = 16;   ///< of few samples
constexpr int kHopeful = 4;       ///< of these, unless they lead to a shorter plan than one that is known
constexpr double kPartitionNoise = 1.0;  ///< up to twice the cost, so that partitions differ

/// Samples that a search may execute in all: the time of an execution is proportional to its samples, and a
/// plan should take a few milliseconds.
constexpr double kExecuted = 6e4;
/// Divided by the cube of the samples: beyond about 220 samples the search is much shorter still, because
/// construction leaves a smaller gap, and one change gains less.
constexpr double kManyExecuted = 3e9;
constexpr double kMinMoves = 2, kMaxMoves = 3000;

/// Returns the number of executions that the search of a sub-problem may use.
std::int64_t default_moves(const Problem& problem) {
    // Plus 1, because a step may be without samples.
    const double n = static_cast<double>(problem.samples.size() + 1);
    // All stages of a pipeline are executed, each with its micro-batches.
    const StageShape& anchor = problem.stages[anchor_stage(problem)];
    const double executed = std::max(n, n * anchor.lane_stride * anchor.chunks / anchor.micro_batch);
    const double moves = std::min(kExecuted / executed, kManyExecuted / (n * n * n));
    return static_cast<std::int64_t>(std::clamp(moves, kMinMoves, kMaxMoves));
}

/// Which rules have made short schedules. Sub-problems are alike, so that a sub-problem first tries what was
/// good for others.
class ConstructionRules {
public:
    ConstructionRules(std::vector<ConstructionRule> rules, std::size_t sub_problems, double enough_s)
        : rules_(std::move(rules)),
          results_(rules_.size()),
          tried_(sub_problems, std::vector<bool>(rules_.size(), false)),
          enough_s_(enough_s) {}

    const std::vector<ConstructionRule>& all() const { return rules_; }
    std::size_t size() const { return rules_.size(); }

    /// Tries up to `count` rules that were the best for other sub-problems.
    void try_good(std::size_t g, SubProblem& sub_problem, std::size_t count) {
        try_first(ranked(), g, sub_problem, count);
    }
    /// Tries up to `count` rules that the sub-problem has not tried, first those that no sub-problem has
    /// tried. Returns false if it has tried all.
    bool try_new(std::size_t g, SubProblem& sub_problem, std::size_t count) {
        std::vector<std::size_t> order;
        for (std::size_t k = 0; k < rules_.size(); ++k)
            if (results_[k].times == 0) order.push_back(k);
        const std::vector<std::size_t> known = ranked();
        order.insert(order.end(), known.begin(), known.end());
        return try_first(order, g, sub_problem, count);
    }

private:
    struct Result {
        int times = 0;
        double sum_s = 0;
        double mean_s() const { return sum_s / times; }
    };
    /// The rules that some sub-problem has tried, the best first.
    std::vector<std::size_t> ranked() const {
        std::vector<std::size_t> order;
        for (std::size_t k = 0; k < rules_.size(); ++k)
            if (results_[k].times > 0) order.push_back(k);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return results_[a].mean_s() < results_[b].mean_s();
        });
        return order;
    }
    bool try_first(const std::vector<std::size_t>& order, std::size_t g, SubProblem& sub_problem,
                   std::size_t count) {
        bool any = false;
        for (const std::size_t k : order) {
            if (count == 0 || sub_problem.best().makespan_s <= enough_s_) return true;
            if (tried_[g][k]) continue;
            tried_[g][k] = any = true;
            --count;
            ++results_[k].times;
            // A finite time for a rule that does not run in some sub-problem: in others it may be the best.
            results_[k].sum_s += std::min(sub_problem.construct(rules_[k]), kFailed * enough_s_);
        }
        return any;
    }

    std::vector<ConstructionRule> rules_;
    std::vector<Result> results_;           ///< [rule]
    std::vector<std::vector<bool>> tried_;  ///< [sub-problem][rule]
    double enough_s_;
};

/// How much a plan may try, by the number of samples and sub-problems.
struct Effort {
    std::size_t good = 0;   ///< for each sub-problem, rules that were the best for others
    std::size_t fresh = 0;  ///< for each sub-problem, rules that no sub-problem has tried yet
    std::size_t first = 0;  ///< rules of the first sub-problem
    int retries = 0;        ///< sub-problems that try more rules, the last to end first
    std::size_t retry = 0;  ///< rules of each retry
    int exchanges = 2;      ///< exchanges between sub-problems are the moves of all divided by this
};

Effort effort_of(std::size_t samples, int sub_problems) {
    constexpr auto kAll = static_cast<std::size_t>(-1);
    if (samples <= kFewSamples) return {.fresh = kAll, .first = kAll};
    if (samples <= kManySamples) return {.good = 6, .first = kAll, .retries = 2, .retry = kAll};
    return {.good = 2,
            .fresh = 1,
            .first = sub_problems == 1 ? kAll : 6,
            .retries = sub_problems / 2,
            .retry = 2,
            .exchanges = 4};
}

/// The sub-problems of a plan, ordered by the end of their schedules.
class SubProblems {
public:
    void add(std::unique_ptr<SubProblem> sub_problem) {
        end_s_.push_back(sub_problem->best().makespan_s);
        by_end_.emplace(end_s_.back(), sub_problems_.size());
        sub_problems_.push_back(std::move(sub_problem));
    }
    bool empty() const { return sub_problems_.empty(); }
    std::size_t size() const { return sub_problems_.size(); }
    SubProblem& operator[](std::size_t g) { return *sub_problems_[g]; }

    double longest_s() const { return by_end_.rbegin()->first; }
    double shortest_s() const { return by_end_.begin()->first; }
    /// The sub-problem with the longest or shortest schedule; of several the one with the lowest number.
    std::size_t longest() const { return by_end_.lower_bound({longest_s(), 0})->second; }
    std::size_t shortest() const { return by_end_.begin()->second; }
    /// Frees a sub-problem that is not needed any more.
    void discard(std::size_t g) { sub_problems_[g].reset(); }
    /// To be called when the schedule of a sub-problem has changed.
    void reorder(std::size_t g) {
        by_end_.erase({end_s_[g], g});
        end_s_[g] = sub_problems_[g]->best().makespan_s;
        by_end_.emplace(end_s_[g], g);
    }

private:
    std::vector<std::unique_ptr<SubProblem>> sub_problems_;
    std::vector<double> end_s_;                        ///< [sub-problem]
    std::set<std::pair<double, std::size_t>> by_end_;  ///< end and number of each sub-problem
};

/// Samples of the sub-problem that ends last are exchanged with those of other sub-problems while that
/// shortens the step.
void exchange(SubProblems& sub_problems, std::int64_t moves, double enough_s,
              const std::stop_token& unwanted) {
    SplitMix64 random(2);
    for (; moves > 0 && !unwanted.stop_requested(); --moves) {
        const std::size_t last = sub_problems.longest(), first = sub_problems.shortest();
        if (sub_problems.longest_s() <= enough_s || sub_problems[last].samples() == 0 ||
            sub_problems[first].samples() == 0)
            return;
        // The sub-problem that ends first has room; a random one keeps the search from repeating the same
        // pair.
        const std::size_t other =
            random.below(2) == 0 ? first : random.below(static_cast<int>(sub_problems.size()));
        if (other == last || sub_problems[other].samples() == 0) continue;
        const int theirs = random.below(sub_problems[other].samples()),
                  ours = random.below(sub_problems[last].samples());
        if (!sub_problems[last].try_exchange(ours, sub_problems[other], theirs)) continue;
        sub_problems.reorder(last);
        sub_problems.reorder(other);
    }
}

/// Returns the scheduled sub-problems, none if a sub-problem has no solution within its windows or the plan
/// is unwanted.
SubProblems schedule_sub_problems(const Problem& problem, const std::vector<std::vector<int>>& partition,
                                  std::int64_t moves, double enough_s, const std::stop_token& unwanted) {
    const auto sub_problems = static_cast<int>(partition.size());
    const Effort effort = effort_of(problem.samples.size(), sub_problems);
    SubProblems planned;
    ConstructionRules rules(construction_rules(problem), partition.size(), enough_s);
    for (std::size_t g = 0; g < partition.size(); ++g) {
        // Sub-problems are planned one after another, each with the experience of those before. The seed is
        // the number of the sub-problem, so that a plan depends on nothing but the problem.
        auto sub_problem = std::make_unique<SubProblem>(part(problem, sub_problems, partition[g]), g);
        rules.try_good(g, *sub_problem, effort.good);
        rules.try_new(g, *sub_problem, g == 0 ? effort.first : effort.fresh);
        if (sub_problem->best().makespan_s == kNever) rules.try_new(g, *sub_problem, rules.size());
        if (sub_problem->best().makespan_s == kNever) sub_problem->construct_aligned(rules.all());
        // The step cannot run without this sub-problem. Another partition may do.
        if (sub_problem->best().makespan_s == kNever) return {};
        sub_problem->improve(moves, enough_s, unwanted);
        if (unwanted.stop_requested()) return {};
        sub_problem->release();
        planned.add(std::move(sub_problem));
    }
    if (sub_problems == 1) return planned;
    // The step ends with its last sub-problem: sub-problems that end well after the others are worth more
    // effort.
    for (int more = 0; more < effort.retries; ++more) {
        const std::size_t last = planned.longest();
        if (planned.longest_s() <= std::max(enough_s, planned.shortest_s() * kAlike)) break;
        if (!rules.try_new(last, planned[last], effort.retry)) break;
        planned[last].improve(moves, enough_s, unwanted);
        planned[last].release();
        planned.reorder(last);
    }
    exchange(planned, moves * sub_problems / effort.exchanges, enough_s, unwanted);
    return planned;
}

/// For windows in which nothing else runs: lpt makes micro-batches smaller until they do.
StepPlan lpt_instead(const Problem& problem, std::int64_t step) {
    StepPlan plan = plan_lpt(problem, step);
    plan.window_limited = true;
    return plan;
}

}  // namespace

StepPlan plan_wavefront(const Problem& problem, std::int64_t step, const SearchEffort& effort,
                        const std::stop_token& unwanted, double known_s) {
    const int sub_problems = sub_problems_of(problem);
    PlanBuilder builder(problem, sub_problems);
    const double enough = builder.lower_bound_s() * (1 + kEnough);
    // With few samples the partition decides most of the makespan, so that several are tried.
    const bool several = sub_problems > 1 && problem.samples.size() <= kFewSamples;
    const int partitions = several && !effort.brief ? kPartitions : 1;
    // All tries together use the moves of one search, so that they do not lengthen planning.
    const std::int64_t moves = (effort.moves > 0 ? effort.moves : default_moves(problem)) /
                               (several || effort.brief ? kPartitions : 1);
    Partitioner partitioner(problem, sub_problems);
    SubProblems best;
    double shortest = kNever;
    for (int tried = 0; tried < partitions && shortest > enough; ++tried) {
        if (tried == kHopeful && shortest >= known_s) break;
        SubProblems planned = schedule_sub_problems(
            problem, partitioner.partition(tried == 0 ? 0 : kPartitionNoise), moves, enough, unwanted);
        if (planned.empty() || planned.longest_s() >= shortest) continue;
        shortest = planned.longest_s();
        best = std::move(planned);
    }
    if (best.empty()) {
        return lpt_instead(problem, step);
    }
    // Each sub-problem is freed once it is in the plan, so that many sub-problems and the whole plan are not
    // in memory at the same time.
    for (int g = 0; g < sub_problems; ++g) {
        best[g].emit(builder, g);
        best.discard(g);
    }
    return builder.finish(step);
}

}  // namespace maestro::schedule
