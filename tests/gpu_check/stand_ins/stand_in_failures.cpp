// Tests of the GoogleTest replacement. Most of them must fail; test_gpu_check.py checks which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace {

class Good : public testing::Test {};
class Bad : public testing::Test {};

TEST_F(Good, Passes) {
    EXPECT_EQ(1, 1);
    EXPECT_NEAR(1.0, 1.1, 0.2);
    EXPECT_THROW(throw std::runtime_error("x"), std::runtime_error);
    EXPECT_THAT((std::vector<int>{1, 2}), testing::ElementsAre(1, 2));
    ASSERT_TRUE(true) << "not told";
}
TEST_F(Good, IsSkipped) {
    GTEST_SKIP() << "on purpose";
}

TEST_F(Bad, Equal) {
    EXPECT_EQ(1, 2) << "the words";
}
TEST_F(Bad, Near) {
    EXPECT_NEAR(1.0, 1.5, 0.2);
}
TEST_F(Bad, NearNoNumber) {
    EXPECT_NEAR(std::nan(""), 1.5, 0.2);
}
TEST_F(Bad, Ordered) {
    EXPECT_GT(1, 1);
}
TEST_F(Bad, NothingThrown) {
    EXPECT_THROW(static_cast<void>(0), std::runtime_error);
}
TEST_F(Bad, Elements) {
    EXPECT_THAT((std::vector<int>{1, 2, 3}), testing::ElementsAre(1, 2));
}
TEST_F(Bad, LeavesItself) {
    throw std::runtime_error("thrown by the test");
}
TEST_F(Bad, Traced) {
    SCOPED_TRACE("in the trace");
    ADD_FAILURE() << "at once";
}
TEST_F(Bad, StopsAtAnAssertion) {
    ASSERT_EQ(1, 2);
    ADD_FAILURE() << "went on after an assertion";
}

}  // namespace
