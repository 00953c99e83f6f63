// Where sections are laid on nodes, against closed cases and against every order.
#include "graph/lay_sections.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "graph/grid.hpp"
#include "unit/graph/sections.hpp"

namespace maestro::graph {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The first ranks of the sections on these nodes.
std::vector<int> first_ranks(const std::vector<Section>& sections, int ranks_per_node) {
    std::vector<Refusal> refusals;
    const SectionGraph graph = make_graph(sections, {}, refusals, ranks_per_node);
    EXPECT_TRUE(refusals.empty()) << refusals.front().key << ": " << refusals.front().what;
    std::vector<int> first;
    for (const Section& s : graph.sections) first.push_back(s.first_rank);
    return first;
}

/// The refusals as "key: what" lines.
std::string refusals_of(const std::vector<Section>& sections, int ranks_per_node = 0) {
    std::vector<Refusal> refusals;
    make_graph(sections, {}, refusals, ranks_per_node);
    std::string text;
    for (const Refusal& r : refusals) text += r.key + ": " + r.what + "\n";
    return text;
}

TEST(LaySections, BeginsAtTheBorderOfANode) {
    const std::vector<Section> sections{section("vision", {.dp = 4}), section("language", {.dp = 16})};
    EXPECT_THAT(first_ranks(sections, 8), ElementsAre(16, 0)) << "two whole nodes instead of 4 + 8 + 4 ranks";
    EXPECT_THAT(first_ranks(sections, 4), ElementsAre(0, 4)) << "both begin at a border in either order";
}

TEST(LaySections, KeepsTheOrderOfTheDeckWhereNodesDoNotMatter) {
    const std::vector<Section> sections{section("vision", {.dp = 4}), section("language", {.dp = 16})};
    for (const int ranks_per_node : {0, 1, 20, 64})
        EXPECT_THAT(first_ranks(sections, ranks_per_node), ElementsAre(0, 4)) << ranks_per_node;
}

TEST(LaySections, CutsBetweenReplicasRatherThanLanes) {
    // In the order of the deck the border cuts a lane of 'b', in the other one replicas of 'a' are apart.
    EXPECT_THAT(first_ranks({section("a", {.dp = 3}), section("b", {.tp = 2})}, 4), ElementsAre(2, 0));
    // The same for two stages of a replica, whose lanes are whole in both orders.
    EXPECT_THAT(first_ranks({section("a", {.dp = 3}), section("b", {.pp = 2})}, 4), ElementsAre(2, 0));
    // 'b' has whole lanes at a border alone, and two sections follow it in the order of the deck.
    EXPECT_THAT(
        first_ranks({section("a", {.dp = 1}), section("b", {.dp = 2, .tp = 4}), section("c", {.dp = 2})}, 4),
        ElementsAre(8, 0, 9));
}

TEST(LaySections, CountsBordersByWhatTheyCut) {
    const Section laid = section("a", {.dp = 2, .tp = 2, .pp = 3});  // replicas of six ranks, lanes of two
    EXPECT_EQ(cuts_of(laid, 0, 0), (Cuts{0, 0, 0}));
    EXPECT_EQ(cuts_of(laid, 0, 12), (Cuts{0, 0, 0}));
    EXPECT_EQ(cuts_of(laid, 12, 12), (Cuts{0, 0, 0}));
    EXPECT_EQ(cuts_of(laid, 0, 6), (Cuts{0, 0, 1}));
    EXPECT_EQ(cuts_of(laid, 2, 6), (Cuts{0, 2, 2}));
    EXPECT_EQ(cuts_of(laid, 1, 6), (Cuts{2, 2, 2}));
    EXPECT_EQ(cuts_of(laid, 0, 4), (Cuts{0, 2, 2}));
    EXPECT_EQ(cuts_of(laid, 0, 1), (Cuts{6, 10, 11}));
}

TEST(LaySections, MovesColocatedSectionsWithTheirHost) {
    const auto guest = section("guest", {.dp = 2, .cp = 2}, "host");
    EXPECT_THAT(first_ranks({guest, section("a", {.dp = 1}), section("host", {.dp = 2, .tp = 2})}, 4),
                ElementsAre(0, 4, 0));
}

TEST(LaySections, TakesFirstRanksFromTheDeck) {
    const auto a = section("a", {.dp = 4}), b = section("b", {.dp = 16});
    const auto at = [](Section s, int first_rank) {
        s.layout.first_rank = first_rank;
        return s;
    };
    EXPECT_THAT(first_ranks({at(a, 16), b}, 0), ElementsAre(16, 0));
    EXPECT_THAT(first_ranks({at(a, 0), b}, 8), ElementsAre(0, 4)) << "against the grid's choice";
    EXPECT_THAT(first_ranks({a, section("c", {.dp = 4}), at(b, 4)}, 8), ElementsAre(0, 20, 4));
    EXPECT_THAT(first_ranks({at(a, 16), section("guest", {.dp = 4}, "a"), b}, 0), ElementsAre(16, 16, 0));
    auto guest = section("guest", {.dp = 4, .first_rank = 16}, "a");
    EXPECT_THAT(first_ranks({at(a, 16), guest, b}, 0), ElementsAre(16, 16, 0));
    EXPECT_EQ(
        refusals_of({a, guest, b}),
        "section.guest.layout.first_rank: 16, but 'guest' is colocated with 'a', which has -1; allowed: "
        "-1; set it for that section\n");
    guest.layout.first_rank = 0;
    EXPECT_THAT(refusals_of({at(a, 16), guest, b}),
                AllOf(HasSubstr("which has 16"), HasSubstr("allowed: 16, or -1")));
    EXPECT_EQ(refusals_of({a, at(b, 5)}),
              "section.b.layout.first_rank: 'b' would have ranks 5-20, but the deck needs 20 ranks; allowed: "
              "0, 4, or -1 (laid by the grid)\n");
    EXPECT_THAT(refusals_of({a, at(b, 3)}),
                HasSubstr("cannot fill the ranks that this leaves; allowed: 0, 4"));
    EXPECT_THAT(refusals_of({at(a, 0), at(b, 3)}), AllOf(HasSubstr("section.b.layout.first_rank"),
                                                         HasSubstr("'a' has ranks 0-3; allowed: 4, or")));
}

TEST(LaySections, LaysManySectionsBySizeOrByHand) {
    std::vector<Section> sections(18);
    for (std::size_t s = 0; s < sections.size(); ++s) {
        sections[s].name = std::string(1, static_cast<char>('a' + s));
        sections[s].layout.dp = 1 + static_cast<int>(s) % 3;
    }
    std::vector<int> in_order(18), by_size(18);
    for (int s = 0, next = 0; s < 18; next += 1 + s % 3, ++s) in_order[s] = next;
    for (int s = 0; s < 18; ++s)
        by_size[s] = s % 3 == 2 ? s / 3 * 3 : s % 3 == 1 ? 18 + s / 3 * 2 : 30 + s / 3;
    EXPECT_EQ(first_ranks(sections, 0), in_order);
    EXPECT_EQ(first_ranks(sections, 36), in_order);
    EXPECT_EQ(first_ranks(sections, 8), by_size);
    sections[0].layout.first_rank = 0;
    EXPECT_THAT(refusals_of(sections),
                AllOf(HasSubstr("section.b.layout.first_rank: -1"), HasSubstr("for none")));
    for (int s = 0; s < 18; ++s) sections[s].layout.first_rank = by_size[s];
    EXPECT_EQ(first_ranks(sections, 0), by_size);
    sections[4].layout.first_rank += 1;
    EXPECT_THAT(refusals_of(sections),
                AllOf(HasSubstr("section.e.layout.first_rank"), HasSubstr("allowed: 20")));
}

/// Sections that share no ranks, whose names are their numbers.
std::vector<Section> random_sections(std::mt19937& random) {
    const auto draw = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
    std::vector<Section> sections(static_cast<std::size_t>(draw(5)));
    for (std::size_t s = 0; s < sections.size(); ++s) {
        sections[s].name = std::to_string(s);
        sections[s].layout = {.dp = draw(4), .tp = draw(3), .cp = draw(2), .pp = draw(3)};
    }
    return sections;
}

/// What the borders cut, from the nodes of each group of ranks.
std::array<int, 3> cuts_by_definition(const std::vector<Section>& sections, int ranks_per_node) {
    std::array<std::map<std::array<int, 3>, std::set<int>>, 3> nodes;  // of each lane, replica and section
    for (int s = 0; s < static_cast<int>(sections.size()); ++s)
        for (int i = 0; i < sections[s].layout.ranks(); ++i) {
            const int rank = sections[s].first_rank + i;
            const Place place = *place_of(sections[s], rank);
            nodes[0][{s, place.replica, place.pp}].insert(rank / ranks_per_node);
            nodes[1][{s, place.replica, 0}].insert(rank / ranks_per_node);
            nodes[2][{s, 0, 0}].insert(rank / ranks_per_node);
        }
    std::array<int, 3> cuts{};
    for (std::size_t i = 0; i < cuts.size(); ++i)
        for (const auto& [group, on] : nodes[i]) cuts[i] += static_cast<int>(on.size()) - 1;
    return cuts;
}

/// Calls `visit` with the sections laid in every order, in lexicographic order.
template <class Visit>
void for_each_order(std::vector<Section> sections, const Visit& visit) {
    std::vector<int> order(sections.size());
    std::iota(order.begin(), order.end(), 0);
    do {
        int next = 0;
        for (const int s : order) {
            sections[s].first_rank = next;
            next += sections[s].layout.ranks();
        }
        visit(sections);
    } while (std::next_permutation(order.begin(), order.end()));
}

/// The first ranks of the best order among those that keep what the deck gives; none if none does.
std::optional<std::vector<int>> best_first_ranks(const std::vector<Section>& sections, int ranks_per_node) {
    std::optional<std::vector<int>> best;
    std::array<int, 3> fewest{};
    for_each_order(sections, [&](const std::vector<Section>& laid) {
        std::vector<int> first;
        for (const Section& s : laid) {
            if (s.layout.first_rank >= 0 && s.layout.first_rank != s.first_rank) return;
            first.push_back(s.first_rank);
        }
        const auto cuts = cuts_by_definition(laid, ranks_per_node);
        if (best && cuts >= fewest) return;
        fewest = cuts;
        best = first;
    });
    return best;
}

TEST(LaySections, IsTheBestOfAllOrders) {
    std::mt19937 random(1);
    int moved = 0;
    for (int trial = 0; trial < 400; ++trial) {
        const std::vector<Section> sections = random_sections(random);
        const int ranks_per_node = std::uniform_int_distribution<int>(1, 16)(random);
        const auto expected = best_first_ranks(sections, ranks_per_node);
        ASSERT_EQ(first_ranks(sections, ranks_per_node), *expected) << "trial " << trial;
        moved += *expected != *best_first_ranks(sections, 1 << 20) ? 1 : 0;
    }
    EXPECT_GT(moved, 100);
}

TEST(LaySections, RefusesExactlyWhatNoOrderAllows) {
    std::mt19937 random(2);
    int refused = 0, laid = 0;
    for (int trial = 0; trial < 600; ++trial) {
        std::vector<Section> sections = random_sections(random);
        const int ranks_per_node = std::uniform_int_distribution<int>(1, 16)(random);
        // Ranks of some order, of which one is then sometimes moved by a few.
        std::vector<Section> some = sections;
        std::shuffle(some.begin(), some.end(), random);
        int next = 0;
        for (const Section& s : some) {
            if (random() % 2 == 0) sections[std::stoul(s.name)].layout.first_rank = next;
            next += s.layout.ranks();
        }
        Section& moved = sections[random() % sections.size()];
        if (moved.layout.first_rank > 0 && random() % 2 == 0)
            moved.layout.first_rank -= static_cast<int>(random() % 3);
        moved.layout.first_rank = std::max(moved.layout.first_rank, -1);
        const auto expected = best_first_ranks(sections, ranks_per_node);
        if (expected) {
            ASSERT_EQ(first_ranks(sections, ranks_per_node), *expected) << "trial " << trial;
            ++laid;
            continue;
        }
        // Each first rank that the first refusal allows lets the others that were given before it stay.
        ++refused;
        std::vector<Refusal> refusals;
        make_graph(sections, {}, refusals, ranks_per_node);
        ASSERT_FALSE(refusals.empty()) << "trial " << trial;
        const std::string text = refusals.front().what;
        const std::size_t at = std::stoul(refusals.front().key.substr(8));
        for (std::size_t s = at + 1; s < sections.size(); ++s) sections[s].layout.first_rank = -1;
        std::string allowed;
        for (int first = 0, listed = 0; first <= next && listed <= 8; ++first) {
            sections[at].layout.first_rank = first;
            if (!best_first_ranks(sections, 1)) continue;
            allowed += ++listed <= 8 ? std::to_string(first) + ", " : "..., ";
        }
        EXPECT_THAT(text, HasSubstr("; allowed: " + allowed + "or -1")) << "trial " << trial;
    }
    EXPECT_GT(refused, 50);
    EXPECT_GT(laid, 200);
}

}  // namespace
}  // namespace maestro::graph
