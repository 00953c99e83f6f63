// What make_graph derives and refuses.
#include "graph/section_graph.hpp"

#include <gtest/gtest.h>

namespace maestro::graph {
namespace {

Section section(const char* name, Kind kind, int dp) {
    Section made;
    made.name = name;
    made.kind = kind;
    made.layout.dp = dp;
    return made;
}
Edge edge(const char* from, const char* to) {
    Edge made;
    made.from_name = from;
    made.to_name = to;
    return made;
}

TEST(SectionGraph, DerivesRanksOrderAndGradients) {
    for (const bool train : {true, false}) {
        auto vision = section("vision", Kind::vision, 1);
        vision.train = train;
        std::vector<Problem> problems;
        const auto graph = make_graph({section("language", Kind::language, 2), vision},
                                      {edge("vision", "language")}, problems);
        ASSERT_TRUE(problems.empty()) << problems[0].what;
        EXPECT_EQ(graph.world, 3);
        EXPECT_EQ(graph.order, (std::vector<int>{1, 0}));
        EXPECT_EQ(graph.edges[0].fanout, 2);
        EXPECT_EQ(graph.edges[0].gradient, train);
        EXPECT_EQ(graph.sections[1].backward, train);
        EXPECT_TRUE(graph.sections[0].loss);
        EXPECT_EQ(launch_problem(graph, 3), "");
        EXPECT_NE(launch_problem(graph, 2).find("3"), std::string::npos);
    }
}

TEST(SectionGraph, RefusesFanoutThatIsNotWhole) {
    std::vector<Problem> problems;
    make_graph({section("vision", Kind::vision, 2), section("language", Kind::language, 3)},
               {edge("vision", "language")}, problems);
    EXPECT_FALSE(problems.empty());
}

}  // namespace
}  // namespace maestro::graph
