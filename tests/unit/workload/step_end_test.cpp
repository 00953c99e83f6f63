// The predicted time of a step's end, compared with closed forms.
#include "workload/step_end.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"
#include "parallel/mesh.hpp"

namespace maestro::workload {
namespace {

/// A language model of four replicas, on a device that computes in no time: only messages take time.
struct Replicas {
    model::ModelSpec spec{.name = "language", .vocabulary = 64};
    model::Role role{.section = "language", .inputs = {}, .loss = true};
    parallel::Mesh mesh(const parallel::LinkCost& data) const {
        return parallel::make_meta_mesh(0, {.dp = 4, .trainable = role.trained},
                                        {.tp = {}, .cp = {}, .data = data});
    }
    StepEnd end(const parallel::LinkCost& data) const { return measure_step_end(spec, role, mesh(data), {}); }
    /// Bytes of the three shards that a rank sends as gradients and receives as weights.
    double exchanged_bytes() const {
        const auto meta = backend::make_meta({});
        const auto module = model::make_module(*meta, spec, role, mesh({}), model::InitialWeights::zeros);
        double bytes = 0;
        for (const parallel::ParameterGroup& group : module->parameters().groups())
            bytes +=
                static_cast<double>(group.size() - (group.shard().end - group.shard().begin)) * sizeof(float);
        return bytes;
    }
};

TEST(StepEnd, ReducesGradientsAndGathersWeightsAtTheLinksSpeed) {
    const Replicas replicas;
    const double bytes = replicas.exchanged_bytes();
    const StepEnd end = replicas.end({.latency_s = 0, .bandwidth = bytes / 2});
    EXPECT_NEAR(end.reduce_s, 2, 1e-9);
    EXPECT_NEAR(end.update_s, 2, 1e-9);
}

TEST(StepEnd, TakesNoTimeWhereNothingIsTrained) {
    Replicas replicas;
    replicas.role.trained = replicas.role.needs_backward = false;
    const StepEnd end = replicas.end({.latency_s = 1, .bandwidth = 1});
    EXPECT_EQ(end.reduce_s, 0);
    EXPECT_EQ(end.update_s, 0);
}

graph::Section section(const char* name, graph::Kind kind, int dp, const char* colocate_with = "") {
    graph::Section made;
    made.name = name;
    made.kind = kind;
    made.layout.dp = dp;
    made.colocate_with = colocate_with;
    return made;
}

graph::SectionGraph vision_language(int language_dp, const char* colocate_with) {
    graph::Edge edge;
    edge.from_name = "vision";
    edge.to_name = "language";
    std::vector<graph::Refusal> refusals;
    auto graph = make_graph({section("vision", graph::Kind::vision, 1),
                             section("language", graph::Kind::language, language_dp, colocate_with)},
                            {edge}, refusals);
    EXPECT_TRUE(refusals.empty());
    return graph;
}

const std::vector<StepEnd> kEnds = {{.reduce_s = 10, .update_s = 5}, {.reduce_s = 0.5, .update_s = 3}};

/// Eight ranks on two nodes, whose network has a tenth of a node's bandwidth: three quarters of the array
/// within the node, which takes less time than an eighth between the nodes.
TEST(StepEnd, SumsWithinNodesBeforeItCrossesBetweenThem) {
    const model::ModelSpec spec{
        .name = "language", .layers = 6, .width = 512, .heads = 8, .mlp = 2048, .vocabulary = 64};
    const model::Role role{.section = "language", .inputs = {}, .loss = true};
    const parallel::MeshLinks links{
        .tp = {}, .cp = {}, .data = {0, 1e9}, .data_nodes = {0, 0, 0, 0, 1, 1, 1, 1}, .network = {0, 1e8}};
    const auto mesh = [&] { return parallel::make_meta_mesh(0, {.dp = 8, .trainable = true}, links); };
    const auto meta = backend::make_meta({});
    const auto module = model::make_module(*meta, spec, role, mesh(), model::InitialWeights::zeros);
    const double bytes = sizeof(float) * static_cast<double>(module->parameters().trainable());
    const StepEnd end = measure_step_end(spec, role, mesh(), {});
    for (const double seconds : {end.reduce_s, end.update_s}) {
        EXPECT_GE(seconds, bytes / 8 / 1e8);
        EXPECT_LE(seconds, 1.1 * bytes / 8 / 1e8);
    }
}

TEST(StepSeconds, ReduceThenSumTheNormThenUpdate) {
    // Vision on the first of three lanes. Replicas of language wait for the last of them, which ends at 4.
    // The norm is summed along a tree: two levels for three ranks, up and down.
    const auto graph = vision_language(2, "");
    EXPECT_DOUBLE_EQ(step_seconds(graph, kEnds, {1, 2, 4}, 0.25), (1 + 10) + 4 * 0.25 + 5);
    EXPECT_DOUBLE_EQ(step_seconds(graph, kEnds, {1, 2, 14}, 0.25), (14 + 0.5) + 4 * 0.25 + 5);
}

TEST(StepSeconds, ColocatedSectionsFollowEachOther) {
    EXPECT_DOUBLE_EQ(step_seconds(vision_language(1, "vision"), kEnds, {1}, 0.25), 1 + 10 + 0.5 + 5 + 3);
}

}  // namespace
}  // namespace maestro::workload
