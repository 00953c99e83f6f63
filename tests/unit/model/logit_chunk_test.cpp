#include "model/logit_chunk.hpp"

#include <gtest/gtest.h>

#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {
namespace {

TEST(LogitChunk, HasTheAccumulationTypeOnCpus) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16})
        for (const bool train : {false, true}) {
            const LogitChunk chunk = logit_chunk(true, type, train, 128256, 1);
            EXPECT_EQ(chunk.type, type == DType::f64 ? DType::f64 : DType::f32);
            EXPECT_EQ(chunk.rows, 256);
        }
}

TEST(LogitChunk, IsRoundedOnGpusInTrainingAlone) {
    for (const bool train : {false, true}) {
        EXPECT_EQ(logit_chunk(false, DType::bf16, train, 1000, 1).type, train ? DType::bf16 : DType::f32);
        EXPECT_EQ(logit_chunk(false, DType::f32, train, 1000, 1).type, DType::f32);
        EXPECT_EQ(logit_chunk(false, DType::f64, train, 1000, 1).type, DType::f64);
    }
    EXPECT_EQ(logit_chunk(false, DType::bf16, false, 1000, 1).rows, 1024);
}

TEST(LogitChunk, TakesAGibibyteOr1024Rows) {
    const auto rows = [](std::int64_t tokens, std::int64_t models) {
        return logit_chunk(false, DType::bf16, true, tokens, models).rows;
    };
    EXPECT_EQ(rows(40, 1), 4096);
    EXPECT_EQ(rows(128256, 1), 4096);  // 1002 MiB
    EXPECT_EQ(rows(128256, 2), 2048);  // with a teacher: 2093 rows fit
    EXPECT_EQ(rows(151936, 1), 3456);  // 3533 fit
    EXPECT_EQ(rows(151936 / 2, 1), 4096);
    EXPECT_EQ(rows(1 << 20, 1), 1024);
}

/// Evaluation computes the same loss from fp32 logits.
TEST(LogitChunk, LossesOfRoundedLogitsAreClose) {
    Job job(Job::Kind::vlm, DType::bf16);
    const double trained = job.run(true).loss, evaluated = job.run(false).loss;
    EXPECT_EQ(trained != evaluated, testing_support::kOnGpu);
    EXPECT_NEAR(trained, evaluated, 2e-3 * evaluated);
}

}  // namespace
}  // namespace maestro::model::test
