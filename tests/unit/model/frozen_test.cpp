// Sections of which some parameters are frozen, and layers that recompute, against the whole section.
#include <gmock/gmock.h>

#include <map>

#include "unit/model/pipeline.hpp"

namespace maestro::model::test {
namespace {

using Kind = Job::Kind;
using Parts = std::vector<std::string>;

constexpr int kLayers = 3;

/// A job whose two sections have three layers, with these parts of both frozen.
Job job_of(Kind kind, DType type, const Parts& frozen, Recompute recompute = Recompute::none,
           int recompute_layers = 0) {
    Job job(kind, type, recompute, 1, [](ModelSpec& spec) { spec.layers = kLayers; });
    job.first_role.frozen = job.last_role.frozen = parallel::FrozenParameters(frozen);
    job.first_role.recompute_layers = job.last_role.recompute_layers = recompute_layers;
    job.first = make_module(job.backend(), job.first_spec, job.first_role);
    job.last = make_module(job.backend(), job.last_spec, job.last_role);
    fill_weights(*job.first, job.first_name);
    fill_weights(*job.last, job.last_name);
    return job;
}

std::map<std::string, std::vector<double>> gradients_by_name(Job& job) {
    std::map<std::string, std::vector<double>> gradients;
    for (const Module* module : {job.first.get(), job.last.get()})
        for (const Parameter& p : module->parameters().parameters())
            if (p.trainable)
                gradients[std::string(module == job.first.get() ? "first." : "last.") + p.name] =
                    testing_support::read_elements(job.backend(), p.gradient);
    return gradients;
}

const std::vector<Parts> kFrozen = {
    {"patch", "embedding", "layers.0"},    // the first layers
    {"patch", "embedding", "layers.0-2"},  // all layers
    {"layers.1", "norm"},                  // a layer between others
    {"layers.0.attention.qkv", "layers.1.mlp", "layers.2.attention.q_norm", "head", "merger"},
    {"patch", "embedding", "head", "layers.0-2.attention", "layers.0-2.mlp.norm", "projector", "norm"},
};

TEST(Frozen, ParametersChangeNoOtherGradient) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const DType type : {DType::f32, DType::bf16}) {
            Job whole = job_of(kind, type, {});
            const double loss = whole.run().loss;
            const auto expected = gradients_by_name(whole);
            for (const Parts& parts : kFrozen)
                for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer}) {
                    if (testing_support::kOnGpu && recompute != Recompute::cheap) continue;
                    SCOPED_TRACE(testing::PrintToString(parts));
                    Job job = job_of(kind, type, parts, recompute);
                    EXPECT_EQ(job.run().loss, loss);
                    const auto found = gradients_by_name(job);
                    EXPECT_LT(found.size(), expected.size());
                    EXPECT_GT(found.size(), 0U);
                    for (const auto& [name, gradient] : found) EXPECT_EQ(gradient, expected.at(name)) << name;
                }
        }
}

TEST(Frozen, StagesOfAPipelineComputeWhatTheWholeSectionComputes) {
    for (const Parts& parts : {kFrozen[0], kFrozen[1], kFrozen[3]}) {
        SCOPED_TRACE(testing::PrintToString(parts));
        Job whole(Kind::distill, DType::f64, Recompute::none, 1,
                  [](ModelSpec& spec) { spec.layers = kLayers; });
        const double loss = whole.run().loss;
        whole.last_role.frozen = parallel::FrozenParameters(parts);
        Pipeline first(whole.backend(), whole.first_spec, whole.first_role, {3});
        // The third stage follows frozen ones alone in the first two cases.
        for (const bool wanted : {true, false}) {
            if (!wanted && parts == kFrozen[3]) continue;
            Pipeline last(whole.backend(), whole.last_spec, whole.last_role, {1, 1, 1}, single_rank_mesh,
                          [&](int stage) { return wanted || stage > 1; });
            Result result;
            const Tensor rows = first.forward(whole.samples.batch(), {}, result);
            std::vector<Tensor> by_sample;
            std::int64_t begin = 0;
            for (const SampleView& sample : whole.samples.views()) {
                const std::int64_t end = begin + std::ssize(sample.tokens);
                by_sample.push_back(rows.slice(begin, end));
                begin = end;
            }
            last.forward(whole.samples.batch(), {by_sample}, result);
            EXPECT_EQ(result.loss, loss);
            last.backward({});
            int compared = 0;
            for (const auto& stage : last.stages())
                for (const Parameter& p : stage->module->parameters().parameters()) {
                    if (!p.trainable) continue;
                    ++compared;
                    EXPECT_EQ(testing_support::read_elements(whole.backend(), p.gradient),
                              testing_support::read_elements(whole.backend(),
                                                             whole.last->parameters().find(p.name)->gradient))
                        << p.name;
                }
            EXPECT_GT(compared, 0);
        }
    }
}

TEST(Frozen, MeasureEqualsWhatARunAllocates) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const Parts& parts : kFrozen) {
            SCOPED_TRACE(testing::PrintToString(parts));
            Job job = job_of(kind, DType::f32, parts, Recompute::cheap, 2);
            const MeasureOptions options{.traits = {job.backend().threads(), job.backend().shares_memory(),
                                                    job.backend().attention_support()}};
            const Footprint first = measure(job.first_spec, job.first_role, job.samples.shapes(), options),
                            last = measure(job.last_spec, job.last_role, job.samples.shapes(), options);
            const double loss = job.run().loss;
            EXPECT_EQ(job.run(true, first, last).loss, loss);
            EXPECT_EQ(job.first_used.saved, first.saved);
            EXPECT_EQ(job.last_used.saved, last.saved);
            EXPECT_LE(job.first_used.scratch, first.scratch);
            EXPECT_LE(job.last_used.scratch, last.scratch);
        }
}

/// The footprint of a language section alone, which computes the loss.
Footprint alone(int layers, Role role, const Parts& frozen) {
    ModelSpec spec = language_spec(24, 32, false);
    spec.layers = layers;
    role.inputs.clear();
    role.loss_terms = {LossTerm{}};
    role.frozen = parallel::FrozenParameters(frozen);
    const std::vector<SampleShape> shapes = {{.tokens = 37, .items = {}, .weight = 1}};
    return measure(spec, role, shapes);
}

TEST(Frozen, LayersBeforeAllTrainedOnesKeepNothingAndRunNoBackward) {
    const Role role = Job(Kind::distill, DType::f32).last_role;
    const Footprint two = alone(2, role, {}), three = alone(3, role, {});
    const Footprint one_frozen = alone(3, role, {"embedding", "layers.0"}),
                    two_frozen = alone(3, role, {"embedding", "layers.0-1"}),
                    between = alone(3, role, {"layers.1"});
    EXPECT_EQ(one_frozen.saved - two_frozen.saved, three.saved - two.saved);
    EXPECT_DOUBLE_EQ(one_frozen.backward_flops - two_frozen.backward_flops,
                     three.backward_flops - two.backward_flops);
    EXPECT_DOUBLE_EQ(one_frozen.forward_flops, three.forward_flops);
    // A frozen layer behind a trained one passes the gradient on: half of a GEMM's backward.
    EXPECT_EQ(between.saved, three.saved);
    EXPECT_GT(between.backward_flops, two.backward_flops);
    EXPECT_LT(between.backward_flops, three.backward_flops);
    EXPECT_LT(two_frozen.optimizer, one_frozen.optimizer);
    EXPECT_LT(two_frozen.parameters, one_frozen.parameters);
}

TEST(Recomputation, OfSomeLayersKeepsTheOthers) {
    for (const Recompute recompute : {Recompute::cheap, Recompute::layer}) {
        Role role = Job(Kind::distill, DType::f32).last_role;
        const std::size_t kept = alone(kLayers, role, {}).saved;
        role.recompute = recompute;
        const std::size_t recomputed = alone(kLayers, role, {}).saved;
        ASSERT_LT(recomputed, kept);
        for (int layers = 1; layers <= kLayers; ++layers) {
            role.recompute_layers = layers;
            EXPECT_EQ((kept - alone(kLayers, role, {}).saved) * kLayers,
                      (kept - recomputed) * static_cast<std::size_t>(layers));
        }
        for (const DType type : {DType::f32, DType::bf16}) {
            Job none = job_of(Kind::vlm, type, {}), some = job_of(Kind::vlm, type, {}, recompute, 2);
            EXPECT_EQ(some.run().loss, none.run().loss);
            EXPECT_EQ(gradients_by_name(some), gradients_by_name(none));
        }
    }
}

}  // namespace
}  // namespace maestro::model::test
