#include "graph/grid.hpp"

#include <fmt/format.h>

#include <numeric>

#include "base/check.hpp"

namespace maestro::graph {

int rank_at(const Section& section, const Place& place) {
    const Layout& l = section.layout;
    const int group = place.replica / section.lane_replicas, part = place.replica % section.lane_replicas;
    const int lane = group * l.pp + place.pp;
    return section.first_rank + ((lane * section.lane_replicas + part) * l.cp + place.cp) * l.tp + place.tp;
}

std::optional<Place> place_of(const Section& section, int rank) {
    const Layout& l = section.layout;
    int at = rank - section.first_rank;
    if (at < 0 || at >= l.ranks()) return std::nullopt;
    Place place;
    place.tp = at % l.tp;
    at /= l.tp;
    place.cp = at % l.cp;
    at /= l.cp;
    const int part = at % section.lane_replicas;
    at /= section.lane_replicas;
    place.pp = at % l.pp;
    place.replica = at / l.pp * section.lane_replicas + part;
    return place;
}

int lane_of(const Section& section, int group, int pp) {
    return section.first_lane + group * section.layout.pp + pp;
}

int lane_of(const SectionGraph& graph, int stage, int group) {
    return lane_of(graph.section_of(stage), group, graph.stages[stage].pipeline_rank);
}

int first_rank_of(const SectionGraph& graph, int stage) {
    return rank_at(graph.section_of(stage), {.pp = graph.stages[stage].pipeline_rank});
}

int last_rank_of(const SectionGraph& graph, int stage) {
    const Layout& l = graph.section_of(stage).layout;
    return rank_at(
        graph.section_of(stage),
        {.replica = l.dp - 1, .pp = graph.stages[stage].pipeline_rank, .cp = l.cp - 1, .tp = l.tp - 1});
}

bool holds(const SectionGraph& graph, int stage, int rank) {
    const auto place = place_of(graph.section_of(stage), rank);
    return place && place->pp == graph.stages[stage].pipeline_rank;
}

int lane_on(const SectionGraph& graph, int rank) {
    for (const Section& section : graph.sections)
        if (const auto place = place_of(section, rank))
            return lane_of(section, place->replica / section.lane_replicas, place->pp);
    MAESTRO_FAIL("rank {} of {} holds nothing", rank, graph.world);
}

std::vector<int> ranks_of(const SectionGraph& graph, int lane) {
    for (const Section& section : graph.sections) {
        const int at = lane - section.first_lane;
        if (at < 0 || at >= section.lanes()) continue;
        std::vector<int> ranks(section.lane_ranks());
        std::iota(ranks.begin(), ranks.end(), section.first_rank + at * section.lane_ranks());
        return ranks;
    }
    MAESTRO_FAIL("no lane {} of {}", lane, graph.lanes);
}

bool passes_pointer(const SectionGraph& graph, const StageEdge& edge) {
    const Section &up = graph.section_of(edge.from), &down = graph.section_of(edge.to);
    // With equal pp colocated sections of one rank a lane have equal dp too, so that what holds for one
    // replica holds for all.
    return up.first_rank == down.first_rank && up.lane_ranks() == 1 && down.lane_ranks() == 1 &&
           up.layout.pp == down.layout.pp &&
           graph.stages[edge.from].pipeline_rank == graph.stages[edge.to].pipeline_rank;
}

std::string describe_ranks(const Section& section) {
    const int last = section.first_rank + section.layout.ranks() - 1;
    return last == section.first_rank ? fmt::format("rank {}", last)
                                      : fmt::format("ranks {}-{}", section.first_rank, last);
}

std::string describe_place(const SectionGraph& graph, int rank) {
    std::string text;
    for (const Section& section : graph.sections) {
        const auto place = place_of(section, rank);
        if (!place) continue;
        text += fmt::format("{}{} replica {}", text.empty() ? "" : ", ", section.name, place->replica);
        for (const auto& [degree, name, at] :
             {std::tuple{section.layout.pp, "pp", place->pp}, std::tuple{section.layout.cp, "cp", place->cp},
              std::tuple{section.layout.tp, "tp", place->tp}})
            if (degree > 1) text += fmt::format(" {} {}", name, at);
    }
    return text;
}

}  // namespace maestro::graph
