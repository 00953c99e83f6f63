// The map between ranks and places, against its definition.
#include "graph/grid.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

#include "unit/graph/sections.hpp"

namespace maestro::graph {
namespace {

/// Random layouts of one to four sections, laid on nodes of one to twelve ranks. Some are on the ranks of an
/// earlier one, with tp and cp exchanged or with more replicas of fewer ranks.
SectionGraph random_graph(std::mt19937& random) {
    const auto draw = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
    std::vector<Section> sections(static_cast<std::size_t>(draw(4)));
    for (std::size_t s = 0; s < sections.size(); ++s) {
        sections[s].name = std::string(1, static_cast<char>('a' + s));
        sections[s].kind = Kind::language;
        sections[s].layout = {.dp = draw(3), .tp = draw(3), .cp = draw(3), .pp = draw(2)};
        const std::size_t host = s == 0 ? 0 : static_cast<std::size_t>(draw(static_cast<int>(s))) - 1;
        if (s == 0 || draw(2) == 1 || !sections[host].colocate_with.empty()) continue;
        sections[s].colocate_with = sections[host].name;
        sections[s].layout = sections[host].layout;
        Layout& layout = sections[s].layout;
        std::swap(layout.tp, layout.cp);
        if (draw(2) == 1) layout.dp *= std::exchange(layout.tp, 1);
    }
    std::vector<Refusal> refusals;
    SectionGraph graph = make_graph(sections, {}, refusals, draw(12));
    EXPECT_TRUE(refusals.empty()) << refusals.front().key << ": " << refusals.front().what;
    return graph;
}

TEST(Grid, RanksAndPlacesAreOneToOne) {
    std::mt19937 random(1);
    for (int trial = 0; trial < 300; ++trial) {
        const SectionGraph graph = random_graph(random);
        for (const Section& section : graph.sections) {
            const Layout& l = section.layout;
            int rank = section.first_rank;  // tp fastest, then cp, part of the lane, stage, group
            for (int group = 0; group < l.dp / section.lane_replicas; ++group)
                for (int stage = 0; stage < l.pp; ++stage)
                    for (int part = 0; part < section.lane_replicas; ++part)
                        for (int cp = 0; cp < l.cp; ++cp)
                            for (int tp = 0; tp < l.tp; ++tp, ++rank) {
                                const Place place{group * section.lane_replicas + part, stage, cp, tp};
                                ASSERT_EQ(rank_at(section, place), rank);
                                ASSERT_EQ(place_of(section, rank), place);
                            }
            EXPECT_FALSE(holds(section, section.first_rank - 1));
            EXPECT_FALSE(holds(section, rank));
        }
    }
}

TEST(Grid, LanesPartitionTheWorld) {
    std::mt19937 random(2);
    for (int trial = 0; trial < 300; ++trial) {
        const SectionGraph graph = random_graph(random);
        std::vector<int> seen;
        for (int lane = 0; lane < graph.lanes; ++lane)
            for (const int rank : ranks_of(graph, lane)) {
                EXPECT_EQ(lane_on(graph, rank), lane);
                EXPECT_EQ(node_of(graph, rank), rank / graph.ranks_per_node);
                seen.push_back(rank);
            }
        std::vector<int> all(static_cast<std::size_t>(graph.world));
        for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
        EXPECT_EQ(seen, all) << "each rank once, lanes in the order of their leaders";
        for (const Section& section : graph.sections)
            for (int group = 0; group < section.replica_groups(); ++group)
                for (int stage = 0; stage < section.layout.pp; ++stage) {
                    // Colocated sections agree on who is in a lane, whatever their layouts.
                    const std::vector<int> ranks = ranks_of(graph, lane_of(section, group, stage));
                    const int replica = group * section.lane_replicas;
                    EXPECT_EQ(ranks.front(), rank_at(section, {.replica = replica, .pp = stage}));
                    for (const int rank : ranks) {
                        EXPECT_EQ(place_of(section, rank)->replica / section.lane_replicas, group);
                        EXPECT_EQ(place_of(section, rank)->pp, stage);
                    }
                }
    }
}

TEST(Grid, DescribesPlacesByTheDegreesThatAreThere) {
    std::vector<Refusal> refusals;
    const Section vision = section("vision", {.dp = 1}),
                  language = section("language", {.dp = 2, .tp = 2, .cp = 3});
    const SectionGraph graph = make_graph({vision, language}, {}, refusals);
    EXPECT_EQ(describe_place(graph, 0), "vision replica 0");
    EXPECT_EQ(describe_place(graph, 12), "language replica 1 cp 2 tp 1");
    EXPECT_EQ(describe_ranks(graph.sections[0]), "rank 0");
    EXPECT_EQ(describe_ranks(graph.sections[1]), "ranks 1-12");
}

TEST(Grid, LanesHoldWholeReplicasOfColocatedSections) {
    std::vector<Refusal> refusals;
    const SectionGraph graph =
        make_graph({section("language", {.dp = 2, .tp = 4}), section("vision", {.dp = 8}, "language"),
                    section("teacher", {.dp = 4, .cp = 2}, "language")},
                   {}, refusals);
    ASSERT_TRUE(refusals.empty()) << refusals.front().what;
    EXPECT_EQ(graph.lanes, 2);
    EXPECT_EQ(describe_place(graph, 6), "language replica 1 tp 2, vision replica 6, teacher replica 3 cp 0");
    // Stages of six ranks would be needed, but each replica of 'host' has two stages of three.
    make_graph({section("host", {.dp = 1, .tp = 3, .pp = 2}), section("guest", {.dp = 3, .cp = 2}, "host")},
               {}, refusals);
    ASSERT_EQ(refusals.size(), 1u);
    EXPECT_EQ(refusals[0].key, "section.host.layout.dp");
    EXPECT_NE(refusals[0].what.find("lanes of 6 ranks"), std::string::npos) << refusals[0].what;
    EXPECT_NE(refusals[0].what.find("dp of 'host' to be a multiple of 2"), std::string::npos);
}

}  // namespace
}  // namespace maestro::graph
