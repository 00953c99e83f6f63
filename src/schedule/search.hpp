// The search for a good schedule of one group: which anchor replica gets which sample, and in which order
// samples are wanted. Every solution is judged by executing it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "schedule/construct.hpp"
#include "schedule/dice.hpp"
#include "schedule/plan_builder.hpp"
#include "schedule/starve_first.hpp"

namespace maestro::schedule {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// What the search decides.
struct Solution {
    std::vector<int> order;       ///< samples, the most wanted first
    std::vector<int> replica_of;  ///< [sample], of the anchor
    Rule rule;
};

struct Outcome {
    double makespan_s = kNever;
    double ends_s = 0;           ///< mean over the anchor replicas of the end of their last task
    std::vector<double> idle_s;  ///< [anchor replica], time without work before its end
    std::vector<double> tail_s;  ///< [anchor replica], from its end to that of its last sample's backwards
    int last_replica = 0;        ///< anchor replica whose end and tail are the latest
    bool better_than(const Outcome& o) const;
};

/// One way to construct a solution.
struct Recipe {
    int order = 0;         ///< which of orders() (construct.hpp)
    double fed = kNever;   ///< Rule::fed_s in mean tasks of the anchor
    bool fair = false;     ///< Rule::fair
    bool aligned = false;  ///< Rule::aligned
};
/// All that differ for these sections.
std::vector<Recipe> recipes(const std::vector<SectionShape>& sections);

class Group {
public:
    Group(Instance instance, std::uint64_t seed);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int samples() const { return instance_.samples; }
    const Outcome& best() const { return outcome_; }

    /// Executes one recipe and keeps the result if it is better than before; returns its makespan, infinite
    /// where it does not run within the windows.
    double construct(const Recipe& recipe);
    /// Where no recipe runs: they again, so that within the tightest windows no upstream micro-batch waits
    /// for two of the anchor.
    void construct_aligned(const std::vector<Recipe>& recipes);
    /// Uses up to `moves` executions; stops where the makespan is `enough_s`.
    void improve(std::int64_t moves, double enough_s);
    /// Sample i changes places with sample j of another group if that makes the longer of the two shorter.
    bool try_exchange(int i, Group& other, int j);
    /// Frees the memory that only executions need; the next one allocates it again.
    void release();
    /// The best solution's micro-batches and tasks.
    void emit(PlanBuilder& builder, int group);

private:
    /// One execution, with memory that the next ones use again.
    struct Trial {
        explicit Trial(const Instance& instance) : machine(instance), chooser(machine) {}
        Trial(const Trial&) = delete;
        Trial& operator=(const Trial&) = delete;
        Machine machine;
        StarveFirst chooser;
        std::vector<Batches> batches;
        std::vector<Executed> executed;
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
    /// The last execution is the best so far.
    void keep(const Outcome& outcome) {
        outcome_ = outcome;
        next_ = 1 - next_;
    }
    bool try_solution(const Solution& solution);
    bool try_level(bool all);
    /// A neighbour of solution_; `last_replica`: see Outcome.
    Solution varied(int last_replica);
    void compose(const Solution& solution, bool one_by_one, std::vector<Batches>& batches);
    double run(Trial& trial, const Rule& rule, bool in_order);
    Outcome execute(const Solution& solution);
    void judge(const Trial& trial, Outcome& outcome);

    Instance instance_;
    Instance single_;  ///< upstream sections sample by sample; empty where no section there has micro-batches
    Dice dice_;
    int anchors_ = 1;       ///< replicas of the anchor
    bool bundles_ = false;  ///< an upstream section has micro-batches of several samples
    SampleWork work_;
    std::vector<int> spread_;               ///< where construction begins
    std::vector<std::vector<int>> orders_;  ///< likewise
    Solution solution_;
    Outcome outcome_;
    std::array<std::unique_ptr<Trial>, 2> trials_;  ///< the best so far and the next
    std::size_t next_ = 0;
    std::unique_ptr<Trial> single_trial_;
    std::vector<int> priority_, place_;
    std::vector<double> end_;
    std::vector<std::vector<int>> on_;                     ///< [anchor replica], samples in order
    std::vector<std::vector<std::vector<int>>> upstream_;  ///< [section][replica], samples in forward order
};

}  // namespace maestro::schedule
