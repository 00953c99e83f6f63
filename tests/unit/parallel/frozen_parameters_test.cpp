#include "parallel/frozen_parameters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace maestro::parallel {
namespace {

bool frozen(const char* part, const char* name) {
    return FrozenParameters({part}).contains(name);
}

TEST(FrozenParameters, PartsEndAtDots) {
    EXPECT_FALSE(FrozenParameters().contains("embedding.weight"));
    EXPECT_TRUE(frozen("embedding", "embedding.weight"));
    EXPECT_TRUE(frozen("layers.1", "layers.1.attention.qkv.weight"));
    EXPECT_TRUE(frozen("layers.1.attention", "layers.1.attention.qkv.weight"));
    EXPECT_TRUE(frozen("layers", "layers.30.mlp.down.weight"));
    EXPECT_FALSE(frozen("layers.1", "layers.10.attention.qkv.weight"));
    EXPECT_FALSE(frozen("layers.1.attention", "layers.1.mlp.down.weight"));
    EXPECT_FALSE(frozen("norm", "layers.1.attention.norm.weight"));
    EXPECT_FALSE(frozen("head.weight.more", "head.weight"));
    EXPECT_FALSE(frozen("", "head.weight"));
}

TEST(FrozenParameters, RangesContainBothEnds) {
    for (const int layer : {0, 1, 2, 3, 10, 11, 12, 100}) {
        const std::string name = "layers." + std::to_string(layer) + ".mlp.down.weight";
        EXPECT_EQ(frozen("layers.2-11", name.c_str()), layer >= 2 && layer <= 11) << layer;
        EXPECT_EQ(frozen("layers.2-11.mlp", name.c_str()), layer >= 2 && layer <= 11) << layer;
        EXPECT_FALSE(frozen("layers.2-11.attention", name.c_str())) << layer;
        for (const char* none : {"layers.-11", "layers.2-", "layers.11-2", "layers.0-1x", "layers.0--1"})
            EXPECT_FALSE(frozen(none, name.c_str())) << none;
    }
    EXPECT_FALSE(frozen("layers.0-5", "layers.norm.weight"));
}

TEST(FrozenParameters, AllButSomeComponents) {
    const auto frozen = FrozenParameters::all_but({"down", "up"});
    EXPECT_TRUE(frozen.contains("layers.0.attention.qkv.weight"));
    EXPECT_FALSE(frozen.contains("layers.0.attention.qkv.down.weight"));
    EXPECT_FALSE(frozen.contains("layers.0.attention.qkv.up"));
    EXPECT_TRUE(frozen.contains("layers.0.downs.weight"));
    EXPECT_FALSE(frozen.contains_part("layers.0"));
    EXPECT_FALSE(frozen.empty());
    EXPECT_TRUE(FrozenParameters().empty());
}

TEST(FrozenParameters, ContainWholeParts) {
    const FrozenParameters frozen({"layers.0-1", "layers.2.mlp"});
    EXPECT_TRUE(frozen.contains_part("layers.1"));
    EXPECT_TRUE(frozen.contains_part("layers.1.mlp"));
    EXPECT_FALSE(frozen.contains_part("layers.2"));
    EXPECT_FALSE(frozen.contains_part("layers"));
}

TEST(FrozenParameters, EndsOfARange) {
    EXPECT_THAT(ends_of_range("layers.3-11.mlp"), testing::ElementsAre("layers.3.mlp", "layers.11.mlp"));
    EXPECT_THAT(ends_of_range("layers.3"), testing::ElementsAre("layers.3"));
}

}  // namespace
}  // namespace maestro::parallel
