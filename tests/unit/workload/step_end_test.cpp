// The predicted time of a step's end, compared with closed forms.
#include "workload/step_end.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "model/module.hpp"
#include "parallel/mesh.hpp"
#include "support/collective_rows.hpp"

namespace maestro::workload {
namespace {

/// A language model of four replicas, on a device that computes in no time: only messages take time.
struct Replicas {
    model::ModelSpec spec{.name = "language", .vocabulary = 64};
    model::Role role{.section = "language", .inputs = {}, .loss_terms = {model::LossTerm{}}};
    parallel::Mesh mesh(const parallel::LinkCost& data) const {
        return parallel::make_meta_mesh(0, {.dp = 4, .trainable = role.trained},
                                        {.tp = {}, .cp = {}, .data = data});
    }
    StepEnd end(const parallel::LinkCost& data) const { return measure_step_end(spec, role, mesh(data), {}); }
    /// By group of parameters: bytes of the three shards that a rank sends as gradients and receives as
    /// weights.
    std::vector<double> exchanged_bytes() const {
        const auto meta = backend::make_meta({});
        const auto module = model::make_module(*meta, spec, role, mesh({}), model::InitialWeights::zeros);
        std::vector<double> bytes;
        for (const parallel::ParameterGroup& group : module->parameters().groups())
            bytes.push_back(static_cast<double>(group.size() - (group.shard().end - group.shard().begin)) *
                            sizeof(float));
        return bytes;
    }
};

TEST(StepEnd, ReducesGradientsAndGathersWeightsAtTheLinksSpeed) {
    const Replicas replicas;
    const std::vector<double> bytes = replicas.exchanged_bytes();
    ASSERT_EQ(bytes.size(), 1u);
    const StepEnd end = replicas.end({.latency_s = 0, .bandwidth = bytes[0] / 2});
    ASSERT_EQ(end.size(), 1u);
    EXPECT_NEAR(end[0].sum_s, 2, 1e-9);
    EXPECT_NEAR(end[0].gather_s, 2, 1e-9);
}

TEST(StepEnd, TakesTheTimeOfEachGroup) {
    Replicas replicas;
    replicas.spec = {.name = "language", .layers = 3, .width = 1024, .mlp = 4096, .vocabulary = 32000};
    const std::vector<double> bytes = replicas.exchanged_bytes();
    const StepEnd end = replicas.end({.latency_s = 0, .bandwidth = 1e9});
    ASSERT_EQ(end.size(), bytes.size());
    for (std::size_t g = 0; g < end.size(); ++g) EXPECT_NEAR(end[g].sum_s, bytes[g] / 1e9, 1e-9);
    // The embedding is not as large as a layer, and layers are alike.
    EXPECT_GT(std::set<double>(bytes.begin(), bytes.end()).size(), 1u);
    EXPECT_LT(std::set<double>(bytes.begin(), bytes.end()).size(), bytes.size());
}

/// What each kind of collective takes counts where it is run.
TEST(StepEnd, ReducesGradientsAndGathersWeightsInTheMeasuredTimes) {
    using collective::CollectiveKind;
    const Replicas replicas;
    const parallel::LinkCost link{.latency_s = 1e-5, .bandwidth = 1e9};
    const auto end = [&](double sum_factor, double gather_factor) {
        std::vector<collective::CollectiveRow> rows;
        for (const auto& [kind, factor] : {std::pair(CollectiveKind::reduce_scatter, sum_factor),
                                           std::pair(CollectiveKind::all_gather, gather_factor)})
            for (collective::CollectiveRow row : testing_support::rows_of_link(kind, 4, 1, link)) {
                row.seconds *= factor;
                rows.push_back(row);
            }
        parallel::Mesh mesh = parallel::make_meta_mesh(
            0, {.dp = 4, .trainable = true},
            {.tp = {}, .cp = {}, .data = {1, 1}, .collectives = collective::CollectiveTimes(rows)});
        return measure_step_end(replicas.spec, replicas.role, std::move(mesh), {}).at(0);
    };
    const GroupTimes by_link = replicas.end(link).at(0);
    for (const auto& [sum_factor, gather_factor] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
        const GroupTimes found = end(sum_factor, gather_factor);
        EXPECT_NEAR(found.sum_s, sum_factor * by_link.sum_s, 1e-9 * by_link.sum_s);
        EXPECT_NEAR(found.gather_s, gather_factor * by_link.gather_s, 1e-9 * by_link.gather_s);
    }
}

TEST(StepEnd, TakesNoTimeWhereNothingIsTrained) {
    Replicas replicas;
    replicas.role.trained = replicas.role.needs_backward = false;
    EXPECT_TRUE(replicas.end({.latency_s = 1, .bandwidth = 1}).empty());
}

/// Eight ranks on two nodes, whose network has a tenth of a node's bandwidth: three quarters of the array
/// within the node, which takes less time than an eighth between the nodes.
TEST(StepEnd, SumsWithinNodesBeforeItCrossesBetweenThem) {
    const model::ModelSpec spec{.name = "language",
                                .layers = 6,
                                .width = 512,
                                .mixers = {model::AttentionForm{.heads = 8}},
                                .mlp = 2048,
                                .vocabulary = 64};
    const model::Role role{.section = "language", .inputs = {}, .loss_terms = {model::LossTerm{}}};
    const parallel::MeshLinks links{
        .tp = {}, .cp = {}, .data = {0, 1e9}, .data_nodes = {0, 0, 0, 0, 1, 1, 1, 1}, .network = {0, 1e8}};
    const auto mesh = [&] { return parallel::make_meta_mesh(0, {.dp = 8, .trainable = true}, links); };
    const auto meta = backend::make_meta({});
    const auto module = model::make_module(*meta, spec, role, mesh(), model::InitialWeights::zeros);
    const double bytes = sizeof(float) * static_cast<double>(module->parameters().trainable());
    const StepEnd end = measure_step_end(spec, role, mesh(), {});
    double sum_s = 0, gather_s = 0;
    for (const GroupTimes& group : end) {
        sum_s += group.sum_s;
        gather_s += group.gather_s;
    }
    for (const double seconds : {sum_s, gather_s}) {
        EXPECT_GE(seconds, bytes / 8 / 1e8);
        EXPECT_LE(seconds, 1.1 * bytes / 8 / 1e8);
    }
}

}  // namespace
}  // namespace maestro::workload
