// The local search for a short schedule of one sub-problem: which anchor group gets which sample, and in
// which order samples are preferred. Every solution is evaluated by executing it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <stop_token>
#include <vector>

#include "schedule/execution/plan_builder.hpp"
#include "schedule/execution/starve_first.hpp"
#include "schedule/policies/cut.hpp"
#include "schedule/problem/split_mix64.hpp"

namespace maestro::schedule {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr int kByLoad = -1;

/// A solution of the search: list scheduling executes it.
struct Solution {
    int cut = 0;                ///< which of the sub-problem's cuts has its items
    std::vector<int> order;     ///< items, the most preferred first
    std::vector<int> group_of;  ///< [item], of the anchor
    std::vector<int> set_of;    ///< [sample], which of the sets of its anchor group; kByLoad: by their
                                ///< loads; empty where each has one set
    DispatchRule rule;
};

struct Outcome {
    double makespan_s = kNever;
    double ends_s = 0;           ///< mean over the anchor groups of the end of their last task
    std::vector<double> idle_s;  ///< [anchor group], idle time before its end
    std::vector<double> tail_s;  ///< [anchor group], from its end to the end of its last sample's backwards
    int last_group = 0;          ///< the anchor group whose tail ends last
    bool better_than(const Outcome& o) const;
};

/// The parameters by which a solution is constructed.
struct ConstructionRule {
    Kinds kinds = Kinds::apart;  ///< of the micro-batches of a pipeline or of parts
    int order = 0;               ///< which of Cut::orders
    double fed = kNever;         ///< DispatchRule::fed_s in mean tasks of the anchor
    bool fair = false;           ///< DispatchRule::fair
    bool aligned = false;        ///< DispatchRule::aligned
    bool strict = false;         ///< DispatchRule::strict
};
/// All rules that can give different solutions for this problem.
std::vector<ConstructionRule> construction_rules(const Problem& problem);

class SubProblem {
public:
    SubProblem(Instance instance, std::uint64_t seed);
    SubProblem(const SubProblem&) = delete;
    SubProblem& operator=(const SubProblem&) = delete;

    int samples() const { return instance_.samples; }
    const Outcome& best() const { return outcome_; }

    /// Executes one rule and keeps the result if it is the best so far. Returns its makespan, infinite if it
    /// does not run within the windows.
    double construct(const ConstructionRule& rule);
    /// For sub-problems in which no rule runs: tries all again with upstream micro-batches that each serve
    /// one micro-batch of the anchor. In the tightest windows one that waits for two of them blocks both.
    void construct_aligned(const std::vector<ConstructionRule>& rules);
    /// Improves the solution by up to `moves` executions; stops at a makespan of `enough_s`, or where the
    /// plan is unwanted.
    void improve(std::int64_t moves, double enough_s, const std::stop_token& unwanted);
    /// Exchanges sample i with sample j of another sub-problem if that makes the longer of the two shorter;
    /// returns whether it did.
    bool try_exchange(int i, SubProblem& other, int j);
    /// Frees the memory that only executions need; the next one allocates it again.
    void release();
    /// Adds the micro-batches and tasks of the best solution to the plan.
    void emit(PlanBuilder& builder, int sub_problem);

private:
    /// The memory of an execution, which the next ones use again.
    struct Trial {
        explicit Trial(const Instance& instance) : machine(instance), chooser(machine) {}
        Trial(const Trial&) = delete;
        Trial& operator=(const Trial&) = delete;
        Machine machine;
        StarveFirst chooser;
        std::vector<Batches> batches;
        std::vector<Executed> executed;
    };
    struct Start {
        Solution solution;
        Outcome outcome;
    };
    /// The machine for the next execution.
    Trial& trial() {
        if (!trials_[next_]) trials_[next_] = std::make_unique<Trial>(instance_);
        return *trials_[next_];
    }
    Trial& single_trial() {
        if (!single_trial_) single_trial_ = std::make_unique<Trial>(single_);
        return *single_trial_;
    }
    /// Makes the last execution the best so far.
    void keep(const Outcome& outcome) {
        outcome_ = outcome;
        next_ = 1 - next_;
    }
    bool try_solution(const Solution& solution);
    bool try_level(bool all);
    Solution as_executed(Solution solution);
    void vary(const Solution& start, std::int64_t moves, double enough_s, const std::stop_token& unwanted);
    const Cut& cut_of(const Solution& solution) const { return cuts_[solution.cut]; }
    /// A neighbour of a solution; `last_group`: see Outcome.
    Solution varied(const Solution& solution, int last_group);
    void assign_sets(const Solution& solution);
    void compose(const Solution& solution, bool one_by_one, std::vector<Batches>& batches);
    double run(Trial& trial, const DispatchRule& rule, bool in_order);
    Outcome execute(const Solution& solution);
    void judge(const Trial& trial, Outcome& outcome);

    Instance instance_;
    Instance single_;  ///< upstream sections sample by sample; empty where no section there has micro-batches
    SplitMix64 random_;
    int anchors_ = 1;            ///< groups of the anchor
    bool bundles_ = false;       ///< an upstream section has micro-batches of several samples
    bool pipeline_ = false;      ///< the anchor's section has several stages
    std::vector<Start> starts_;  ///< the best construction of each cut
    std::vector<Cut> cuts_;      ///< one, or one for each of Kinds
    Solution solution_;
    Outcome outcome_;
    std::array<std::unique_ptr<Trial>, 2> trials_;  ///< the best so far and the next
    std::size_t next_ = 0;
    std::unique_ptr<Trial> single_trial_;
    std::vector<int> priority_, place_;  ///< place_: [sample], of its item in the order
    std::vector<int> set_of_;            ///< [sample], its set
    std::vector<double> end_;
    std::vector<std::vector<int>> on_;                     ///< [anchor group], items in order
    std::vector<std::vector<int>> lists_;                  ///< [group of a section], samples in order
    std::vector<std::vector<std::vector<int>>> upstream_;  ///< [section][group], samples in forward order
};

}  // namespace maestro::schedule
