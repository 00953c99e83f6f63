#include "workload/layout.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

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
                              .kv_heads = model.kv_heads(),
                              .trainable = s.train,
                              .has_experts = model.experts.count > 0,
                              .experts = {s.layout.ep, s.layout.etp}};
    if (is_tied(scenario, stage)) shape.tied = {stage == s.first_stage ? 0 : 1, 2};
    return shape;
}

bool is_tied(const Scenario& scenario, int stage) {
    const int section = scenario.graph.stages[stage].section;
    return is_tied(scenario, section, scenario.graph.stages[stage].index,
                   scenario.graph.sections[section].layout.stage_count());
}

bool is_tied(const Scenario& scenario, int section, int index, int count) {
    const model::ModelSpec& model = scenario.models[section];
    return count > 1 && scenario.graph.sections[section].loss && !model::Units(model).encodes() &&
           model.tie_embeddings && (index == 0 || index == count - 1);
}

namespace {

/// Returns the ranks of the world that hold a stage, in the order of its mesh.
std::vector<int> ranks_of_stage(const graph::Section& section, int pp) {
    std::vector<int> ranks;
    for (int replica = 0; replica < section.layout.dp; ++replica)
        for (int cp = 0; cp < section.layout.cp; ++cp)
            for (int tp = 0; tp < section.layout.tp; ++tp)
                ranks.push_back(graph::rank_at(section, {replica, pp, cp, tp}));
    return ranks;
}

/// Returns how many nodes there are in a list of the nodes of ranks.
std::size_t count_of(const std::vector<int>& nodes) {
    return std::set<int>(nodes.begin(), nodes.end()).size();
}

/// Returns the nodes of the ranks that hold the same weights: each `parts`-th rank of a stage. Where a border
/// cuts lanes, the groups of their tp ranks are on unlike nodes: of the one with the most.
std::vector<int> data_nodes_of(const config::Cluster& cluster, std::span<const int> stage, int parts) {
    std::vector<std::vector<int>> groups(static_cast<std::size_t>(parts));
    for (std::size_t i = 0; i < stage.size(); ++i)
        groups[i % groups.size()].push_back(node_of(cluster, stage[i]));
    return *std::max_element(groups.begin(), groups.end(),
                             [](const auto& a, const auto& b) { return count_of(a) < count_of(b); });
}

}  // namespace

std::vector<std::vector<int>> expert_nodes_of(const Scenario& scenario, int stage) {
    const graph::Section& section = scenario.graph.section_of(stage);
    const auto size = static_cast<std::size_t>(section.layout.expert_ranks());
    if (size == 1 || (!scenario.cluster && scenario.rank_nodes.empty())) return {};
    const std::vector<int> ranks = ranks_of_stage(section, scenario.graph.stages[stage].pipeline_rank);
    std::set<std::vector<int>> distributions;
    for (std::size_t first = 0; first < ranks.size(); first += size) {
        std::vector<int> nodes;
        for (std::size_t i = first; i < first + size; ++i)
            nodes.push_back(scenario.cluster ? node_of(*scenario.cluster, ranks[i])
                                             : scenario.rank_nodes[static_cast<std::size_t>(ranks[i])]);
        const collective::Nodes numbered(nodes);  // in the order of their lowest ranks
        for (std::size_t i = 0; i < size; ++i) nodes[i] = numbered.of(static_cast<int>(i));
        distributions.insert(std::move(nodes));
    }
    std::vector<std::vector<int>> found(distributions.begin(), distributions.end());
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return count_of(a) > count_of(b); });
    return found;
}

std::vector<int> widest_expert_nodes_of(const Scenario& scenario, int stage) {
    const std::vector<std::vector<int>> nodes = expert_nodes_of(scenario, stage);
    return nodes.empty() ? std::vector<int>() : nodes.front();
}

namespace {

/// Sets the numbers of nodes of a stage's groups along tp, cp and tied: of the groups with most.
void count_nodes(const config::Cluster& cluster, const graph::Section& section, int pp,
                 parallel::MeshLinks& links) {
    const graph::Layout& l = section.layout;
    // Their ranks ascend.
    const auto count = [&](int& nodes, int ranks, const auto& place) {
        int found = 0;
        for (int i = 0, last = -1; i < ranks; ++i)
            if (const int node = node_of(cluster, graph::rank_at(section, place(i))); node != last) {
                ++found;
                last = node;
            }
        nodes = std::max(nodes, found);
    };
    using graph::Place;
    for (int replica = 0; replica < l.dp; ++replica) {
        for (int c = 0; c < l.cp; ++c)
            count(links.tp_nodes, l.tp, [&](int i) { return Place{replica, pp, c, i}; });
        for (int t = 0; t < l.tp; ++t) {
            count(links.cp_nodes, l.cp, [&](int i) { return Place{replica, pp, i, t}; });
            for (int c = 0; c < l.cp; ++c)
                count(links.tied_nodes, 2, [&](int i) {
                    return Place{replica, i == 0 ? 0 : l.pp - 1, c, t};
                });
        }
    }
}

}  // namespace

parallel::MeshLinks mesh_links_of(const Scenario& scenario, int stage) {
    if (!scenario.cluster) return {};
    const config::Cluster& cluster = *scenario.cluster;
    const graph::Section& s = scenario.graph.section_of(stage);
    const graph::Layout& l = s.layout;
    const int pp = scenario.graph.stages[stage].pipeline_rank;
    const config::Link *tp_link = &cluster.node, *cp_link = tp_link, *tied_link = tp_link;
    // The lowest and the highest rank of a group tell whether all are on one node.
    const auto reach = [&](const config::Link*& link, const graph::Place& from, const graph::Place& to) {
        const config::Link& among = link_among(cluster, graph::rank_at(s, from), graph::rank_at(s, to));
        if (&among == &cluster.network) link = &among;
    };
    for (int r = 0; r < l.dp; ++r)
        for (int c = 0; c < l.cp; ++c) {
            reach(tp_link, {r, pp, c, 0}, {r, pp, c, l.tp - 1});
            for (int t = 0; t < l.tp; ++t) {
                reach(cp_link, {r, pp, 0, t}, {r, pp, c, t});
                reach(tied_link, {r, 0, c, t}, {r, l.pp - 1, c, t});
            }
        }
    const std::vector<int> ranks = ranks_of_stage(s, pp);
    const auto cost = [](const config::Link& link) {
        const config::Link collective = link.of_collectives();
        return parallel::LinkCost{collective.latency_s, collective.bandwidth};
    };
    parallel::MeshLinks links{.tp = cost(*tp_link),
                              .cp = cost(*cp_link),
                              .data = cost(cluster.node),
                              .tied = cost(*tied_link),
                              .data_nodes = data_nodes_of(cluster, ranks, l.tp),
                              .network = cost(cluster.network),
                              .ep = cost(cluster.node),
                              .expert_nodes = widest_expert_nodes_of(scenario, stage),
                              .expert_data_nodes = data_nodes_of(cluster, ranks, l.expert_ranks()),
                              .expert_imbalance = cluster.device.expert_imbalance,
                              .collectives = cluster.collectives};
    if (!cluster.collectives.empty()) count_nodes(cluster, s, pp, links);
    return links;
}

parallel::MeshShape task_mesh(parallel::MeshShape shape) {
    const int replica = shape.degrees.ranks();
    shape.dp = std::lcm(replica, shape.experts.ranks()) / replica;
    shape.tied = {};
    return shape;
}

parallel::MeshLinks task_links(parallel::MeshLinks links) {
    links.data = links.tied = {};
    links.tied_nodes = 1;
    links.data_nodes.clear();
    links.expert_data_nodes.clear();
    return links;
}

parallel::Mesh meta_mesh_of(const Scenario& scenario, int stage, int rank) {
    parallel::MeshLinks links = mesh_links_of(scenario, stage);
    // Without a cluster file the job knows its nodes as well, and a rank may forward rows within its own.
    links.expert_nodes = widest_expert_nodes_of(scenario, stage);
    return parallel::make_meta_mesh(rank, mesh_shape_of(scenario, stage), links);
}

bool needs_markers(const graph::SectionGraph& graph) {
    return std::any_of(graph.edges.begin(), graph.edges.end(), [&](const graph::Edge& e) {
        return e.tensor == EdgeTensor::embeddings && degrees_of(graph.sections[e.to]).ranks() > 1;
    });
}

namespace {

/// `items(sample)` and `length(sample)` give the sizes of an element of `samples`.
template <class Samples, class Items, class Length>
PackedSequences pack(const SampleTable& table, int section, const Samples& samples, Items&& items,
                     Length&& length) {
    PackedSequences packing;
    const model::Units& units = table.units(section);
    if (units.encodes()) packing.mask = parallel::AttentionMask::bidirectional;
    packing.unit = units.unit();
    for (const auto& sample : samples) {
        if (!units.encodes())
            packing.lengths.push_back(length(sample));
        else
            for (const Item& item : items(sample))
                if (units.reads(item.kind)) packing.lengths.push_back(units.rows(item));
        packing.samples.push_back(packing.lengths.size());
    }
    return packing;
}

}  // namespace

PackedSequences pack_sequences(const SampleTable& table, int section, std::span<const std::int64_t> samples) {
    return pack(
        table, section, samples, [&](std::int64_t sample) { return table.items(sample); },
        [&](std::int64_t sample) { return table.length(sample, section); });
}

PackedSequences pack_sequences(const SampleTable& table, int section,
                               std::span<const model::SampleShape> samples) {
    return pack(
        table, section, samples, [](const model::SampleShape& sample) -> const auto& { return sample.items; },
        [&](const model::SampleShape& sample) { return table.rows_of(std::span(&sample, 1), section); });
}

parallel::Partition partition_of(const PackedSequences& packing, parallel::Degrees degrees) {
    return parallel::Partition(packing.lengths, packing.mask, degrees, packing.unit);
}

std::vector<std::int64_t> rows_of_ranks(const PackedSequences& packing, parallel::Degrees degrees) {
    const parallel::Partition partition = partition_of(packing, degrees);
    std::vector<std::int64_t> rows;
    for (int cp = 0; cp < degrees.cp; ++cp)
        for (const std::int64_t of_rank : partition.tp_rows(cp)) rows.push_back(of_rank);
    return rows;
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
    if (!table.units(from).encodes()) {
        MAESTRO_CHECK(rows == length, "sample {} has {} rows in section {} and {} in section {}", sample,
                      rows, from, length, to);
        add(places, {0, rows});
        return places;
    }
    const std::span<const Item> items = table.items(sample);
    const std::span<const std::int32_t> markers = table.markers(sample);
    MAESTRO_CHECK(markers.size() == items.size(), "sample {} has {} known markers and {} items", sample,
                  markers.size(), items.size());
    std::int64_t grown = 0;  // rows that the items before have more than their markers
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::int64_t begin = markers[i] + grown;
        const auto encoder = model::reader_of(items[i].kind, table.encoders(to));
        if (!encoder) continue;
        const std::int64_t of_item = table.encoders(to)[*encoder].outputs(items[i]);
        if (table.units(from).reads(items[i].kind)) add(places, {begin, begin + of_item});
        grown += of_item - 1;
    }
    MAESTRO_CHECK(table.tokens(sample) + grown == length,
                  "sample {} has {} rows in section {}, which expands items unlike section {}", sample,
                  length, to, from);
    return places;
}

}  // namespace maestro::workload
