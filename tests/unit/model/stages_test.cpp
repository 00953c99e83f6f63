// A section cut into pipeline stages computes what the whole section computes.
#include <gmock/gmock.h>

#include <optional>

#include "unit/model/pipeline.hpp"

namespace maestro::model::test {
namespace {

using Kind = Job::Kind;

constexpr int kDepth = 5;

/// Returns a parameter's gradient, summed over the stages that hold it; none if no stage does.
std::optional<std::vector<double>> gradient_of(const Pipeline& pipeline, const std::string& name) {
    std::optional<std::vector<double>> sum;
    for (const auto& stage : pipeline.stages()) {
        const Parameter* p = stage->module->parameters().find(name);
        if (p == nullptr) continue;
        const auto part = testing_support::read_elements(stage->module->parameters().backend(), p->gradient);
        if (!sum) sum.emplace(part.size(), 0.0);
        for (std::size_t i = 0; i < part.size(); ++i) (*sum)[i] += part[i];
    }
    return sum;
}

void expect_equal_gradients(const Module& whole, const Pipeline& pipeline) {
    for (const Parameter& p : whole.parameters().parameters()) {
        if (!p.trainable) continue;
        SCOPED_TRACE(p.name);
        const auto expected = testing_support::read_elements(whole.parameters().backend(), p.gradient);
        const auto found = gradient_of(pipeline, p.name);
        ASSERT_TRUE(found);
        ASSERT_EQ(found->size(), expected.size());
        double norm = 0;
        for (const double v : expected) norm += v * v;
        EXPECT_GT(norm, 1e-12);
        // A tied embedding is the sum of two stages, which rounds otherwise than one sum.
        for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR((*found)[i], expected[i], 1e-13 * std::sqrt(norm)) << i;
    }
}

/// By sample, the rows that the first section delivers to the second.
std::vector<Tensor> by_sample(const Job& job, Kind kind, const Tensor& rows) {
    std::vector<Tensor> found;
    std::int64_t begin = 0;
    for (const SampleView& sample : job.samples.views()) {
        auto count = static_cast<std::int64_t>(sample.tokens.size());
        if (kind == Kind::vlm) {
            count = 0;
            for (const ItemView& p : sample.items) count += Units(test::vision_spec()).outputs(p.item);
        }
        found.push_back(rows.slice(begin, begin + count));
        begin += count;
    }
    return found;
}

TEST(Stages, ComputeWhatTheWholeSectionComputes) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const bool tied : {true, false})
            for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer})
                for (const auto& layers :
                     {std::vector{2, 3}, std::vector{1, 3, 1}, std::vector{1, 1, 1, 1, 1}}) {
                    // Recomputation with one of the cuts; on a simulated GPU, which is slow, that cut alone.
                    const bool kept = recompute == Recompute::none;
                    if (layers.size() == 3 ? !kept && testing_support::kOnGpu
                                           : !kept || testing_support::kOnGpu)
                        continue;
                    SCOPED_TRACE(testing::Message() << (kind == Kind::vlm ? "vlm" : "distill") << " tied "
                                                    << tied << " recompute " << static_cast<int>(recompute)
                                                    << " stages " << testing::PrintToString(layers));
                    Job job(kind, DType::f64, recompute, 1, [&](ModelSpec& spec) {
                        spec.layers = kDepth;
                        spec.tie_embeddings = tied;
                        if (!tied) use_two_mixers(spec);
                    });
                    const Result expected = job.run();
                    Pipeline first(job.backend(), job.first_spec, job.first_role, layers);
                    Pipeline last(job.backend(), job.last_spec, job.last_role, layers);
                    const Batch batch = job.samples.batch();
                    Result result;
                    const Tensor rows = first.forward(batch, {}, result);
                    last.forward(batch, {by_sample(job, kind, rows)}, result);
                    EXPECT_EQ(result.loss, expected.loss);
                    EXPECT_EQ(result.tokens, expected.tokens);
                    const Tensor d_rows = last.backward({});
                    for (const LossSum& sum : job.last->loss_sums())
                        EXPECT_EQ(last.terms().at(sum.term), sum.value) << sum.term;
                    expect_equal_gradients(*job.last, last);
                    if (kind == Kind::vlm) {
                        first.backward(d_rows);
                        expect_equal_gradients(*job.first, first);
                    }
                }
}

TEST(Stages, MeasureEqualsWhatAStageAllocates) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer}) {
            Job job(kind, DType::f32, recompute, 1, [](ModelSpec& spec) {
                spec.layers = kDepth;
                use_two_mixers(spec);
            });
            const backend::Traits traits{job.backend().threads(), job.backend().shares_memory(),
                                         job.backend().attention_support()};
            Pipeline first(job.backend(), job.first_spec, job.first_role, {2, 2, 1});
            Pipeline last(job.backend(), job.last_spec, job.last_role, {2, 2, 1});
            Result result;
            const Batch batch = job.samples.batch();
            last.forward(batch, {by_sample(job, kind, first.forward(batch, {}, result))}, result);
            const Tensor d_rows = last.backward({});
            if (kind == Kind::vlm) first.backward(d_rows);
            for (const Pipeline* pipeline : {&first, &last})
                for (const auto& stage : pipeline->stages()) {
                    SCOPED_TRACE(stage->role.section + " " + std::to_string(stage->role.stage.index));
                    const Footprint measured =
                        measure(stage->spec, stage->role, job.samples.shapes(), {.traits = traits});
                    EXPECT_EQ(stage->saved.peak(), measured.saved);
                    EXPECT_LE(stage->scratch.peak(), measured.scratch);
                    EXPECT_EQ(stage->module->parameters().bytes(), measured.parameters);
                }
        }
}

TEST(Stages, RefuseAnInputThatDoesNotFitTheStage) {
    Job job(Kind::distill, DType::f32);
    Role role = job.last_role;
    role.stage = {.index = 1, .count = 2, .first_layer = 1, .layers = 1};
    EXPECT_ANY_THROW(make_module(job.backend(), job.last_spec, role));
    role.inputs.push_back({EdgeTensor::stream, job.last_spec});
    role.stage.layers = 2;
    EXPECT_ANY_THROW(make_module(job.backend(), job.last_spec, role));
    role.stage.layers = 1;
    EXPECT_NO_THROW(make_module(job.backend(), job.last_spec, role));
}

}  // namespace
}  // namespace maestro::model::test
