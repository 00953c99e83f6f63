#include "graph/section_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>

#include "graph/grid.hpp"
#include "graph/lay_sections.hpp"

namespace maestro::graph {

namespace {

constexpr int kMaxRanks = 1 << 20;

int find(const std::vector<Section>& sections, const std::string& name) {
    for (std::size_t i = 0; i < sections.size(); ++i)
        if (sections[i].name == name) return static_cast<int>(i);
    return -1;
}

std::string names_of(const std::vector<Section>& sections) {
    std::vector<std::string> names;
    for (const auto& s : sections) names.push_back(s.name);
    return fmt::format("{}", fmt::join(names, ", "));
}

std::string edge_key(const Edge& edge, const char* key) {
    return fmt::format("edge.{}-{}.{}", edge.from_name, edge.to_name, key);
}

/// Kahn's algorithm. Sections that are missing in the result lie on a cycle or downstream of one.
std::vector<int> topological_order(const SectionGraph& graph) {
    std::vector<int> incoming(graph.sections.size(), 0), order;
    for (const Edge& e : graph.edges) ++incoming[e.to];
    for (bool found = true; found;) {
        found = false;
        for (std::size_t s = 0; s < incoming.size(); ++s) {
            if (incoming[s] != 0) continue;
            incoming[s] = -1;
            order.push_back(static_cast<int>(s));
            for (const Edge& e : graph.edges)
                if (e.from == static_cast<int>(s)) --incoming[e.to];
            found = true;
            break;
        }
    }
    return order;
}

/// Returns a cycle among the sections that are not in `order`, as "a -> b -> a".
std::string cycle_text(const SectionGraph& graph) {
    const std::set<int> free(graph.order.begin(), graph.order.end());
    int at = -1;
    for (std::size_t s = 0; s < graph.sections.size(); ++s)
        if (!free.contains(static_cast<int>(s))) at = static_cast<int>(s);
    std::vector<int> path;
    while (std::find(path.begin(), path.end(), at) == path.end()) {
        path.push_back(at);
        for (const Edge& e : graph.edges)  // backwards: every section left has an upstream one that is left
            if (e.to == at && !free.contains(e.from)) {
                at = e.from;
                break;
            }
    }
    std::string text = graph.sections[at].name;
    for (auto it = path.rbegin(); it != path.rend(); ++it) {
        text += " -> " + graph.sections[*it].name;
        if (*it == at) break;
    }
    return text;
}

/// Returns how many ranks a lane needs to hold whole replicas of a section and of all others on its ranks,
/// and all ranks that share experts.
std::int64_t lane_ranks_for(const std::vector<Section>& sections, const Section& section) {
    const auto host_of = [](const Section& s) { return s.colocate_with.empty() ? s.name : s.colocate_with; };
    std::int64_t ranks = 1;
    for (const Section& other : sections)
        if (host_of(other) == host_of(section))
            for (const int needed : {other.layout.stage_ranks(), other.layout.expert_ranks()})
                ranks = std::lcm(ranks, std::max<std::int64_t>(needed, 1));
    return ranks;
}

/// Sets how many replicas of each section share a lane; 1 where the lanes do not fit, which check_lanes()
/// refuses.
void share_lanes(std::vector<Section>& sections) {
    for (Section& s : sections) {
        const std::int64_t replicas =
            lane_ranks_for(sections, s) / std::max<std::int64_t>(s.layout.stage_ranks(), 1);
        s.lane_replicas = s.layout.dp % replicas == 0 ? static_cast<int>(replicas) : 1;
    }
}

/// Refuses sections that do not fill the lanes which they share with colocated ones.
void check_lanes(const SectionGraph& graph, std::vector<Refusal>& refusals) {
    for (const Section& s : graph.sections) {
        const std::int64_t ranks = lane_ranks_for(graph.sections, s);
        if (s.lane_ranks() == ranks) continue;
        std::vector<std::string> sizes;
        for (const Section& other : graph.sections) {
            if (!holds(other, s.first_rank)) continue;
            sizes.push_back(fmt::format("cp x tp is {} for '{}'", other.layout.stage_ranks(), other.name));
            if (other.layout.expert_ranks() > 1)
                sizes.back() += fmt::format(", ep x etp is {}", other.layout.expert_ranks());
        }
        refusals.push_back({"section." + s.name + ".layout.dp",
                            fmt::format("{}: lanes of {} ranks hold all of that, and need dp of '{}' to be a "
                                        "multiple of {}; it is {}",
                                        fmt::join(sizes, " and "), ranks, s.name,
                                        ranks / s.layout.stage_ranks(), s.layout.dp)});
    }
}

void place(SectionGraph& graph, std::vector<Refusal>& refusals) {
    for (auto& s : graph.sections) {
        const bool colocated = !s.colocate_with.empty();
        const Layout& l = s.layout;  // multiplied as doubles: the degrees of a deck may overflow an int
        if (1.0 * l.dp * l.tp * l.cp * l.pp > kMaxRanks - (colocated ? 0 : graph.world)) {
            refusals.push_back(
                {fmt::format("section.{}.layout.dp", s.name),
                 fmt::format("with this section the deck needs more than {} ranks", kMaxRanks)});
            return;
        }
        if (!colocated) graph.world += s.layout.ranks();
    }
    share_lanes(graph.sections);
    for (const Section& s : graph.sections)
        if (s.colocate_with.empty()) graph.lanes += s.lanes();
    lay_sections(graph.sections, graph.world, graph.ranks_per_node, refusals);
    for (auto& s : graph.sections) {
        if (s.colocate_with.empty()) continue;
        const std::string key = "section." + s.name + ".colocate_with";
        const int host = find(graph.sections, s.colocate_with);
        if (host < 0 || s.colocate_with == s.name) {
            refusals.push_back({key, fmt::format("there is no other section '{}'; sections: {}",
                                                 s.colocate_with, names_of(graph.sections))});
            continue;
        }
        const Section& other = graph.sections[host];
        if (!other.colocate_with.empty())
            refusals.push_back({key, fmt::format("'{}' is itself colocated with '{}'; name that section",
                                                 other.name, other.colocate_with)});
        else if (other.layout.ranks() != s.layout.ranks())
            refusals.push_back(
                {key, fmt::format("colocated sections need equal numbers of ranks, '{}' has {} and '{}' {}",
                                  s.name, s.layout.ranks(), other.name, other.layout.ranks())});
        if (s.layout.first_rank >= 0 && s.layout.first_rank != other.layout.first_rank)
            refusals.push_back(
                {"section." + s.name + ".layout.first_rank",
                 fmt::format("{}, but '{}' is colocated with '{}', which has {}; allowed: {}",
                             s.layout.first_rank, s.name, other.name, other.layout.first_rank,
                             other.layout.first_rank < 0 ? "-1; set it for that section"
                                                         : fmt::format("{}, or -1 (as the other section)",
                                                                       other.layout.first_rank))});
        s.first_rank = other.first_rank;
        s.first_lane = other.first_lane;
    }
}

void connect(SectionGraph& graph, std::vector<Refusal>& refusals) {
    std::set<std::pair<int, int>> seen;
    for (auto& e : graph.edges) {
        e.from = find(graph.sections, e.from_name);
        e.to = find(graph.sections, e.to_name);
        for (const auto& [index, name, key] :
             {std::tuple{e.from, e.from_name, "from"}, std::tuple{e.to, e.to_name, "to"}})
            if (index < 0)
                refusals.push_back({edge_key(e, key), fmt::format("there is no section '{}'; sections: {}",
                                                                  name, names_of(graph.sections))});
        if (e.from < 0 || e.to < 0) continue;
        if (e.from == e.to) refusals.push_back({edge_key(e, "to"), "a cycle: an edge needs two sections"});
        if (!seen.insert({e.from, e.to}).second)
            refusals.push_back({edge_key(e, "to"), "this edge is defined twice"});
        const Section &up = graph.sections[e.from], &down = graph.sections[e.to];
        const Kind source = e.tensor == EdgeTensor::embeddings ? Kind::encoder : Kind::language;
        if (up.kind != Kind::any && (up.kind != source || down.kind != Kind::language))
            refusals.push_back({edge_key(e, "tensor"),
                                "embeddings go from an encoder, hidden states from a language section, "
                                "both into a language section"});
        if (up.layout.dp < 1 || down.layout.dp < 1) continue;
        const int producers = up.replica_groups(), consumers = down.replica_groups();
        const bool shared = up.lane_replicas > 1 || down.lane_replicas > 1;
        if (consumers % producers != 0 && producers % consumers != 0)
            refusals.push_back(
                {fmt::format("section.{}.layout.dp", down.name),
                 fmt::format(
                     "edge {} -> {} joins {} {} with {}: neither the fanout {}/{} nor the fan-in {}/{} "
                     "is whole; {} of '{}' must be a multiple or a divisor of {}",
                     up.name, down.name, producers,
                     shared ? "replica groups (replicas that share a lane)" : "replicas", consumers,
                     consumers, producers, producers, consumers, shared ? "the number of groups" : "dp",
                     down.name, producers)});
    }
}

/// Embeddings carry gradients back and hidden states do not; between sections without models every edge does.
/// A section runs backward if a loss is reachable from it over edges that carry gradients, and it trains or
/// has an upstream section over such edges that runs backward.
void derive_gradients(SectionGraph& graph) {
    const auto at = [&](int s) -> Section& { return graph.sections[s]; };
    const auto carries = [&](const Edge& e) {
        return e.tensor == EdgeTensor::embeddings || at(e.from).kind == Kind::any;
    };
    for (auto& s : graph.sections) s.loss = true;
    for (const Edge& e : graph.edges) at(e.from).loss = false;
    std::vector<bool> reaches(graph.sections.size(), false);
    for (auto s = graph.order.rbegin(); s != graph.order.rend(); ++s) {
        bool any = at(*s).loss;
        for (const Edge& e : graph.edges) any = any || (e.from == *s && carries(e) && reaches[e.to]);
        reaches[*s] = any;
    }
    for (const int s : graph.order) {
        bool above = at(s).train;
        for (const Edge& e : graph.edges) above = above || (e.to == s && carries(e) && at(e.from).backward);
        at(s).backward = above && reaches[s];
    }
    for (auto& e : graph.edges) e.gradient = carries(e) && at(e.from).backward;
}

void derive_stages(SectionGraph& graph) {
    graph.stages.clear();
    graph.stage_edges.clear();
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) {
        Section& section = graph.sections[s];
        section.first_stage = static_cast<int>(graph.stages.size());
        for (int k = 0; k < section.layout.stage_count(); ++k)
            graph.stages.push_back({s, k, k % section.layout.pp});
    }
    for (int e = 0; e < static_cast<int>(graph.edges.size()); ++e) {
        const Edge& edge = graph.edges[e];
        const bool hidden = edge.tensor == EdgeTensor::hidden;
        graph.stage_edges.push_back(
            {.from = graph.last_stage(edge.from),
             .to = hidden ? graph.last_stage(edge.to) : graph.sections[edge.to].first_stage,
             .tensor = edge.tensor,
             .edge = e,
             .gradient = edge.gradient});
    }
    for (const Section& section : graph.sections)
        for (int k = section.first_stage; k + 1 < section.first_stage + section.layout.stage_count(); ++k)
            graph.stage_edges.push_back({.from = k, .to = k + 1, .gradient = section.backward});
}

}  // namespace

std::string SectionGraph::stage_name(int stage) const {
    const Section& section = section_of(stage);
    return section.layout.stage_count() == 1 ? section.name
                                             : fmt::format("{} stage {}", section.name, stages[stage].index);
}

std::vector<std::string> SectionGraph::stage_names() const {
    std::vector<std::string> names;
    for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) names.push_back(stage_name(stage));
    return names;
}

SectionGraph make_graph(std::vector<Section> sections, std::vector<Edge> edges,
                        std::vector<Refusal>& refusals, int ranks_per_node) {
    const std::size_t before = refusals.size();
    SectionGraph graph{.sections = std::move(sections),
                       .edges = std::move(edges),
                       .ranks_per_node = ranks_per_node,
                       .stages = {},
                       .stage_edges = {},
                       .order = {}};
    std::set<std::string> names;
    for (const auto& s : graph.sections)
        if (!names.insert(s.name).second)
            refusals.push_back({"section." + s.name + ".name", "another section has this name"});
    if (graph.sections.empty()) refusals.push_back({"section", "a deck needs at least one [[section]]"});
    place(graph, refusals);
    connect(graph, refusals);
    if (refusals.size() == before) check_lanes(graph, refusals);
    if (refusals.size() != before) return graph;
    graph.order = topological_order(graph);
    if (graph.order.size() != graph.sections.size()) {
        refusals.push_back(
            {"edge", "the edges form a cycle: " + cycle_text(graph) + "; a section may not feed itself"});
        return graph;
    }
    derive_gradients(graph);
    derive_stages(graph);
    for (const Edge& e : graph.edges)
        if (e.gradient && !graph.sections[e.to].backward)
            refusals.push_back(
                {edge_key(e, "to"), fmt::format("'{}' trains, but no gradient comes back from '{}'; use a "
                                                "separate section with mode = \"forward\"",
                                                e.from_name, e.to_name)});
    for (const auto& s : graph.sections) {
        if (s.loss && s.kind == Kind::encoder)
            refusals.push_back({"section." + s.name + ".name",
                                "its output is not used; connect it to a language section with an [[edge]]"});
        if (s.train && !s.backward)
            refusals.push_back(
                {"section." + s.name + ".mode",
                 "no gradient reaches it, because hidden states carry none back; set it to \"forward\""});
    }
    return graph;
}

std::string launch_refusal(const SectionGraph& graph, int ranks) {
    if (ranks == graph.world) return "";
    std::vector<std::string> parts;
    for (const auto& s : graph.sections)
        parts.push_back(s.colocate_with.empty() ? fmt::format("{} {}", s.name, s.layout.ranks())
                                                : fmt::format("{} with {}", s.name, s.colocate_with));
    return fmt::format(
        "the deck needs {} rank{} ({}), the launch has {}; run mpirun -n {}, or change "
        "section.NAME.layout or colocate_with",
        graph.world, graph.world == 1 ? "" : "s", fmt::join(parts, ", "), ranks, graph.world);
}

}  // namespace maestro::graph
