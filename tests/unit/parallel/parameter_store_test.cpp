#include "parallel/parameter_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/device.hpp"
#include "support/elements.hpp"

namespace maestro::parallel {
namespace {

std::vector<double> weights_of(const Parameter& p, backend::Backend& backend) {
    return testing_support::read_elements(backend, p.weight.reshape({p.size()}));
}

/// Expects that the elements `held` of a parameter equal those of `one`, which holds it whole.
void expect_part_of(const ParameterStore& one, const Parameter& p, Range held) {
    const std::vector<double> all = weights_of(*one.find(p.name), one.backend()),
                              here = weights_of(p, one.backend());
    for (const Extent& extent : extents_of(p.shape, p.shard, held))
        for (std::int64_t i = 0; i < extent.count; ++i)
            EXPECT_EQ(here[static_cast<std::size_t>(extent.local + i)],
                      all[static_cast<std::size_t>(extent.logical + i)])
                << p.name << " " << extent.logical + i;
}

TEST(ParameterStore, InitialWeightsDoNotDependOnTheLayout) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh(), among_three = make_meta_mesh(1, {.dp = 3});
    Pulse quiet;
    for (const Init init : {Init::normal, Init::residual, Init::ones}) {
        ParameterStore one(*device, mesh, "language", 7, DType::f32),
            part(*device, mesh, "language", 7, DType::f32),
            shards(*device, among_three, "language", 7, DType::f32);
        const std::vector<std::int64_t> shape{12, 10};
        for (ParameterStore* store : {&one, &shards}) {
            store->declare("matrix", shape, init, true);
            store->declare("vector", {9}, init, true);
            store->allocate(0.5);
        }
        // Three parts of rows, like queries, keys and values, and the columns of one of three ranks.
        part.declare("matrix", shape, init, true, {{{2, 4}}, {{7, 8}}, {{10, 11}}}, part_of(10, 1, 3));
        part.declare("vector", {9}, init, true, {{part_of(9, 2, 4)}}, {0, 1});
        part.allocate(0.5);
        one.initialize(quiet);
        part.initialize(quiet);
        for (const Parameter& p : part.parameters()) {
            EXPECT_EQ(p.weight.dim(0), p.shard.row_count());
            expect_part_of(one, p, {0, p.size()});
        }
        shards.initialize(quiet, true);
        for (const Parameter& p : shards.parameters()) {
            const Range shard = shards.group_of(p).shard_of(p);
            expect_part_of(one, p, shard);
            const std::vector<double> here = weights_of(p, *device);
            for (std::int64_t i = 0; i < p.size(); ++i) {
                if (i >= shard.begin && i < shard.end) continue;
                EXPECT_EQ(here[static_cast<std::size_t>(i)], 0) << p.name;
            }
        }
    }
}

TEST(ParameterStore, FrozenParametersHaveNoGradient) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh();
    ParameterStore store(*device, mesh, "language", 7, DType::f32,
                         FrozenParameters({"embedding", "layers.0-1.mlp"}));
    for (const char* name : {"embedding.weight", "layers.0.mlp.norm.weight", "layers.0.output.weight",
                             "layers.1.mlp.norm.weight", "layers.2.mlp.norm.weight"}) {
        store.begin_layer();
        store.declare(name, {5}, Init::ones, true);
    }
    store.declare("teacher", {5}, Init::ones, false);
    store.allocate(1);
    std::vector<std::string> trained;
    for (const Parameter& p : store.parameters()) {
        EXPECT_EQ(p.gradient.rank != 0, p.trainable) << p.name;
        if (p.trainable) trained.push_back(p.name);
    }
    EXPECT_THAT(trained, testing::ElementsAre("layers.0.output.weight", "layers.2.mlp.norm.weight"));
}

TEST(ParameterStore, LoadedParametersAreNotDrawn) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh();
    ParameterStore store(*device, mesh, "language", 7, DType::f32);
    store.declare("first", {5}, Init::normal, true);
    store.declare("second", {5}, Init::normal, true);
    store.allocate(1);
    store.mark_initialized(store.parameters()[0]);
    Pulse quiet;
    store.initialize(quiet);
    EXPECT_THAT(weights_of(store.parameters()[0], *device), testing::Each(0));
    EXPECT_THAT(weights_of(store.parameters()[1], *device), testing::Each(testing::Ne(0)));
}

TEST(ParameterStore, NamesAreFoundAndUnique) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh();
    ParameterStore store(*device, mesh, "language", 7, DType::f32);
    const Parameter& p = store.declare("first", {5}, Init::ones, true);
    EXPECT_EQ(store.find("first"), &p);
    EXPECT_EQ(store.find("firs"), nullptr);
    EXPECT_THROW(store.declare("first", {5}, Init::ones, true), Error);
}

/// Every element of the trained parameters is in the shard of exactly one rank, however parameters are
/// grouped.
TEST(ParameterGroup, ShardsCoverEachElementOnce) {
    const auto meta = backend::make_meta();
    for (const int ranks : {1, 2, 3, 7})
        for (const bool groups : {false, true}) {
            std::vector<std::vector<int>> owners;
            for (int rank = 0; rank < ranks; ++rank) {
                const Mesh mesh = make_meta_mesh(rank, {.dp = ranks});
                ParameterStore store(*meta, mesh, "language", 7, DType::bf16);
                for (const std::int64_t size : {5, 100, 1, 64}) {
                    store.declare(std::to_string(size), {size}, Init::ones, size != 1);
                    if (groups) store.begin_layer();
                }
                store.allocate(1, 1);
                EXPECT_EQ(store.groups().size(), groups ? 4u : 2u);
                owners.resize(store.parameters().size());
                for (std::size_t i = 0; i < owners.size(); ++i) {
                    const Parameter& p = store.parameters()[i];
                    owners[i].resize(static_cast<std::size_t>(p.size()), 0);
                    const Range shard = store.group_of(p).shard_of(p);
                    for (std::int64_t e = shard.begin; e < shard.end; ++e)
                        ++owners[i][static_cast<std::size_t>(e)];
                }
            }
            for (const auto& counts : owners) EXPECT_THAT(counts, testing::Each(1));
        }
}

/// Groups are filled from the last layer on. Their sizes are those of whole parameters, for each of the tp
/// ranks.
TEST(ParameterStore, LayersAreGroupedFromTheLastOn) {
    const auto meta = backend::make_meta();
    for (const int tp : {1, 2}) {
        const Mesh mesh = make_meta_mesh(0, {.degrees = {1, tp}});
        ParameterStore store(*meta, mesh, "language", 7, DType::f32);
        for (const std::int64_t size : {3, 2, 2, 5, 1, 1}) {
            if (store.parameters().size() > 0) store.begin_layer();
            store.declare(std::to_string(store.parameters().size()), {size * tp}, Init::ones, true);
        }
        store.declare("frozen", {100}, Init::ones, false);
        store.allocate(1, 4);
        std::vector<std::vector<std::string>> names;
        for (const ParameterGroup& group : store.groups()) {
            names.emplace_back();
            for (const Parameter* p : group.parameters()) names.back().push_back(p->name);
        }
        // 1 + 1 + 5, 2 + 2 and 3.
        EXPECT_THAT(
            names, testing::ElementsAre(testing::ElementsAre("0"), testing::ElementsAre("1", "2"),
                                        testing::ElementsAre("3", "4", "5"), testing::ElementsAre("frozen")));
    }
}

/// Weights in the type that computes, f32 gradients, and f32 masters of the shard where they are not the
/// weights. With two moments, 2 + 4 + 12 / d bytes a weight in bf16 and 8 + 8 / d in f32.
TEST(ParameterGroup, OnlyTheShardHasMasters) {
    const auto meta = backend::make_meta();
    for (const int ranks : {1, 2, 4}) {
        const auto bytes_a_weight = [&](DType compute, bool trainable) {
            constexpr std::int64_t kSize = 64 * kBlock;
            const Mesh mesh = make_meta_mesh(0, {.dp = ranks});
            ParameterStore store(*meta, mesh, "language", 7, compute);
            store.declare("matrix", {kSize}, Init::ones, trainable);
            store.allocate(1);
            const auto moments = 2.0 * sizeof(float) * static_cast<double>(store.optimizer_states());
            return (static_cast<double>(store.bytes()) + moments) / kSize;
        };
        EXPECT_DOUBLE_EQ(bytes_a_weight(DType::bf16, true), 2 + 4 + 12.0 / ranks);
        EXPECT_DOUBLE_EQ(bytes_a_weight(DType::f32, true), 4 + 4 + 8.0 / ranks);
        EXPECT_DOUBLE_EQ(bytes_a_weight(DType::bf16, false), 2);
        EXPECT_DOUBLE_EQ(bytes_a_weight(DType::f32, false), 4);
    }
}

/// In bf16 a set weight is rounded where the model computes, and exact where the optimizer updates it.
TEST(ParameterGroup, MastersKeepWhatWeightsRound) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = make_meta_mesh(1, {.dp = 2});
    ParameterStore store(*device, mesh, "language", 7, DType::bf16);
    const Parameter& p = store.declare("vector", {4 * kBlock}, Init::ones, true);
    store.allocate(1);
    std::vector<float> values;
    for (std::int64_t i = 0; i < p.size(); ++i) values.push_back(1 + 0.001f * static_cast<float>(i));
    const ParameterGroup& group = store.group_of(p);
    group.set_weights(p, {0, p.size()}, Tensor(values.data(), DType::f32, {p.size()}));
    const Range shard = group.shard_of(p);
    EXPECT_EQ(shard.begin, 2 * kBlock);
    const std::vector<double> weights = weights_of(p, *device), masters = testing_support::read_elements(
                                                                    *device, group.shard_weights(p, shard));
    for (std::int64_t i = 0; i < p.size(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(weights[at], static_cast<double>(static_cast<float>(bf16(values[at]))));
        if (i < shard.begin) continue;
        EXPECT_EQ(masters[static_cast<std::size_t>(i - shard.begin)], static_cast<double>(values[at]));
    }
}

/// A parameter that is kept precise computes in f32 in a bf16 section: it has a dedicated group, whose
/// weights are its masters, and rounds neither drawn nor set values.
TEST(ParameterStore, KeepsAParameterPrecise) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh();
    const auto drawn = [&](DType compute) {
        ParameterStore store(*device, mesh, "language", 7, compute);
        store.declare("matrix", {4, kBlock}, Init::normal, true);
        Parameter& decay = store.declare("decay", {2, kBlock}, Init::normal, true);
        store.declare("frozen", {kBlock}, Init::ones, false);
        store.keep_precise(decay);
        store.allocate(1);
        EXPECT_EQ(store.groups().size(), compute == DType::bf16 ? 3u : 2u);
        EXPECT_EQ(decay.weight.dtype, DType::f32);
        EXPECT_EQ(store.find("matrix")->weight.dtype, compute);
        EXPECT_EQ(store.find("frozen")->weight.dtype, compute);
        const ParameterGroup& group = store.group_of(decay);
        EXPECT_EQ(group.master().data, group.weights().data);
        Pulse pulse;
        store.initialize(pulse);
        std::vector<double> values = weights_of(decay, *device);
        std::vector<float> thirds(kBlock, 1.0f / 3);
        group.set_weights(decay, {0, kBlock}, Tensor(thirds.data(), DType::f32, {kBlock}));
        EXPECT_EQ(weights_of(decay, *device).front(), static_cast<double>(1.0f / 3));
        return values;
    };
    const std::vector<double> values = drawn(DType::bf16);
    EXPECT_NE(values.front(), 0);
    EXPECT_EQ(values, drawn(DType::f32));
}

TEST(ParameterGroup, UpdatedMastersAreRoundedBeforeTheyAreGathered) {
    const auto device = testing_support::make_device(1);
    const Mesh mesh = single_rank_mesh();
    ParameterStore store(*device, mesh, "language", 7, DType::bf16);
    const Parameter& p = store.declare("vector", {kBlock}, Init::ones, true);
    store.allocate(1);
    std::vector<double> values, rounded;
    for (std::int64_t i = 0; i < p.size(); ++i) {
        values.push_back(1 + 0.001 * static_cast<double>(i));
        rounded.push_back(static_cast<double>(static_cast<float>(bf16(static_cast<float>(values.back())))));
    }
    ParameterGroup& group = store.groups().front();
    testing_support::write_elements(*device, group.master(), values);
    group.gather_weights();
    EXPECT_EQ(weights_of(p, *device), rounded);
}

/// All eight tp ranks hold copies of the norms, and with two KV heads four ranks hold copies of each.
TEST(ParameterGroup, CopiesCountOnTheFirstRankThatHoldsThem) {
    const auto meta = backend::make_meta();
    std::vector<int> norm(6, 0), keys(4, 0), queries(16, 0);
    for (int rank = 0; rank < 8; ++rank) {
        const Mesh mesh = make_meta_mesh(rank, {.degrees = {1, 8}, .kv_heads = 2});
        ParameterStore store(*meta, mesh, "language", 7, DType::f32);
        store.declare("norm", {6}, Init::ones, true);
        const Range query = part_of(16, rank, 8), key = part_of(4, rank / 4, 2);
        store.declare("qk", {20, 1}, Init::ones, true, {{query}, {{16 + key.begin, 16 + key.end}, Axis::kv}},
                      {0, 1});
        store.allocate(1);
        const auto count = [&](const Parameter& p, std::int64_t at, std::vector<int>& into) {
            for (const Range& r : store.group_of(p).first_copies(p, {0, p.size()}))
                for (const Extent& e : extents_of(p.shape, p.shard, r))
                    for (std::int64_t i = 0; i < e.count; ++i)
                        if (const std::int64_t x = e.logical + i - at;
                            x >= 0 && x < static_cast<std::int64_t>(into.size()))
                            ++into[static_cast<std::size_t>(x)];
        };
        count(store.parameters()[0], 0, norm);
        count(store.parameters()[1], 0, queries);
        count(store.parameters()[1], 16, keys);
    }
    EXPECT_THAT(norm, testing::Each(1));
    EXPECT_THAT(queries, testing::Each(1));
    EXPECT_THAT(keys, testing::Each(1));
}

}  // namespace
}  // namespace maestro::parallel
