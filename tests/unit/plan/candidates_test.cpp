// Combinations of choices, and those that differ from one in the choice of one section.
#include "plan/candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "unit/plan/decks.hpp"
#include "unit/plan/search_fixture.hpp"

namespace maestro::plan {
namespace {

class CandidatesTest : public SearchTest {
protected:
    /// Three sections on up to six ranks.
    void make_three() {
        std::set<std::string> fixed = kFixed;
        for (const char* section : {"vision", "teacher", "language"})
            for (const char* key : {"micro_batch", "layout.pp", "layout.cp", "layout.chunks", "recompute"})
                fixed.insert("section." + std::string(section) + "." + key);
        make({.samples = 6, .fixed = fixed, .deck = vision_teacher_student(), .ranks_per_node = 8});
    }
    std::vector<graph::Refusal> refusals_of(const Candidate& candidate) const {
        std::vector<graph::Refusal> refusals;
        with_choices(*scenario_, candidate.choices(), candidate.host_of, refusals);
        return refusals;
    }
};

/// Between sections that share ranks or not.
TEST_F(CandidatesTest, HaveEdgesWhoseFanoutIsWhole) {
    make_three();
    const Ratings ratings = rate_all(6);
    const Layouts layouts = layouts_of(*subject_, ratings, 6, false);
    Candidates in_order(scenario_->graph, layouts, Candidates::Order::bound);
    std::vector<Candidate> made;
    while (in_order.next_s() < kNone) ASSERT_TRUE(in_order.next(made, 1 << 20));
    int shared = 0;
    for (const Candidate& candidate : made) {
        if (candidate.host_of == std::vector{0, 0, 2} || candidate.host_of == std::vector{0, 1, 0}) ++shared;
        for (const graph::Refusal& refusal : refusals_of(candidate))
            ADD_FAILURE() << refusal.key << ": " << refusal.what;
    }
    EXPECT_GT(shared, 50);
}

/// Of many choices of sections that share ranks few combinations are listed.
TEST_F(CandidatesTest, HaveNeighboursThatAreNotListed) {
    make_three();
    const Ratings ratings = rate_all(6);
    Layouts layouts = layouts_of(*subject_, ratings, 6, false);
    const auto together = std::find_if(layouts.partitions.begin(), layouts.partitions.end(),
                                       [](const Partition& partition) { return partition.sets.size() == 1; });
    ASSERT_NE(together, layouts.partitions.end());
    const std::vector<Row> rows = *together->rows[0];
    together->rows[0] = std::make_shared<const std::vector<Row>>();
    Candidate candidate{
        .ranks = rows.front().ranks, .rated = rows.front().rated, .host_of = std::vector<int>(sections(), 0)};
    int near = 0;
    for (const Row& row : rows) {
        int differ = 0;
        for (std::size_t s = 0; s < sections(); ++s) differ += row.rated[s] != candidate.rated[s];
        near += differ == 1 && row.ranks == candidate.ranks;
    }
    EXPECT_GE(near, 3);
    const std::vector<Candidate> found = neighbours_of(*subject_, ratings, layouts, candidate, 1 << 20);
    EXPECT_EQ(found.size(), static_cast<std::size_t>(near));
    for (const Candidate& other : found) EXPECT_TRUE(refusals_of(other).empty());
}

}  // namespace
}  // namespace maestro::plan
