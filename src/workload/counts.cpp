#include "workload/counts.hpp"

#include "graph/grid.hpp"
#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

std::vector<StepCounts> step_counts(const config::Deck& deck, std::int32_t marker, const SampleTable& table,
                                    std::span<const std::int64_t> ids) {
    // On a device that does one operation, or moves one byte, a second, seconds are counts.
    config::Cluster computes, moves, sends;
    computes.device.element_flops = 1;
    moves.device.memory_bandwidth = 1;
    for (config::Cluster* cluster : {&computes, &moves, &sends})
        cluster->node.bandwidth = cluster->network.bandwidth = 1;
    const model::PaperLink free, counted{0, 1};
    const auto model_of = [&](const config::Cluster& cluster, model::PaperLink tensor,
                              model::PaperLink context) {
        return CostModel(deck, marker, table, &cluster, [&, tensor, context](int s) {
            return model::make_paper_peers(0, degrees_of(deck.graph.sections[s]),
                                           deck.graph.sections[s].layout.cp_kind,
                                           static_cast<int>(deck.model_of(s).kv_heads), tensor, context);
        });
    };
    const CostModel flops = model_of(computes, free, free), bytes = model_of(moves, free, free),
                    tensor = model_of(sends, counted, free), context = model_of(sends, free, counted);
    std::vector<StepCounts> counts(deck.graph.sections.size());
    for (std::size_t s = 0; s < counts.size(); ++s) {
        const int section = static_cast<int>(s);
        const model::Role role = role_of(deck, section, marker);
        const graph::Layout& layout = deck.graph.sections[s].layout;
        const double ranks = layout.lane_ranks();
        for (const std::int64_t id : ids) {
            const auto both = [&](const CostModel& model) {
                const schedule::TaskCost cost = model.of(id).sections[s];
                return cost.forward_s + cost.backward_s;
            };
            counts[s].flops += ranks * both(flops);
            counts[s].memory_bytes += ranks * both(bytes);
            if (layout.tp > 1) counts[s].tp_bytes += ranks * both(tensor);
            if (layout.cp > 1) counts[s].cp_bytes += ranks * both(context);
            for (const graph::Edge& e : deck.graph.edges)
                if (e.from == static_cast<int>(s) && !graph::passes_pointer(deck.graph, e))
                    counts[s].edge_bytes +=
                        (e.gradient ? 2.0 : 1.0) *
                        static_cast<double>(table.output_rows(id, section) * role.output_width) *
                        static_cast<double>(size_of(role.compute));
        }
        const auto meta = backend::make_meta();
        const auto module =
            model::make_module(*meta, spec_of(deck, section), role, paper_peers_of(deck, section));
        const double weights = sizeof(float) * static_cast<double>(module->parameters().gradient().size());
        // A sum over tp ranks of what they share, once a step.
        for (const auto& [sharing, size] : {std::pair{model::Sharing::tensor, layout.tp},
                                            std::pair{model::Sharing::keys, module->peers().keys->size()}}) {
            const auto shared = static_cast<double>(module->parameters().shared(sharing));
            counts[s].tp_bytes += 2.0 * sizeof(float) * shared * (size - 1) / size * ranks * layout.dp;
        }
        counts[s].ring_bytes = 2 * weights * (layout.dp * layout.cp - 1) * layout.tp;
    }
    return counts;
}

}  // namespace maestro::workload
