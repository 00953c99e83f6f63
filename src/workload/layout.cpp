#include "workload/layout.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "graph/grid.hpp"
#include "workload/costs.hpp"

namespace maestro::workload {

namespace {

/// Appends a placement, merged with the last one where both are adjacent at both ends.
void add(std::vector<parallel::RowPlacement>& placements, const parallel::RowPlacement& more) {
    if (!placements.empty()) {
        parallel::RowPlacement& last = placements.back();
        if (last.rank == more.rank && last.first + last.count == more.first &&
            last.local + last.count == more.local) {
            last.count += more.count;
            return;
        }
    }
    placements.push_back(more);
}

/// The same for ranges. Each range that is left costs a copy or a part of a message at run time.
void add(std::vector<Range>& places, Range more) {
    if (!places.empty() && places.back().end == more.begin)
        places.back().end = more.end;
    else if (more.size() > 0)
        places.push_back(more);
}

}  // namespace

parallel::Degrees degrees_of(const graph::Section& section) {
    return {.cp = section.layout.cp, .tp = section.layout.tp};
}

parallel::MeshShape mesh_shape_of(const Scenario& scenario, int stage) {
    const graph::SectionGraph& graph = scenario.graph;
    const int section = graph.stages[stage].section;
    const graph::Section& s = graph.sections[section];
    const model::ModelSpec& model = scenario.models[section];
    parallel::MeshShape shape{.dp = s.layout.dp,
                              .degrees = degrees_of(s),
                              .context_kind = s.layout.cp_kind,
                              .kv_heads = model.kv_heads,
                              .trainable = s.train};
    if (is_tied(scenario, stage)) shape.tied = {stage == s.first_stage ? 0 : 1, 2};
    return shape;
}

bool is_tied(const Scenario& scenario, int stage) {
    const graph::SectionGraph& graph = scenario.graph;
    const int section = graph.stages[stage].section;
    const graph::Section& s = graph.sections[section];
    const model::ModelSpec& model = scenario.models[section];
    return s.layout.stage_count() > 1 && s.loss && model.kind == model::ModelSpec::Kind::language &&
           model.tie_embeddings && (stage == s.first_stage || stage == graph.last_stage(section));
}

parallel::MeshLinks mesh_links_of(const Scenario& scenario, int stage) {
    const graph::SectionGraph& graph = scenario.graph;
    const graph::Stage& of = graph.stages[stage];
    const graph::Section& s = graph.sections[of.section];
    const int first = graph::first_rank_of(graph, stage);
    const auto cost_of = [](const config::Link& link) {
        const config::Link collective = link.of_collectives();
        return parallel::LinkCost{collective.latency_s, collective.bandwidth};
    };
    const auto between = [&](int from, int to) {
        if (!scenario.cluster) return parallel::LinkCost{};
        return cost_of(link_among(*scenario.cluster, from, to));
    };
    parallel::MeshLinks links{.tp = between(first, first + s.layout.tp - 1),
                              .cp = between(first, first + s.layout.lane_ranks() - 1),
                              .data = between(first, first),
                              .tied = between(graph::first_rank_of(graph, s.first_stage),
                                              graph::first_rank_of(graph, graph.last_stage(of.section)))};
    if (!scenario.cluster) return links;
    links.network = cost_of(scenario.cluster->network);
    for (int replica = 0; replica < s.layout.dp; ++replica)
        for (int cp = 0; cp < s.layout.cp; ++cp) {
            const graph::Place place{.replica = replica, .pp = of.index % s.layout.pp, .cp = cp};
            links.data_nodes.push_back(node_of(*scenario.cluster, graph::rank_at(s, place)));
        }
    return links;
}

parallel::Mesh meta_mesh_of(const Scenario& scenario, int stage, int rank) {
    return parallel::make_meta_mesh(rank, mesh_shape_of(scenario, stage), mesh_links_of(scenario, stage));
}

bool needs_markers(const graph::SectionGraph& graph) {
    return std::any_of(graph.edges.begin(), graph.edges.end(), [&](const graph::Edge& e) {
        return e.tensor == EdgeTensor::embeddings && degrees_of(graph.sections[e.to]).ranks() > 1;
    });
}

namespace {

/// `pictures(sample)` and `length(sample)` give the sizes of an element of `samples`.
template <class Samples, class Pictures, class Length>
PackedSequences pack(const SampleTable& table, int section, const Samples& samples, Pictures&& pictures,
                     Length&& length) {
    PackedSequences packing;
    if (table.sees_pixels(section)) packing.mask = parallel::AttentionMask::bidirectional;
    packing.unit = table.unit(section);
    for (const auto& sample : samples) {
        if (table.sees_pixels(section))
            for (const PictureSize& picture : pictures(sample))
                packing.lengths.push_back(packing.unit * table.rows_of(picture, section));
        else
            packing.lengths.push_back(length(sample));
        packing.samples.push_back(packing.lengths.size());
    }
    return packing;
}

}  // namespace

PackedSequences pack_sequences(const SampleTable& table, int section, std::span<const std::int64_t> samples) {
    return pack(
        table, section, samples, [&](std::int64_t sample) { return table.pictures(sample); },
        [&](std::int64_t sample) { return table.length(sample, section); });
}

PackedSequences pack_sequences(const SampleTable& table, int section,
                               std::span<const model::SampleShape> samples) {
    return pack(
        table, section, samples,
        [](const model::SampleShape& sample) -> const auto& { return sample.pictures; },
        [&](const model::SampleShape& sample) { return table.rows_of(std::span(&sample, 1), section); });
}

parallel::Partition partition_of(const PackedSequences& packing, parallel::Degrees degrees) {
    return parallel::Partition(packing.lengths, packing.mask, degrees, packing.unit);
}

RowPlacements outputs_of(const PackedSequences& packing, parallel::Degrees degrees) {
    const auto sequences = partition_of(packing, degrees).placements();
    RowPlacements outputs(packing.samples.size() - 1);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        std::int64_t row = 0;  // of the sample
        for (std::size_t s = packing.samples[i]; s < packing.samples[i + 1]; ++s) {
            for (const parallel::RowPlacement& h : sequences[s])
                add(outputs[i],
                    {row + h.first / packing.unit, h.count / packing.unit, h.rank, h.local / packing.unit});
            row += packing.lengths[s] / packing.unit;
        }
    }
    return outputs;
}

RowPlacements stream_of(const PackedSequences& packing, parallel::Degrees degrees, bool by_sample) {
    const auto sequences = partition_of(packing, degrees).placements();
    RowPlacements stream(packing.samples.size() - 1);
    for (std::size_t i = 0; i < stream.size(); ++i) {
        std::vector<std::int64_t> before(static_cast<std::size_t>(degrees.ranks()), 0);  // by rank
        std::int64_t row = 0;                                                            // of the sample
        for (std::size_t s = packing.samples[i]; s < packing.samples[i + 1]; ++s) {
            for (const parallel::RowPlacement& h : sequences[s]) {
                add(stream[i], {row + h.first, h.count, h.rank, by_sample ? before[h.rank] : h.local});
                before[h.rank] += h.count;
            }
            row += packing.lengths[s];
        }
    }
    return stream;
}

RowPlacements inputs_of(const PackedSequences& packing, std::span<const std::vector<Range>> places,
                        parallel::Degrees degrees) {
    MAESTRO_CHECK(packing.lengths.size() == places.size() && packing.unit == 1, "{} samples of {} sequences",
                  places.size(), packing.lengths.size());
    const auto sequences = partition_of(packing, degrees).placements();
    RowPlacements inputs(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
        std::vector<std::int64_t> received(static_cast<std::size_t>(degrees.ranks()), 0);  // by rank
        std::int64_t row = 0;                                                              // of the edge
        auto placement = sequences[i].begin();
        for (const Range& place : places[i])
            for (std::int64_t at = place.begin; at < place.end;) {
                while (placement != sequences[i].end() && placement->first + placement->count <= at)
                    ++placement;
                MAESTRO_CHECK(placement != sequences[i].end() && placement->first <= at,
                              "row {} of a sample of {}", at, packing.lengths[i]);
                const std::int64_t count = std::min(place.end, placement->first + placement->count) - at;
                add(inputs[i], {row, count, placement->rank, received[placement->rank]});
                received[placement->rank] += count;
                row += count;
                at += count;
            }
    }
    return inputs;
}

std::vector<Range> places_of(const SampleTable& table, int from, int to, std::int64_t sample,
                             parallel::Degrees degrees) {
    const std::int64_t rows = table.output_rows(sample, from);
    std::vector<Range> places;
    if (degrees.ranks() == 1) {
        add(places, {0, rows});
        return places;
    }
    const std::int64_t length = table.length(sample, to);
    if (!table.sees_pixels(from)) {
        MAESTRO_CHECK(rows == length, "sample {} has {} rows in section {} and {} in section {}", sample,
                      rows, from, length, to);
        add(places, {0, rows});
        return places;
    }
    const std::span<const PictureSize> pictures = table.pictures(sample);
    const std::span<const std::int32_t> markers = table.markers(sample);
    MAESTRO_CHECK(markers.size() == pictures.size(), "sample {} has {} known markers and {} pictures", sample,
                  markers.size(), pictures.size());
    std::int64_t grown = 0;  // rows that the pictures before have more than their markers
    for (std::size_t p = 0; p < pictures.size(); ++p) {
        const std::int64_t begin = markers[p] + grown, tokens = table.rows_of(pictures[p], from);
        add(places, {begin, begin + tokens});
        grown += tokens - 1;
    }
    MAESTRO_CHECK(table.tokens(sample) + grown == length,
                  "sample {} has {} rows in section {}, which expands pictures unlike section {}", sample,
                  length, to, from);
    return places;
}

}  // namespace maestro::workload
