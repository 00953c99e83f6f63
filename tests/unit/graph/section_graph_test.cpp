// What make_graph derives and refuses.
#include "graph/section_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace maestro::graph {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

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
        auto vision = section("vision", Kind::encoder, 1);
        vision.train = train;
        std::vector<Refusal> refusals;
        const auto graph = make_graph({section("language", Kind::language, 2), vision},
                                      {edge("vision", "language")}, refusals);
        ASSERT_TRUE(refusals.empty()) << refusals[0].what;
        EXPECT_EQ(graph.world, 3);
        EXPECT_EQ(graph.order, (std::vector<int>{1, 0}));
        EXPECT_EQ(graph.edges[0].gradient, train);
        EXPECT_EQ(graph.sections[1].backward, train);
        EXPECT_TRUE(graph.sections[0].loss);
        EXPECT_EQ(launch_refusal(graph, 3), "");
        EXPECT_NE(launch_refusal(graph, 2).find("3"), std::string::npos);
    }
}

/// The refusals of a graph, as "key: what" lines.
std::string refusals_of(std::vector<Section> sections, std::vector<Edge> edges) {
    std::vector<Refusal> refusals;
    make_graph(std::move(sections), std::move(edges), refusals);
    std::string text;
    for (const Refusal& r : refusals) text += r.key + ": " + r.what + "\n";
    return text;
}

Edge hidden(const char* from, const char* to) {
    Edge made = edge(from, to);
    made.tensor = EdgeTensor::hidden;
    return made;
}

/// Embeddings enter the first stage of a section, hidden states leave and enter the last ones.
TEST(SectionGraph, ConnectsStages) {
    auto vision = section("vision", Kind::encoder, 1), teacher = section("teacher", Kind::language, 1),
         student = section("student", Kind::language, 2);
    teacher.train = false;
    vision.layout.pp = 2;
    student.layout.pp = 3;
    std::vector<Refusal> refusals;
    const auto graph = make_graph({vision, teacher, student},
                                  {edge("vision", "student"), hidden("teacher", "student")}, refusals);
    ASSERT_TRUE(refusals.empty()) << refusals[0].what;
    std::vector<std::array<int, 2>> stages;
    for (const Stage& s : graph.stages) stages.push_back({s.section, s.index});
    EXPECT_THAT(stages, testing::ElementsAreArray(
                            std::vector<std::array<int, 2>>{{0, 0}, {0, 1}, {1, 0}, {2, 0}, {2, 1}, {2, 2}}));
    std::vector<std::array<int, 4>> edges;
    for (const StageEdge& e : graph.stage_edges) edges.push_back({e.from, e.to, e.edge, e.gradient});
    EXPECT_THAT(edges, testing::ElementsAreArray(std::vector<std::array<int, 4>>{
                           {1, 3, 0, 1}, {2, 5, 1, 0}, {0, 1, -1, 1}, {3, 4, -1, 1}, {4, 5, -1, 1}}));
    EXPECT_EQ(graph.stage_edges[2].tensor, EdgeTensor::stream);
}

TEST(SectionGraph, RefusesFanoutThatIsNotWhole) {
    const std::string text =
        refusals_of({section("vision", Kind::encoder, 2), section("language", Kind::language, 3)},
                    {edge("vision", "language")});
    EXPECT_THAT(text, AllOf(HasSubstr("section.language.layout.dp"), HasSubstr("3/2"),
                            HasSubstr("a multiple or a divisor of 2")));
    EXPECT_EQ(refusals_of({section("vision", Kind::encoder, 2), section("language", Kind::language, 4)},
                          {edge("vision", "language")}),
              "");
    // Six encoders on the ranks of two students are two groups of three.
    auto guest = section("vision", Kind::encoder, 6), student = section("student", Kind::language, 2);
    guest.colocate_with = "student";
    student.layout.tp = 3;
    EXPECT_THAT(refusals_of({guest, student, section("language", Kind::language, 3)},
                            {edge("vision", "student"), edge("vision", "language")}),
                AllOf(HasSubstr("vision -> language joins 2 replica groups"),
                      HasSubstr("the number of groups of 'language' must be a multiple or a divisor of 2")));
}

TEST(SectionGraph, NamesTheCycle) {
    const std::vector<Section> sections{section("a", Kind::language, 1), section("b", Kind::language, 1),
                                        section("c", Kind::language, 1), section("d", Kind::language, 1)};
    EXPECT_THAT(
        refusals_of(sections, {hidden("a", "b"), hidden("b", "c"), hidden("c", "b"), hidden("c", "d")}),
        AnyOf(HasSubstr("b -> c -> b"), HasSubstr("c -> b -> c")));
    EXPECT_THAT(refusals_of(sections, {hidden("a", "a")}), HasSubstr("edge.a-a.to: a cycle"));
}

TEST(SectionGraph, RefusesWhatDoesNotFit) {
    const auto v = section("v", Kind::encoder, 1), l = section("l", Kind::language, 1),
               m = section("m", Kind::language, 2);
    EXPECT_THAT(refusals_of({v, l}, {edge("v", "l"), edge("v", "l")}),
                HasSubstr("this edge is defined twice"));
    EXPECT_THAT(refusals_of({v, l}, {edge("v", "x")}), AllOf(HasSubstr("no section 'x'"), HasSubstr("v, l")));
    EXPECT_THAT(refusals_of({v, v, l}, {edge("v", "l")}), HasSubstr("another section has this name"));
    EXPECT_THAT(refusals_of({v, l}, {hidden("v", "l")}), HasSubstr("edge.v-l.tensor"));
    EXPECT_THAT(refusals_of({v, l}, {}), HasSubstr("its output is not used"));
    EXPECT_THAT(refusals_of({}, {}), HasSubstr("at least one"));
    auto guest = v;
    guest.colocate_with = "m";
    EXPECT_THAT(refusals_of({guest, m}, {edge("v", "m")}),
                HasSubstr("equal numbers of ranks, 'v' has 1 and 'm' 2"));
    guest.layout = {.dp = 4096, .tp = 17, .cp = 61681};  // 4096 * (2^20 + 1) ranks: 4096 in 32 bits
    auto host = m;
    host.layout = {.dp = 4096};
    EXPECT_THAT(refusals_of({guest, host}, {edge("v", "m")}), HasSubstr("more than 1048576 ranks"));
    guest.layout = {};
    guest.colocate_with = "nobody";
    EXPECT_THAT(refusals_of({guest, m}, {edge("v", "m")}), HasSubstr("no other section 'nobody'"));
    guest.colocate_with = "l";
    auto chained = l;
    chained.colocate_with = "v";
    EXPECT_THAT(refusals_of({guest, chained}, {edge("v", "l")}), HasSubstr("is itself colocated"));
}

TEST(SectionGraph, PlacesColocatedSectionsOnTheSameRanks) {
    auto language = section("l", Kind::language, 2);
    language.colocate_with = "v";
    std::vector<Refusal> refusals;
    auto teacher = section("t", Kind::language, 1);
    teacher.train = false;
    const auto graph = make_graph({teacher, section("v", Kind::encoder, 2), language},
                                  {edge("v", "l"), hidden("t", "l")}, refusals);
    ASSERT_TRUE(refusals.empty()) << refusals[0].what;
    EXPECT_EQ(graph.world, 3);
    EXPECT_EQ(graph.sections[1].first_rank, 1);
    EXPECT_EQ(graph.sections[2].first_rank, 1);
    EXPECT_THAT(launch_refusal(graph, 2), AllOf(HasSubstr("t 1, v 2, l with v"), HasSubstr("mpirun -n 3")));
}

// Hidden states carry no gradient back: what only they connect to a loss cannot be trained, and runs no
// backward.
TEST(SectionGraph, SendsGradientsOverEmbeddingsAlone) {
    auto vision = section("vision", Kind::encoder, 1), teacher = section("teacher", Kind::language, 1),
         eye = vision;
    eye.name = "eye";
    eye.train = teacher.train = false;
    std::vector<Refusal> refusals;
    const auto graph = make_graph(
        {vision, eye, teacher, section("student", Kind::language, 1)},
        {edge("eye", "teacher"), edge("vision", "student"), hidden("teacher", "student")}, refusals);
    ASSERT_TRUE(refusals.empty()) << refusals[0].what;
    EXPECT_TRUE(graph.sections[0].backward && graph.edges[1].gradient);
    EXPECT_FALSE(graph.sections[1].backward || graph.edges[0].gradient);
    EXPECT_FALSE(graph.sections[2].backward || graph.edges[2].gradient);
    EXPECT_TRUE(graph.sections[3].loss);
    EXPECT_THAT(
        refusals_of({vision, teacher, section("student", Kind::language, 1)},
                    {edge("vision", "teacher"), edge("vision", "student"), hidden("teacher", "student")}),
        AllOf(HasSubstr("edge.vision-teacher.to"), HasSubstr("no gradient comes back from 'teacher'")));
    EXPECT_THAT(refusals_of({section("teacher", Kind::language, 1), section("student", Kind::language, 1)},
                            {hidden("teacher", "student")}),
                AllOf(HasSubstr("section.teacher.mode"), HasSubstr("forward")));
}

}  // namespace
}  // namespace maestro::graph
