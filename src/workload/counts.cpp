#include "workload/counts.hpp"

#include "workload/cost_model.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

std::vector<StepCounts> step_counts(const config::Deck& deck, std::int32_t marker, const SampleTable& table,
                                    std::span<const std::int64_t> ids) {
    // On a device that does one operation, or moves one byte, a second, seconds are counts.
    config::Cluster computes, moves;
    computes.device.element_flops = 1;
    moves.device.memory_bandwidth = 1;
    for (config::Cluster* cluster : {&computes, &moves})
        cluster->node.bandwidth = cluster->network.bandwidth = 1;
    const CostModel flops(deck, marker, table, &computes), bytes(deck, marker, table, &moves);
    std::vector<StepCounts> counts(deck.graph.sections.size());
    for (const std::int64_t id : ids) {
        const schedule::SampleCost computed = flops.of(id), moved = bytes.of(id);
        for (std::size_t s = 0; s < counts.size(); ++s) {
            const schedule::TaskCost &work = computed.sections[s], &traffic = moved.sections[s];
            counts[s].flops += work.forward_s + work.backward_s;
            counts[s].memory_bytes += traffic.forward_s + traffic.backward_s;
            for (const graph::Edge& e : deck.graph.edges)
                if (e.from == static_cast<int>(s) && !e.colocated)
                    counts[s].edge_bytes += (e.gradient ? 2 : 1) * traffic.transfer_s;
        }
    }
    for (std::size_t s = 0; s < counts.size(); ++s) {
        const auto meta = backend::make_meta();
        const auto module = model::make_module(*meta, spec_of(deck, static_cast<int>(s)),
                                               role_of(deck, static_cast<int>(s), marker));
        const double weights = sizeof(float) * static_cast<double>(module->parameters().gradient().size());
        counts[s].ring_bytes = 2 * weights * (deck.graph.sections[s].layout.dp - 1);
    }
    return counts;
}

}  // namespace maestro::workload
