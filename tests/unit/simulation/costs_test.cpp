// Any bytes as COSTS.csv are read or refused. Makespans of small steps, computed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "config/deck.hpp"
#include "simulation/costs_file.hpp"
#include "simulation/simulation.hpp"
#include "support/errors.hpp"
#include "workload/costs.hpp"

namespace maestro::simulation {
namespace {

workload::Scenario scenario(const std::string& more = "") {
    return workload::make_scenario(
        config::parse_deck(
            "[[section]]\nname = \"vision\"\n" + more +
                "[[section]]\nname = \"language\"\n[[edge]]\nfrom = \"vision\"\nto = \"language\"\n",
            "deck", {}, config::Command::simulate, config::Times::from_file),
        config::Times::from_file);
}

const std::string kHeader = "sample,section,forward_s,backward_s\n",
                  kStageHeader = "sample,section,forward_s,backward_s,stage\n";

double makespan(const std::string& costs, const std::string& policy, const std::string& more = "",
                const std::string& header = kHeader) {
    const workload::Scenario s = scenario(more);
    schedule::Problem problem = workload::problem_of(s);
    problem.zero_is_none = true;
    problem.samples = parse_costs(header + costs, "c.csv", s.graph);
    return simulate_step(std::move(problem), {.policy = policy}).timeline.makespan_s;
}

TEST(Simulation, TakesWhatAHandCountsForTwoSamples) {
    const std::string two = "0,vision,1,2\n0,language,1,2\n1,vision,1,2\n1,language,1,2\n";
    // vision f0 0-1, f1 1-2, b0 4-6, b1 7-9; language 0 1-4, 1 4-7
    EXPECT_DOUBLE_EQ(makespan(two, "fifo"), 9);
    // one in flight: f0 0-1, language 1-4, b0 4-6, f1 6-7, language 7-10, b1 10-12
    EXPECT_DOUBLE_EQ(makespan(two, "fifo", "window = 1\n"), 12);
    EXPECT_DOUBLE_EQ(makespan(two, "one-size"), 6);  // both ranks do one sample each
    // text first covers the encoder: language 1 0-3, 0 3-6; vision f0 0-1, b0 6-8
    EXPECT_DOUBLE_EQ(makespan("0,vision,1,2\n0,language,1,2\n1,language,1,2\n", "wavefront"),
                     7 /* 0 first: 1-4, b0 4-6, 1 4-7 */);
    EXPECT_DOUBLE_EQ(makespan("0,vision,1,\n0,language,1,2\n1,language,1,2\n", "fifo"), 7);
    EXPECT_DOUBLE_EQ(makespan("5,language,0,0\n", "lpt"), 0);
}

constexpr const char* kTwoStages = "[section.layout]\npp = 2\n";

/// Language waits for the encoder's two stages, and the encoder's backward comes back through both.
TEST(Simulation, TakesWhatAHandCountsForAPipeline) {
    // A second for each forward and two for each backward; f0 0-1, f1 1-2, language 2-5, b1 5-7, b0 7-9.
    EXPECT_DOUBLE_EQ(makespan("0,vision,2,4\n0,language,1,2\n", "fifo", kTwoStages), 9);
    // f0 0-0.5, f1 0.5-2, language 2-5, b1 5-8, b0 8-9
    EXPECT_DOUBLE_EQ(
        makespan("0,vision,0.5,1,0\n0,vision,1.5,3,1\n0,language,1,2,0\n", "fifo", kTwoStages, kStageHeader),
        9);
}

std::string refusal(const std::string& rows) {
    const workload::Scenario s = scenario(kTwoStages);
    return testing_support::error_of([&] { parse_costs(kStageHeader + rows, "c.csv", s.graph); }).what;
}

TEST(CostsFile, RefusesTimesOfStagesThatDoNotFit) {
    using testing::HasSubstr;
    const std::string language = "0,language,1,2,0\n";
    EXPECT_THAT(refusal("0,vision,1,2,2\n" + language), HasSubstr("c.csv:2: stage: '2' is not a stage of the "
                                                                  "section; allowed: 0 to 1"));
    EXPECT_THAT(refusal("0,vision,1,2,0\n" + language),
                HasSubstr("sample 0 has times for 1 of the 2 stages"));
    EXPECT_THAT(refusal("0,vision,1,2,0\n0,vision,1,0,1\n" + language),
                HasSubstr("sample 0 has a backward for 1 of the 2 stages"));
    EXPECT_THAT(refusal("0,vision,1,2,0\n0,vision,1,2,0\n" + language),
                HasSubstr("sample 0 has times for section 'vision stage 0' already"));
    EXPECT_THAT(refusal("0,vision,1,2\n"), HasSubstr("4 fields; allowed: 5"));
}

TEST(Simulation, NamesStagesInItsTimelineAndItsAnswer) {
    const workload::Scenario s = scenario(kTwoStages);
    schedule::Problem problem = workload::problem_of(s);
    problem.zero_is_none = true;
    problem.samples = parse_costs(kHeader + "0,vision,2,4\n0,language,1,2\n", "c.csv", s.graph);
    const Result result = simulate_step(std::move(problem), {.policy = "fifo"});
    EXPECT_THAT(to_csv(result, s.graph),
                testing::AllOf(testing::StartsWith("section,replica,sample,phase,start_s,end_s,stage\n"),
                               testing::HasSubstr("vision,0,0,forward,1.000000000,2.000000000,1\n")));
    EXPECT_THAT(to_json(result, s.graph), testing::HasSubstr(R"("stages":[{"work_s":3.0,)"));
    EXPECT_THAT(describe(result, s.graph), testing::HasSubstr("vision stage 1"));
}

TEST(CostsFile, CorpusOfTheFuzzerIsReadOrRefused) {
    const workload::Scenario s = scenario();
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/costs")) {
        ++count;
        try {
            read_costs(entry.path().string(), s.graph);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_data) << entry.path();
        }
    }
    EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace maestro::simulation
