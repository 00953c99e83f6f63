// What each choice of a section takes and needs at least, whatever the other sections have: its work and its
// memory, by the model's code. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/choices.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/policies/wavefront.hpp"
#include "workload/estimate.hpp"
#include "workload/probes.hpp"
#include "workload/rank_device.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::plan {

/// The time or memory of what does not exist.
inline constexpr double kNone = std::numeric_limits<double>::infinity();

/// What is the same for all plans of a deck. The caller keeps everything alive.
struct Subject {
    const workload::Scenario& scenario;  ///< of the deck, on its cluster
    const workload::SampleTable& table;
    workload::Probes& probes;
    workload::RankDevice device;
    workload::PlanOptions options;
    workload::Estimates& estimates;                ///< of the scenario's cluster
    std::vector<std::vector<std::int64_t>> steps;  ///< the samples of each step that is simulated
    schedule::SearchEffort effort;                 ///< of the wavefront
    schedule::Dispatch dispatch = schedule::Dispatch::planned;
    IsFixed is_fixed;
    /// Micro-batches take the times that they have as their items go together (workload/mixing.hpp), as
    /// `maestro simulate` has them. No bound holds for these.
    bool mixed = false;

    /// Returns the same with other estimates, for scenarios on another cluster.
    Subject with(workload::Estimates& others) const {
        return {.scenario = scenario,
                .table = table,
                .probes = probes,
                .device = device,
                .options = options,
                .estimates = others,
                .steps = steps,
                .effort = effort,
                .dispatch = dispatch,
                .is_fixed = is_fixed,
                .mixed = mixed};
    }
    /// Returns the estimate of the k-th step of a scenario.
    workload::StepEstimate estimate(const workload::Scenario& of, std::size_t k) const {
        return estimates.of(of, device, options, steps[k]);
    }
    /// Returns the same with memory that is planned already: that of memory().
    workload::StepEstimate estimate(const workload::Scenario& of, workload::MemoryPlan memory,
                                    std::size_t k) const {
        return estimates.of(of, std::move(memory), steps[k]);
    }
    workload::MemoryPlan memory(const workload::Scenario& of) const {
        return estimates.memory_of(of, device, options);
    }
};

/// What a section's choice takes and needs at least, whatever the others are.
struct Rated {
    Choice choice;
    double busiest_s =
        0;              ///< the time in which a lane of its busiest pipeline rank works, sum over the steps
    double mean_s = 0;  ///< the mean work of its lanes
    double rank_s = 0;  ///< the work of all of its ranks together
    /// An estimate of the steps with this section alone: with the time in which its pipeline fills and runs
    /// empty, and with sums of gradients, updates and gathers of weights that no task hides. Sum over the
    /// steps, as are the others.
    double likely_s = 0;
    double chain_s = 0;        ///< a micro-batch of mean length in all stages, one after another
    double micro_batches = 0;  ///< of a replica in a step, on average
    /// How many of these are in flight at most, on the pipeline rank that has room for the fewest.
    double windows = 1;
    double bytes = 0;         ///< memory of the fullest rank, libraries included
    double least_bytes = 0;   ///< the same of the pipeline rank that needs least
    double likely_bytes = 0;  ///< an estimate of `bytes` with scratch memory
};

struct Ratings {
    /// By section: the choices that may fit into memory, in ascending order of busiest_s.
    std::vector<std::vector<Rated>> sections = {};
    std::vector<Rated> smallest = {};  ///< by section: of all choices the one that needs least memory
    double left_out_s = kNone;         ///< no plan with a choice that is not rated has a shorter step
};
/// Rates the choices of every section on up to `ranks` ranks: `all`, or without those that are slow by far.
Ratings rate(const Subject& subject, int ranks, bool all = true);

/// The most bytes that a rank may need: CPU ranks of a node share its memory.
double most_memory(const workload::RankDevice& device);

/// The layers of stages as they are balanced, once for each number of stages of a section. The subject must
/// outlive it.
class Balance {
public:
    explicit Balance(const Subject& subject) : subject_(subject) {}
    /// Returns the layers of each stage of a section with this choice.
    const std::vector<int>& layers_of(std::size_t section, const Choice& choice);
    /// Returns the scenario of the choices with balanced stages; see with_choices().
    workload::Scenario scenario(std::vector<Choice> choices, const std::vector<int>& host_of,
                                std::vector<graph::Refusal>& refusals);

private:
    using Key = std::tuple<std::size_t, int, Recompute, int>;
    const Subject& subject_;
    std::map<Key, std::vector<int>> layers_;
};

}  // namespace maestro::plan
