// Any bytes as COSTS.csv are read or refused. Makespans of small steps, computed by hand.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "config/deck.hpp"
#include "simulation/costs_file.hpp"
#include "simulation/simulation.hpp"
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

double makespan(const std::string& costs, const std::string& policy, const std::string& more = "") {
    const workload::Scenario s = scenario(more);
    schedule::Problem problem = workload::problem_of(s);
    problem.zero_is_none = true;
    problem.samples = parse_costs("sample,section,forward_s,backward_s\n" + costs, "c.csv", s.graph);
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
