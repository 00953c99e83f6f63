// The search for a plan, compared with all plans on more ranks than the quick tests take. What it finds takes
// as long as the fastest of all, it proves that with at most 100 simulated plans, and no plan is faster than
// its bound. Each test tells how many plans there are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "unit/plan/decks.hpp"
#include "unit/plan/search_fixture.hpp"

namespace maestro::plan {
namespace {

class AllPlans : public SearchTest {
protected:
    void expect_all(int ranks, std::size_t plans) { EXPECT_EQ(compare(ranks).size(), plans); }
};

/// Of kFixed and these.
std::set<std::string> with_fixed(std::set<std::string> keys) {
    keys.insert(kFixed.begin(), kFixed.end());
    return keys;
}

/// All keys of these sections but dp and tp, and but those in `free`.
std::set<std::string> all_but(const std::vector<std::string>& sections, const std::set<std::string>& free) {
    std::set<std::string> fixed;
    for (const std::string& section : sections)
        for (const char* key : {"recompute", "layout.cp", "layout.pp", "layout.chunks", "micro_batch"})
            fixed.insert(fmt::format("section.{}.{}", section, key));
    for (const std::string& key : free) fixed.erase(key);
    return fixed;
}

/// With dp, tp, pp and micro-batches free.
TEST_F(AllPlans, OfTwoSectionsOnEightRanks) {
    make({.fixed = kFixed, .ranks_per_node = 8});
    expect_all(8, 2448);
}

/// The same between nodes that exchange little.
TEST_F(AllPlans, OfTwoSectionsOnEightRanksOfFourNodes) {
    make({.fixed = kFixed, .kind = "gpu", .network = {2e-5, 1e8}});
    expect_all(8, 2448);
}

/// The search finds the fastest plan, but 100 simulations are too few for a proof: the bounds of most plans
/// have too little of the sums after the last task.
TEST_F(AllPlans, DISABLED_OfManySamplesOnEightRanksOfFourNodes) {
    make({.samples = 24, .fixed = kFixed, .network = {2e-5, 1e8}});
    expect_all(8, 3987);
}

TEST_F(AllPlans, OfTwoSectionsOnSixteenRanksOfTwoNodes) {
    make({.samples = 24, .fixed = with_fixed({"section.language.micro_batch"}), .ranks_per_node = 8});
    expect_all(16, 3164);
}

/// The search finds the fastest plan, but 100 simulations are too few for a proof.
TEST_F(AllPlans, DISABLED_OfFreeMicroBatchesOnSixteenRanks) {
    make({.samples = 24, .fixed = with_fixed({"section.vision.micro_batch"}), .ranks_per_node = 8});
    expect_all(16, 3294);
}

TEST_F(AllPlans, OfThreeSectionsOnSixRanks) {
    make({.fixed = all_but({"vision", "teacher", "language"},
                           {"section.language.micro_batch", "section.language.layout.pp"}),
          .deck = vision_teacher_student()});
    expect_all(6, 1032);
}

/// Sections of a frozen and of a trained encoder in all fifteen ways to share ranks.
TEST_F(AllPlans, OfFourSectionsOnFiveRanks) {
    make({.fixed = all_but({"vision", "frozen-vision", "teacher", "language"}, {}), .deck = two_visions()});
    expect_all(5, 353);
}

/// With ep, etp, tp, pp and micro-batches of the section with experts free.
TEST_F(AllPlans, OfExpertsOnEightRanks) {
    make({.fixed = with_fixed(
              {"section.vision.layout.tp", "section.vision.layout.pp", "section.vision.micro_batch"}),
          .values = {"model.glyph-language.experts=4", "model.glyph-language.experts_per_token=2",
                     "model.glyph-language.expert_mlp=32"},
          .ranks_per_node = 4});
    expect_all(8, 821);
}

/// The degrees of tp that divide them are 1, 2, 3, 4, 6 and 12.
TEST_F(AllPlans, OfTwelveHeads) {
    make({.fixed = with_fixed({"section.vision.layout.tp", "section.vision.layout.pp",
                               "section.language.layout.pp", "section.vision.micro_batch"}),
          .values = {"model.glyph-language.heads=12", "model.glyph-language.kv_heads=12"},
          .ranks_per_node = 4});
    expect_all(12, 417);
}

/// Neither the ranks nor the samples can be divided evenly.
TEST_F(AllPlans, OfThirteenSamplesOnSevenRanks) {
    make({.samples = 13, .fixed = kFixed, .ranks_per_node = 7});
    expect_all(7, 1955);
}

TEST_F(AllPlans, OfThirtyOneSamplesOnThirteenRanks) {
    make({.samples = 31,
          .fixed = with_fixed({"section.vision.micro_batch", "section.vision.layout.pp"}),
          .ranks_per_node = 5});
    expect_all(13, 1289);
}

/// Replicas without a sample.
TEST_F(AllPlans, OfThreeSamplesOnEightRanks) {
    make({.samples = 3, .fixed = kFixed});
    expect_all(8, 697);
}

}  // namespace
}  // namespace maestro::plan
