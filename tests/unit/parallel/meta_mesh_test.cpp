// Which times of collectives the groups of a meta mesh have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "backend/backend.hpp"
#include "parallel/mesh.hpp"

namespace maestro::parallel {
namespace {

constexpr std::int64_t kRows = 256;  ///< of each rank
constexpr double kOne = 1, kTwo = 20, kThree = 300;

/// Of an all-gather of four ranks on one, two and three nodes.
collective::CollectiveTimes times(double one, double two, double three) {
    const double bytes = 4 * kRows * sizeof(float);
    return collective::CollectiveTimes({{.ranks = 4, .nodes = 1, .bytes = bytes, .seconds = one},
                                        {.ranks = 4, .nodes = 2, .bytes = bytes, .seconds = two},
                                        {.ranks = 4, .nodes = 3, .bytes = bytes, .seconds = three}});
}
MeshLinks links() {
    MeshLinks of_mesh;
    of_mesh.collectives = times(kOne, kTwo, kThree);
    return of_mesh;
}
double seconds_of(collective::ProcessGroup& group) {
    const std::vector<std::int64_t> rows(static_cast<std::size_t>(group.size()), kRows);
    group.wait(group.start_all_gather_in_place(
        Tensor(nullptr, DType::f32, {static_cast<std::int64_t>(group.size()) * kRows, 1}), rows));
    return group.traffic().seconds;
}

TEST(MetaMesh, HasTheTimesOfTheNodesOfItsGroups) {
    MeshLinks spread = links();
    spread.tp_nodes = 2;
    spread.cp_nodes = 3;
    spread.data_nodes = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};
    const MeshShape shape{.dp = 4, .degrees = {.cp = 4, .tp = 4}};
    const Mesh on_one = make_meta_mesh(0, shape, links()), on_several = make_meta_mesh(0, shape, spread);
    EXPECT_EQ(seconds_of(on_one.tp()), kOne);
    EXPECT_EQ(seconds_of(on_one.cp()), kOne);
    EXPECT_EQ(seconds_of(on_several.tp()), kTwo);
    EXPECT_EQ(seconds_of(on_several.cp()), kThree);
    // Sixteen ranks exchange 15 parts and not 3, on two ranks per node as four on two.
    EXPECT_DOUBLE_EQ(seconds_of(on_several.group(kDataAxes)), 5 * kTwo);
}

/// Where a plan has no places yet, groups on several nodes are on those that suit them best, among as many
/// and more.
TEST(MetaMesh, HasTheLeastTimesWhereItsNodesAreNotKnown) {
    const auto seconds = [](double on_two, double on_three, int nodes, bool fewest) {
        MeshLinks of_mesh = links();
        of_mesh.collectives = times(kOne, on_two, on_three);
        of_mesh.tp_nodes = nodes;
        of_mesh.fewest_nodes = fewest;
        return seconds_of(make_meta_mesh(0, {.degrees = {.cp = 1, .tp = 4}}, of_mesh).tp());
    };
    EXPECT_EQ(seconds(20, 300, 2, true), 20);
    EXPECT_EQ(seconds(300, 20, 2, true), 20);
    EXPECT_EQ(seconds(300, 20, 2, false), 300);
    EXPECT_EQ(seconds(20, 300, 3, true), 300) << "more nodes, and not fewer";
    EXPECT_EQ(seconds(0.5, 0.5, 1, true), kOne) << "they fit on a node";
}

/// The rank whose experts have most rows exchanges more of them.
TEST(MetaMesh, HasTheLoadOfExperts) {
    MeshLinks loaded = links();
    loaded.expert_imbalance = 1.5;
    const MeshShape shape{.dp = 4, .has_experts = true, .experts = {.ep = 4, .etp = 1}};
    EXPECT_EQ(seconds_of(make_meta_mesh(0, shape, links()).ep()), kOne);
    EXPECT_DOUBLE_EQ(seconds_of(make_meta_mesh(0, shape, loaded).ep()), 1.5 * kOne);
    EXPECT_EQ(seconds_of(make_meta_mesh(0, shape, loaded).group(kDataAxes)), kOne);
}

}  // namespace
}  // namespace maestro::parallel
