#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {
namespace {

using Kind = Job::Kind;

TEST(Model, Bf16LossIsCloseToF32) {
    for (const Kind kind : {Kind::vlm, Kind::distill}) {
        const double exact = Job(kind, DType::f32).run().loss, rounded = Job(kind, DType::bf16).run().loss;
        EXPECT_NE(rounded, exact);
        EXPECT_NEAR(rounded, exact, 2e-2 * exact);
    }
}

TEST(Model, BuildsNoPlansAfterPrepare) {
    for (const Kind kind : {Kind::vlm, Kind::distill}) {
        Job job(kind, DType::bf16, Recompute::none, 1, use_two_mixers);
        const auto* const attention = job.backend().fused_attention();
        if (!attention) GTEST_SKIP() << "the device has no attention plans";
        job.samples.add(std::vector<std::int32_t>(150, 7));
        const std::int64_t rows[] = {4, 150};
        const auto samples = std::ssize(job.samples.shapes());
        job.first->prepare(rows, samples);
        job.last->prepare(rows, samples);
        const std::size_t plans = attention->plans();
        EXPECT_GT(plans, 0U);
        job.run();
        EXPECT_EQ(attention->plans(), plans);
    }
}

/// The loss that balances experts, in the last run.
double balance_of(const Module& module) {
    double sum = 0;
    for (const LossSum& term : module.loss_sums())
        if (std::string_view(term.term) == "balance") sum += term.value;
    return sum;
}

/// Three elements of each of these parameters. The gradient is that of the loss with what balances experts.
void expect_finite_differences(Job& job, const std::vector<const Parameter*>& picked) {
    constexpr double kStep = 1e-5;
    job.run();
    std::vector<std::vector<double>> slopes;
    for (const Parameter* p : picked)
        slopes.push_back(testing_support::read_elements(job.backend(), p->gradient));
    for (std::size_t i = 0; i < picked.size(); ++i)
        for (const std::int64_t at : {std::int64_t{3}, picked[i]->size() / 2, picked[i]->size() - 1}) {
            SCOPED_TRACE(picked[i]->name + " " + std::to_string(at));
            const Tensor& weights = picked[i]->weight;
            const double old = testing_support::read_element(job.backend(), weights, at);
            const auto loss_at = [&](double value) {
                testing_support::write_element(job.backend(), weights, at, value);
                return job.run().loss + balance_of(*job.last);
            };
            const double above = loss_at(old + kStep), below = loss_at(old - kStep);
            testing_support::write_element(job.backend(), weights, at, old);
            const double slope = slopes[i][static_cast<std::size_t>(at)];
            EXPECT_NEAR((above - below) / (2 * kStep), slope, 1e-8 + 1e-6 * std::abs(slope));
        }
}

TEST(Model, GradientsMatchFiniteDifferences) {
    for (const Kind kind : {Kind::vlm, Kind::distill}) {
        Job job(kind, DType::f64);
        std::vector<const Parameter*> picked;
        for (const char* name : {"patch.bias", "layers.0.attention.q_norm.weight", "merger.weight"})
            if (const Parameter* p = job.first->parameters().find(name); p && p->trainable)
                picked.push_back(p);
        for (const char* name : {"embedding.weight", "head.weight", "layers.0.attention.qkv.weight",
                                 "layers.1.mlp.gate_up.weight", "norm.weight"})
            if (const Parameter* p = job.last->parameters().find(name)) picked.push_back(p);
        ASSERT_GE(picked.size(), 5u);
        expect_finite_differences(job, picked);
    }
}

// Of vision with GELU, and of language with SwiGLU and few adapters.
TEST(Model, GradientsOfAdaptersMatchFiniteDifferences) {
    for (const Lora& lora : {kAllAdapters, kSomeAdapters}) {
        const bool other_forms = lora == kAllAdapters;
        Job job(
            Kind::vlm, DType::f64, Recompute::none, 1, other_forms ? use_other_forms : [](ModelSpec&) {},
            lora);
        std::vector<const Parameter*> picked;
        for (const Module* module : {job.first.get(), job.last.get()})
            for (const Parameter& p : module->parameters().parameters())
                if (p.trainable && p.name.starts_with("layers.1.")) picked.push_back(&p);
        EXPECT_EQ(picked.size(), lora == kAllAdapters ? 16u : 12u);
        expect_finite_differences(job, picked);
    }
}

TEST(Model, GradientsOfExpertsMatchFiniteDifferences) {
    for (const bool sigmoid : {false, true})
        for (const double strength : {0.0, 0.3}) {
            Job job(Kind::distill, DType::f64, Recompute::none, 1, [&](ModelSpec& spec) {
                sigmoid ? use_sigmoid_experts(spec) : use_experts(spec);
                if (spec.kind != ModelSpec::Kind::language) return;
                spec.experts.balance = strength > 0 ? ExpertsSpec::Balance::loss : ExpertsSpec::Balance::none;
                spec.experts.balance_strength = strength;
            });
            std::vector<const Parameter*> picked;
            for (const Parameter& p : job.last->parameters().parameters())
                if (p.name.starts_with("layers.1.mlp.")) picked.push_back(&p);
            EXPECT_EQ(picked.size(), sigmoid ? 4u : 7u);
            expect_finite_differences(job, picked);
            EXPECT_EQ(balance_of(*job.last) > 0.1, strength > 0);
        }
}

/// A router that is indifferent gives all experts the mean score 1 / E, and f sums up to E, whatever it
/// chooses: the loss of a layer is the strength, because the samples' shares of the targets sum up to 1.
TEST(Model, ALayerThatIsIndifferentHasTheBalanceLossOfItsStrength) {
    for (const bool sigmoid : {false, true})
        for (const auto& [type, recompute] : {std::pair{DType::f64, Recompute::none},
                                              {DType::f32, Recompute::layer},
                                              {DType::f32, Recompute::cheap}}) {
            Job job(Kind::vlm, type, recompute, 1, [&](ModelSpec& spec) {
                use_experts(spec);
                if (spec.kind != ModelSpec::Kind::language) return;
                spec.layers = 4;
                if (sigmoid) spec.experts.router = ExpertsSpec::Router::sigmoid;
            });
            for (const Parameter& p : job.last->parameters().parameters())
                if (p.name.ends_with("router.weight"))
                    for (std::int64_t i = 0; i < p.size(); ++i)
                        testing_support::write_element(job.backend(), p.weight, i, 0);
            const double loss = job.run().loss;
            EXPECT_NEAR(balance_of(*job.last), 3 * 0.3, type == DType::f64 ? 1e-13 : 1e-6);
            EXPECT_EQ(job.last->loss_sums().front().value, loss) << "without what balances";
            job.run(false);
            job.run();
            EXPECT_NEAR(balance_of(*job.last), 3 * 0.3, 1e-6) << "of one run";
        }
}

TEST(Model, TermsOfTheLossAddUp) {
    for (const DType type : {DType::f64, DType::f32}) {
        const double tolerance = type == DType::f64 ? 1e-13 : 1e-6;
        Job job(Kind::distill, type);
        const double entropy = job.run(false).loss, loss = job.run().loss;
        const std::vector<LossSum> terms = job.last->loss_sums();
        ASSERT_EQ(terms.size(), 2u);
        EXPECT_STREQ(terms[0].term, "cross_entropy");
        EXPECT_STREQ(terms[1].term, "forward_kl");
        EXPECT_NEAR(terms[0].value, entropy, tolerance * entropy) << "an evaluation computes it alone";
        EXPECT_NEAR(terms[1].value, (loss - 0.7 * entropy) / 0.3, 10 * tolerance * loss);
        EXPECT_GT(terms[1].value, 0.01);
        EXPECT_NEAR(0.7 * terms[0].value + 0.3 * terms[1].value, loss, 1e-14 * loss);
        Job whole(Kind::vlm, type);
        const double plain = whole.run().loss;
        const std::vector<LossSum> term = whole.last->loss_sums();
        ASSERT_EQ(term.size(), 1u);
        EXPECT_EQ(term[0].value, plain);
        EXPECT_TRUE(whole.first->loss_sums().empty());
    }
}

/// A student that only imitates has a loss of one term, and no cross entropy in training.
TEST(Model, DivergenceMayBeTheOnlyTerm) {
    Job job(Kind::distill, DType::f64);
    job.run();
    const double divergence = job.last->loss_sums().at(1).value;
    job.last_role.loss_terms = {distillation(1, 2).back()};
    job.last = make_module(job.backend(), job.last_spec, job.last_role);
    fill_weights(*job.last, job.last_name);
    const double loss = job.run().loss;
    EXPECT_NEAR(loss, divergence, 1e-13 * divergence);
    ASSERT_EQ(job.last->loss_sums().size(), 1u);
    EXPECT_EQ(job.last->loss_sums()[0].value, loss);
}

/// Samples one by one, which are balanced by themselves, as in one micro-batch.
TEST(Model, BalancingExpertsDoesNotDependOnMicroBatches) {
    for (const auto& experts : {use_experts, use_sigmoid_experts}) {
        Job together(Kind::distill, DType::f64, Recompute::none, 1, experts);
        const std::vector<SampleView> samples = together.samples.views();
        const double scale = together.samples.batch().loss_scale;
        Role role = together.last_role;
        role.inputs = {};
        role.loss_terms = {LossTerm{}};
        const auto gradients = [&](std::size_t at_a_time, bool balanced) {
            ModelSpec spec = together.last_spec;
            if (!balanced) spec.experts.balance_strength = 0;
            const auto module = make_module(together.backend(), spec, role);
            fill_weights(*module, "student");
            for (std::size_t i = 0; i < samples.size(); i += at_a_time) {
                backend::Arena saved(together.backend(), std::size_t{16} << 20),
                    scratch(together.backend(), std::size_t{16} << 20);
                Tensor output;
                Result result;
                const Batch batch{.samples = std::span(samples).subspan(i, at_a_time), .loss_scale = scale};
                const auto state = module->forward(batch, {}, saved, scratch, output, result);
                module->backward(*state, {}, {}, scratch);
            }
            std::map<std::string, std::vector<double>> all;
            for (const Parameter& p : module->parameters().parameters())
                all[p.name] = testing_support::read_elements(together.backend(), p.gradient);
            for (const ExpertLoad& load : module->take_expert_loads())
                all["choices"].assign(load.choices.begin(), load.choices.end());
            return all;
        };
        const auto distance = [](const std::vector<double>& a, const std::vector<double>& b) {
            double squares = 0;
            for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
            return std::sqrt(squares);
        };
        const auto whole = gradients(samples.size(), true), single = gradients(1, true),
                   unbalanced = gradients(1, false);
        for (const auto& [name, values] : whole)
            EXPECT_LE(distance(values, single.at(name)),
                      1e-12 * (1 + distance(values, std::vector<double>(values.size(), 0.0))))
                << name;
        const std::string router = "layers.1.mlp.router.weight";
        if (together.last_spec.experts.balance == ExpertsSpec::Balance::loss) {
            EXPECT_GT(distance(whole.at(router), unbalanced.at(router)), 1e-4);
            continue;
        }
        const std::vector<double>& choices = whole.at("choices");
        std::size_t tokens = 0;
        for (const SampleView& sample : samples) tokens += sample.tokens.size();
        const std::size_t chosen = tokens * static_cast<std::size_t>(together.last_spec.experts.per_token);
        EXPECT_EQ(std::accumulate(choices.begin(), choices.end(), 0.0), static_cast<double>(chosen));
        const auto layers =
            static_cast<std::size_t>(together.last_spec.layers - together.last_spec.experts.dense_layers);
        EXPECT_EQ(measure(together.last_spec, role, together.samples.shapes()).host.saved,
                  layers * chosen * sizeof(std::int32_t))
            << "of the choices, which stay on the host";
    }
}

void expect_measured(Kind kind, DType type, Recompute recompute, bool train, int threads,
                     const Lora& lora = {}, const std::function<void(ModelSpec&)>& change = {}) {
    SCOPED_TRACE(testing::Message() << (kind == Kind::vlm ? "vlm " : "distill ") << name_of(type)
                                    << " recompute " << static_cast<int>(recompute) << " train " << train
                                    << " threads " << threads);
    Job job(kind, type, recompute, threads, change, lora);
    const auto measured = [&](const ModelSpec& spec, const Role& role) {
        return measure(spec, role, job.samples.shapes(),
                       {.train = train,
                        .traits = {job.backend().threads(), job.backend().shares_memory(),
                                   job.backend().attention_support()}});
    };
    const Footprint first = measured(job.first_spec, job.first_role),
                    last = measured(job.last_spec, job.last_role);
    const double loss = job.run(train).loss;
    EXPECT_EQ(job.run(train, first, last).loss, loss);
    EXPECT_EQ(job.first_used.saved, first.saved);
    if (testing_support::kOnGpu) {  // measure() includes the copies of the edges' rows that a task makes
        EXPECT_LE(job.first_used.scratch, first.scratch);
        EXPECT_EQ(job.last_used.saved, last.saved);
        EXPECT_LE(job.last_used.scratch, last.scratch);
        return;
    }
    EXPECT_EQ(job.first_used.scratch, first.scratch);
    EXPECT_EQ(job.last_used.saved, last.saved);
    // measure() assumes that every token is a target. Without a backward pass the logits take most memory,
    // and there are fewer of them here.
    EXPECT_LE(job.last_used.scratch, last.scratch);
    if (train) {
        EXPECT_EQ(job.last_used.scratch, last.scratch);
    }
}

TEST(Model, MeasureEqualsWhatARunAllocates) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const DType type : {DType::f32, DType::bf16})
            for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer})
                for (const bool train : {true, false})
                    for (const int threads : {1, 3}) expect_measured(kind, type, recompute, train, threads);
    for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer})
        expect_measured(Kind::vlm, DType::bf16, recompute, true, 1, kAllAdapters);
    for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::layer})
        for (const auto& experts : {use_experts, use_sigmoid_experts})
            expect_measured(Kind::vlm, DType::bf16, recompute, true, 2, {}, experts);
}

/// A micro-batch with one large picture bounds those with several small ones, although launches of cuDNN take
/// more of them.
TEST(Model, MemoryForLargePicturesSufficesForMoreAndSmallerOnes) {
    ModelSpec spec = vision_spec();
    attention_of(spec).head_dim = 64;
    const Role role{
        .section = "vision", .inputs = {}, .emits = true, .output_width = 16, .compute = DType::bf16};
    const auto scratch_of = [&](std::vector<Item> pictures) {
        const SampleShape shape{.tokens = 10, .items = std::move(pictures)};
        return measure(spec, role, std::span(&shape, 1), {.traits = {1, false, {.architecture = 90}}})
            .scratch;
    };
    const Item large{64, 128}, small{48, 52};  // 2048 and 624 patches
    EXPECT_LE(scratch_of({small, small, small}), scratch_of({large}));
}

std::vector<std::vector<double>> gradients_of(Job& job) {
    std::vector<std::vector<double>> gradients;
    for (const Module* module : {job.first.get(), job.last.get()})
        for (const Parameter& p : module->parameters().parameters())
            if (p.trainable) gradients.push_back(testing_support::read_elements(job.backend(), p.gradient));
    return gradients;
}

TEST(Model, RecomputationChangesNoBit) {
    for (const Kind kind : {Kind::vlm, Kind::distill})
        for (const DType type : {DType::f32, DType::bf16}) {
            Job kept(kind, type);
            const double loss = kept.run().loss;
            const auto gradients = gradients_of(kept);
            for (const Recompute recompute : {Recompute::cheap, Recompute::layer}) {
                Job job(kind, type, recompute);
                EXPECT_EQ(job.run().loss, loss);
                EXPECT_EQ(gradients_of(job), gradients);
            }
        }
    Job kept(Kind::vlm, DType::f32, Recompute::none, 1, {}, kSomeAdapters);
    kept.run();
    for (const Recompute recompute : {Recompute::cheap, Recompute::layer}) {
        Job job(Kind::vlm, DType::f32, recompute, 1, {}, kSomeAdapters);
        job.run();
        EXPECT_EQ(gradients_of(job), gradients_of(kept));
    }
    for (const auto& experts : {use_experts, use_sigmoid_experts}) {
        Job whole(Kind::vlm, DType::f32, Recompute::none, 1, experts);
        whole.run();
        for (const Recompute recompute : {Recompute::cheap, Recompute::layer}) {
            Job job(Kind::vlm, DType::f32, recompute, 1, experts);
            job.run();
            EXPECT_EQ(gradients_of(job), gradients_of(whole));
        }
    }
}

// Only adapters have gradients and optimizer states.
TEST(Model, AdaptersNeedLittleMemoryBesideTheWeights) {
    const Job full(Kind::vlm, DType::bf16), job(Kind::vlm, DType::bf16, Recompute::none, 1, {}, kAllAdapters);
    for (const auto& [before, after] :
         {std::pair{full.first.get(), job.first.get()}, {full.last.get(), job.last.get()}}) {
        std::int64_t adapters = 0;
        for (const Parameter& p : after->parameters().parameters()) {
            EXPECT_EQ(p.trainable, p.gradient.rank != 0) << p.name;
            EXPECT_EQ(p.trainable, p.name.find(".lora_") != std::string::npos) << p.name;
            if (p.trainable) adapters += p.size();
        }
        const ParameterStore &all = before->parameters(), &few = after->parameters();
        EXPECT_EQ(few.count(), all.count() + adapters);
        EXPECT_LE(few.optimizer_states(), adapters + 16 * 16);  // 16 parameters, padded to blocks of 16
        // Weights in bf16; with a gradient, also masters and gradients in fp32.
        EXPECT_LE(few.bytes(), all.bytes() / 5 + static_cast<std::size_t>(10 * few.optimizer_states()) + 512);
    }
}

/// A frozen encoder in front of a trained one needs no inputs of weight gradients, but queries and keys.
TEST(Model, RecomputationPassesGradientsThroughFrozenLayers) {
    std::vector<std::vector<double>> gradients;
    for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
        Job job(Kind::vlm, DType::f32, recompute);
        job.last_role.trained = false;
        job.last = make_module(job.backend(), job.last_spec, job.last_role);
        fill_weights(*job.last, job.last_name);
        job.run();
        const auto found = gradients_of(job);
        if (gradients.empty()) gradients = found;
        EXPECT_EQ(found, gradients);
    }
}

/// Two norms, queries and keys, and the product of SwiGLU are not kept.
TEST(Model, CheapRecomputationKeepsLess) {
    for (const DType type : {DType::f32, DType::bf16})
        for (const int layers : {1, 3}) {
            ModelSpec spec = language_spec(24, 32);
            spec.layers = layers;
            Role role = Job(Kind::vlm, type).last_role;
            role.inputs.clear();
            const auto saved = [&](Recompute recompute) {
                role.recompute = recompute;
                const std::vector<SampleShape> shapes = {{.tokens = 37, .items = {}, .weight = 1}};
                return measure(spec, role, shapes).saved;
            };
            const auto bytes = [&](std::size_t columns) {
                return (37 * columns * size_of(type) + 63) / 64 * 64;
            };
            const std::size_t queries = 4 * 8, keys = 2 * 8;
            EXPECT_EQ(saved(Recompute::none) - saved(Recompute::cheap),
                      static_cast<std::size_t>(layers) *
                          (2 * bytes(24) + bytes(queries) + bytes(keys) + bytes(32)));
            EXPECT_LT(saved(Recompute::layer), saved(Recompute::cheap));
        }
}

/// With zero weights in the layers and unit vectors as embeddings, every token predicts itself.
TEST(Model, CountsAnswersThatMatchExactly) {
    const auto device = testing_support::make_device(1);
    ModelSpec spec = language_spec(40, 8);
    Role role = Job(Kind::vlm, DType::f32).last_role;
    role.inputs.clear();
    const auto module = make_module(*device, spec, role);
    for (const Parameter& p : module->parameters().parameters()) {
        std::vector<double> weights(static_cast<std::size_t>(p.size()),
                                    p.name.ends_with("norm.weight") ? 1.0 : 0.0);
        for (std::size_t i = 0; p.name == "embedding.weight" && i < 40; ++i) weights[i * 40 + i] = 1;
        testing_support::write_elements(*device, p.weight, weights);
    }
    Samples samples;
    samples.add({kMarker, 5, 5, 5, kMarker, 6, 6, 7}, {{4, 4}, {4, 4}});  // exact; wrong in the last token
    samples.add({kMarker, 8, 8, 9, 9}, {{4, 4}});                         // wrong where no flag is set: exact
    samples.add({3, 3, 3});  // flagged, but not after a picture: no answer
    const std::vector<std::vector<std::uint8_t>> flags = {
        {0, 0, 1, 1, 0, 0, 1, 1}, {0, 0, 1, 0, 1}, {1, 1, 1}};
    for (std::size_t s = 0; s < flags.size(); ++s) {
        std::copy(flags[s].begin(), flags[s].end(), samples.at(s).flags.begin());
        std::fill(samples.at(s).weights.begin(), samples.at(s).weights.end(), 1.0f);
    }
    backend::Arena saved(*device, std::size_t{4} << 20), scratch(*device, std::size_t{4} << 20);
    Tensor output;
    Result result;
    module->forward(samples.batch(false), {}, saved, scratch, output, result);
    EXPECT_EQ(result.answers, 3);
    EXPECT_EQ(result.exact, 2);
    EXPECT_EQ(result.tokens, 16);
}

TEST(Model, LogitsExistForAChunkOnly) {
    ModelSpec spec = language_spec(24, 32);
    spec.vocabulary = 50000;
    const std::size_t all = std::size_t{5000} * 50000 * sizeof(float);
    const std::vector<SampleShape> shapes = {{.tokens = 5000, .items = {}, .weight = 1}};
    Job vlm(Kind::vlm, DType::f32), distill(Kind::distill, DType::f32);
    EXPECT_LT(measure(spec, vlm.last_role, shapes).scratch, all / 4);
    EXPECT_LT(measure(spec, distill.last_role, shapes).scratch, all / 4);
}

/// The batch has targets beyond the first chunk of logits. Its loss must be the sum of the losses of its
/// samples.
TEST(Model, LossDoesNotDependOnTheChunks) {
    Job many(Kind::distill, DType::f64);
    Samples samples;
    for (int s = 0; s < 60; ++s) {
        std::vector<std::int32_t> tokens;
        for (int j = 0; j < 9 + s % 5; ++j) tokens.push_back((7 * s + 3 * j * j) % 38);
        samples.add(tokens);
    }
    double sum = 0;
    for (const SampleView& sample : samples.views()) {
        Job one(Kind::distill, DType::f64);
        one.samples = Samples();
        one.samples.add({sample.tokens.begin(), sample.tokens.end()});
        std::copy(sample.weights.begin(), sample.weights.end(), one.samples.at(0).weights.begin());
        sum += one.run().loss / one.samples.batch().loss_scale;
    }
    many.samples = std::move(samples);
    const double scale = many.samples.batch().loss_scale;
    EXPECT_NEAR(many.run().loss, sum * scale, 1e-10 * sum * scale);
}

}  // namespace
}  // namespace maestro::model::test
