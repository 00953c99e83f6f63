#include "schedule/policies.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "schedule/choosers.hpp"
#include "schedule/plan_builder.hpp"
#include "schedule/wavefront.hpp"

namespace maestro::schedule {

namespace {

/// Every section takes the samples in `order`; lane[sample] is the replica of the anchor.
StepPlan plan_in_order(const Problem& problem, std::int64_t step, const Instance& instance,
                       const std::vector<int>& order, const std::vector<int>& lane, std::string_view policy) {
    std::vector<Batches> batches(instance.sections.size());
    for (std::size_t s = 0; s < batches.size(); ++s) {
        const SectionShape& shape = instance.sections[s];
        std::vector<std::vector<int>> on(static_cast<std::size_t>(shape.replicas));
        for (const int i : order)
            if (instance.active[instance.at(static_cast<int>(s), i)])
                on[static_cast<std::size_t>(
                       instance.replica_of(static_cast<int>(s), lane[static_cast<std::size_t>(i)]))]
                    .push_back(i);
        for (const auto& list : on) {
            for (std::size_t k = 0; k < list.size(); ++k) {
                if (k > 0 && k % static_cast<std::size_t>(shape.micro_batch) == 0) batches[s].close_batch();
                batches[s].samples.push_back(list[k]);
            }
            if (!list.empty()) batches[s].close_batch();
            batches[s].close_replica();
        }
    }
    Machine machine(instance, batches);
    ListOrder chooser(machine);
    std::vector<Executed> executed;
    if (machine.run(chooser, &executed) == std::numeric_limits<double>::infinity())
        refuse_windows(problem, policy);
    PlanBuilder builder(problem, 1);
    builder.add(machine, batches, executed, 0);
    return builder.finish(step);
}

}  // namespace

StepPlan plan_fifo(const Problem& problem, std::int64_t step) {
    const Instance instance = whole(problem);
    std::vector<int> order(static_cast<std::size_t>(instance.samples)), lane(order.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i < lane.size(); ++i)
        lane[i] = static_cast<int>(i) % instance.shape(instance.anchor).replicas;
    return plan_in_order(problem, step, instance, order, lane, "fifo");
}

StepPlan plan_lpt(const Problem& problem, std::int64_t step) {
    const Instance instance = whole(problem);
    std::vector<int> order(static_cast<std::size_t>(instance.samples)), lane(order.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return instance.total(instance.anchor, a) > instance.total(instance.anchor, b);
    });
    std::vector<double> load(static_cast<std::size_t>(instance.shape(instance.anchor).replicas), 0.0);
    for (const int i : order) {
        const auto least = std::min_element(load.begin(), load.end());
        lane[static_cast<std::size_t>(i)] = static_cast<int>(least - load.begin());
        *least += instance.total(instance.anchor, i);
    }
    return plan_in_order(problem, step, instance, order, lane, "lpt");
}

StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step, std::int64_t moves) {
    if (policy == "wavefront") return plan_wavefront(problem, step, moves);
    if (policy == "fifo") return plan_fifo(problem, step);
    MAESTRO_CHECK(policy == "lpt", "no policy {}", policy);
    return plan_lpt(problem, step);
}

}  // namespace maestro::schedule
