#include "schedule/baselines.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "schedule/bounds.hpp"
#include "schedule/choosers.hpp"
#include "schedule/load_heap.hpp"
#include "schedule/plan_builder.hpp"

namespace maestro::schedule {

namespace {

/// Returns the micro-batches of every section in `order`. replica_of: [sample], of the anchor; sizes:
/// [section], samples of a micro-batch.
std::vector<Batches> cut(const Instance& instance, const std::vector<int>& order,
                         const std::vector<int>& replica_of, const std::vector<int>& sizes) {
    std::vector<Batches> batches(instance.sections());
    for (std::size_t s = 0; s < batches.size(); ++s) {
        const int stage = instance.last_stage(static_cast<int>(s));
        std::vector<std::vector<int>> on(instance.shape(stage).replicas);
        for (const int i : order)
            if (instance.active[instance.at(stage, i)])
                on[instance.replica_of(stage, replica_of[i])].push_back(i);
        for (const auto& list : on) {
            for (std::size_t k = 0; k < list.size(); ++k) {
                if (k > 0 && k % static_cast<std::size_t>(sizes[s]) == 0) batches[s].close_batch();
                batches[s].samples.push_back(list[k]);
            }
            if (!list.empty()) batches[s].close_batch();
            batches[s].close_replica();
        }
    }
    return batches;
}

/// Halves the micro-batches of the loss sections or, if these have one sample each, those of the others.
/// Returns false if all have one sample.
/// A micro-batch of a loss section starts only when all of its samples are in flight upstream at the same
/// time. These micro-batches are halved first, because a window counts micro-batches: smaller ones upstream
/// would let it hold fewer samples.
bool halve(const Instance& instance, std::vector<int>& sizes) {
    for (const bool loss : {true, false}) {
        bool halved = false;
        for (std::size_t s = 0; s < sizes.size(); ++s) {
            if (instance.shape(instance.last_stage(static_cast<int>(s))).loss != loss || sizes[s] == 1)
                continue;
            sizes[s] = (sizes[s] + 1) / 2;
            halved = true;
        }
        if (halved) return true;
    }
    return false;
}

/// Plans a step in which every section takes the samples in `order`. The samples of a micro-batch may be too
/// far apart in it for an upstream window. Smaller micro-batches always run in the end: with one sample each,
/// the first sample that is not done can always proceed.
StepPlan plan_in_order(const Problem& problem, std::int64_t step, const Instance& instance,
                       const std::vector<int>& order, const std::vector<int>& replica_of) {
    std::vector<int> sizes;
    for (int s = 0; s < instance.sections(); ++s)
        sizes.push_back(instance.shape(instance.last_stage(s)).micro_batch);
    // Executing is the test, because no simple condition on windows and sizes is exact. Sizes are halved, so
    // that it takes few executions.
    for (bool window_limited = false;; window_limited = true) {
        const std::vector<Batches> batches = cut(instance, order, replica_of, sizes);
        Machine machine(instance, batches);
        ListOrder chooser(machine);
        std::vector<Executed> executed;
        if (machine.run(chooser, &executed) == std::numeric_limits<double>::infinity()) {
            MAESTRO_CHECK(halve(instance, sizes), "{} samples in order do not run one by one",
                          instance.samples);
            continue;
        }
        // One group: these orders take no account of groups, and the whole step was executed at once.
        PlanBuilder builder(problem, 1);
        builder.add(machine, batches, executed, 0);
        StepPlan plan = builder.finish(step);
        plan.window_limited = window_limited;
        return plan;
    }
}

}  // namespace

StepPlan plan_fifo(const Problem& problem, std::int64_t step) {
    const Instance instance = whole(problem);
    std::vector<int> order(instance.samples), replica_of(order.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i < replica_of.size(); ++i)
        replica_of[i] = static_cast<int>(i) % instance.shape(instance.anchor).replicas;
    return plan_in_order(problem, step, instance, order, replica_of);
}

StepPlan plan_lpt(const Problem& problem, std::int64_t step) {
    const Instance instance = whole(problem);
    std::vector<int> order(instance.samples), replica_of(order.size());
    std::iota(order.begin(), order.end(), 0);
    // Of a pipeline, the stage with the most work counts: it works at the rate of that one.
    const int longest = longest_stages(problem)[instance.section_of(instance.anchor)];
    // The longest first leave the short ones to level the loads at the end: the largest load is at most
    // 4/3 - 1/(3 replicas) times the smallest possible.
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return instance.total(longest, a) > instance.total(longest, b); });
    LoadHeap least_loaded(std::vector<double>(instance.shape(instance.anchor).replicas, 0.0));
    for (const int i : order) replica_of[i] = least_loaded.add_to_least(instance.total(longest, i));
    return plan_in_order(problem, step, instance, order, replica_of);
}

}  // namespace maestro::schedule
