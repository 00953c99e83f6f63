#include "schedule/policies/baselines.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "schedule/execution/choosers.hpp"
#include "schedule/execution/parts.hpp"
#include "schedule/execution/plan_builder.hpp"
#include "schedule/problem/bounds.hpp"
#include "schedule/problem/load_heap.hpp"

namespace maestro::schedule {

namespace {

/// Returns the micro-batches of every section in `order`. set_of: [sample], its set; sizes:
/// [section], samples of a micro-batch.
std::vector<Batches> cut(const Instance& instance, const std::vector<int>& order,
                         const std::vector<int>& set_of, const std::vector<int>& sizes) {
    std::vector<Batches> batches(instance.sections());
    for (std::size_t s = 0; s < batches.size(); ++s) {
        const int stage = instance.last_stage(static_cast<int>(s));
        std::vector<std::vector<int>> on(instance.shape(stage).groups);
        for (const int i : order)
            if (instance.active[instance.at(stage, i)]) on[instance.group_of(stage, set_of[i])].push_back(i);
        for (const auto& list : on) {
            for (std::size_t k = 0; k < list.size(); ++k) {
                if (k > 0 && k % static_cast<std::size_t>(sizes[s]) == 0) batches[s].close_batch();
                batches[s].samples.push_back(list[k]);
            }
            if (!list.empty()) batches[s].close_batch();
            batches[s].close_group();
        }
    }
    return batches;
}

/// What a window limits.
struct InFlight {
    std::vector<int> sizes;  ///< [section], samples of a micro-batch
    int at_once = 0;         ///< micro-batches over which chunks are interleaved
};

/// Halves the micro-batches of the loss sections or, if these have one sample each, those of the others, or
/// else the number over which chunks are interleaved. Returns false if all are 1.
/// A micro-batch of a loss section starts only when all of its samples are in flight upstream at the same
/// time. These micro-batches are halved first, because a window counts micro-batches: smaller ones upstream
/// would let it hold fewer samples. Interleaved chunks run many forwards before the first backward, and their
/// inputs are in flight upstream as well.
bool halve(const Instance& instance, InFlight& in_flight) {
    std::vector<int>& sizes = in_flight.sizes;
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
    const bool chunks = std::any_of(instance.stages.begin(), instance.stages.end(),
                                    [](const StageShape& s) { return s.chunks > 1; });
    if (!chunks || in_flight.at_once == 1) return false;
    in_flight.at_once = (in_flight.at_once + 1) / 2;
    return true;
}

/// Plans a step in which every section takes the samples in `order`, its parts by `sharing`. The samples of a
/// micro-batch may be too far apart in it for an upstream window. Smaller micro-batches always run in the
/// end: with one sample each, taken through chunks one by one, the first sample that is not done can always
/// proceed.
StepPlan plan_in_order(const Problem& problem, std::int64_t step, const Instance& instance,
                       const std::vector<int>& order, const std::vector<int>& set_of, Sharing sharing) {
    InFlight in_flight{.sizes = {}, .at_once = std::max(instance.samples, 1)};
    for (int s = 0; s < instance.sections(); ++s)
        in_flight.sizes.push_back(instance.shape(instance.last_stage(s)).micro_batch);
    // Executing is the test, because no simple condition on windows and sizes is exact. Sizes are halved, so
    // that it takes few executions.
    for (bool window_limited = false;; window_limited = true) {
        std::vector<Batches> batches = cut(instance, order, set_of, in_flight.sizes);
        assign_parts(instance, sharing, batches);
        Machine machine(instance, batches);
        ListOrder chooser(machine, in_flight.at_once);
        std::vector<Executed> executed;
        if (machine.run(chooser, &executed) == std::numeric_limits<double>::infinity()) {
            MAESTRO_CHECK(halve(instance, in_flight), "{} samples in order do not run one by one",
                          instance.samples);
            continue;
        }
        // One sub-problem: these orders take no account of sub-problems, and the whole step was executed at
        // once.
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
    std::vector<int> order(instance.samples), set_of(order.size());
    std::iota(order.begin(), order.end(), 0);
    // In turn to the groups of the anchor, and of each to the sets that have it.
    const int groups = instance.shape(instance.anchor).groups;
    for (const int i : order) {
        const IndexRange sets = instance.sets_of(i % groups);
        set_of[i] = sets.first + i / groups % sets.size();
    }
    return plan_in_order(problem, step, instance, order, set_of, Sharing::in_turn);
}

StepPlan plan_lpt(const Problem& problem, std::int64_t step) {
    const Instance instance = whole(problem);
    std::vector<int> order(instance.samples), set_of(order.size());
    std::iota(order.begin(), order.end(), 0);
    // Of a pipeline, the lane with the most work counts: it works at the rate of that one.
    const std::vector<int> longest = longest_stages(problem)[instance.section_of(instance.anchor)];
    const auto seconds = [&](int i) {
        double sum = 0;
        for (const int stage : longest) sum += instance.total(stage, i);
        return sum;
    };
    // The longest first leave the short ones to level the loads at the end: the largest load is at most
    // 4/3 - 1/(3 groups) times the smallest possible.
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return seconds(a) > seconds(b); });
    LoadHeap least_loaded(std::vector<double>(instance.shape(instance.anchor).groups, 0.0));
    SetAssignment sets(instance);
    for (const int i : order) set_of[i] = sets.add(i, least_loaded.add_to_least(seconds(i)));
    return plan_in_order(problem, step, instance, order, set_of, Sharing::by_cost);
}

}  // namespace maestro::schedule
