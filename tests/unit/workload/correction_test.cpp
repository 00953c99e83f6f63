// Factors by which measured tasks correct the cost model.
#include "workload/correction.hpp"

#include <gtest/gtest.h>

namespace maestro::workload {
namespace {

schedule::SampleCost cost(double forward, double backward, bool first_active = true) {
    return {.id = 0, .stages = {{forward, backward, first_active, 0}, {2 * forward, 2 * backward, true, 0}}};
}

void observe(Correction& correction, const schedule::SampleCost& sample, double factor) {
    for (std::size_t s = 0; s < 2; ++s) {
        correction.add_predicted(s, sample.stages[s]);
        correction.add_measured(s, 0, factor * sample.stages[s].forward_s);
        correction.add_measured(s, 1, 2 * factor * sample.stages[s].backward_s);
    }
}

TEST(Correction, ScalesEachSectionAndPhase) {
    Correction correction(2);
    schedule::Problem problem{.stages = {{.lacking_forward_s = 1, .lacking_backward_s = 1}, {}},
                              .edges = {},
                              .samples = {cost(1, 4)}};
    const schedule::SampleCost& sample = problem.samples.front();
    correction.apply(problem);
    EXPECT_EQ(sample.stages[0].forward_s, 1);  // nothing measured, nothing changed
    observe(correction, cost(1, 4), 3);
    observe(correction, cost(5, 2), 3);
    EXPECT_DOUBLE_EQ(correction.factors(0)[0], 3);
    EXPECT_DOUBLE_EQ(correction.factors(1)[1], 6);
    correction.apply(problem);
    EXPECT_DOUBLE_EQ(sample.stages[0].backward_s, 24);
    EXPECT_DOUBLE_EQ(sample.stages[1].forward_s, 6);
    EXPECT_DOUBLE_EQ(problem.stages[0].lacking_forward_s, 3);
    EXPECT_DOUBLE_EQ(problem.stages[0].lacking_backward_s, 6);
}

TEST(Correction, LeavesOutSamplesWithoutWork) {
    Correction correction(2);
    correction.add_predicted(0, cost(100, 100, false).stages[0]);
    correction.add_predicted(0, cost(1, 1).stages[0]);
    correction.add_measured(0, 0, 2);
    EXPECT_DOUBLE_EQ(correction.factors(0)[0], 2);
    // Nothing else was measured; the model's seconds may be of another unit, so that 1 would mean nothing.
    EXPECT_DOUBLE_EQ(correction.factors(0)[1], 2);
    EXPECT_DOUBLE_EQ(correction.factors(1)[0], 2);
}

TEST(Correction, ForgetsWhatIsLongAgo) {
    Correction correction(2, 0.5);
    observe(correction, cost(1, 1), 1);
    for (int step = 0; step < 30; ++step) {
        correction.next_step();
        observe(correction, cost(1, 1), 7);
    }
    EXPECT_NEAR(correction.factors(0)[0], 7, 1e-6);
    EXPECT_NEAR(correction.factors(1)[1], 14, 1e-6);
}

}  // namespace
}  // namespace maestro::workload
