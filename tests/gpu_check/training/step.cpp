// Two steps of a small language model on the GPU and on the CPU, whose GEMMs are loops in double precision.
// Both begin with the same weights. Adam's eps is large, so that updates are nearly proportional to
// gradients; with a small one, rounding errors would decide the sign of the smallest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "backend/arena.hpp"
#include "base/random.hpp"
#include "json_line.hpp"
#include "model/module.hpp"
#include "support/device.hpp"
#include "train/step/optimizer.hpp"
#include "training/checks.hpp"

namespace maestro::gpu_check {

namespace {

constexpr int kSteps = 2;

model::ModelSpec spec_of(bool small) {
    return {.kind = model::ModelSpec::Kind::language,
            .name = "language",
            .layers = small ? 1 : 3,
            .width = small ? 64 : 256,
            .mixers = {model::AttentionForm{
                .heads = small ? 2 : 4, .kv_heads = small ? 1 : 2, .head_dim = small ? 32 : 64}},
            .mlp = small ? 96 : 512,
            .vocabulary = small ? 96 : 2048};
}

/// Sequences of random tokens; every token but the first is a target.
struct Samples {
    explicit Samples(bool small, int vocabulary) {
        for (const int length : small ? std::vector{23, 9} : std::vector{300, 129, 83}) {
            const Random numbers(23, "gpu_check/tokens/" + std::to_string(tokens.size()));
            auto& list = tokens.emplace_back();
            for (int i = 0; i < length; ++i)
                list.push_back(static_cast<std::int32_t>(numbers.bits(static_cast<std::uint64_t>(i)) %
                                                         static_cast<std::uint64_t>(vocabulary)));
            weights.emplace_back(list.size(), 1.0f);
            flags.emplace_back(list.size(), std::uint8_t{0});
            targets += length - 1;
            shapes.push_back({.tokens = length, .items = {}, .weight = static_cast<double>(length - 1)});
        }
        for (std::size_t i = 0; i < tokens.size(); ++i)
            views.push_back({static_cast<std::int64_t>(i), tokens[i], weights[i], flags[i], {}});
    }
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::vector<float>> weights;
    std::vector<std::vector<std::uint8_t>> flags;
    std::vector<model::SampleView> views;
    std::vector<model::SampleShape> shapes;
    int targets = 0;
};

struct Trained {
    std::vector<double> losses, norms;  ///< of each step
    std::vector<double> updates;        ///< of all master weights, by the first step
};

std::vector<double> masters_of(backend::Backend& b, const parallel::ParameterStore& store) {
    std::vector<double> all;
    for (const parallel::ParameterGroup& group : store.groups()) {
        const std::vector<double> list = testing_support::read_elements(b, group.master());
        all.insert(all.end(), list.begin(), list.end());
    }
    return all;
}

Trained train(backend::Backend& b, DType type, const CheckOptions& options, double disturbance) {
    const model::ModelSpec spec = spec_of(options.small);
    const Samples samples(options.small, spec.vocabulary);
    const model::Role role{.section = "language",
                           .inputs = {},
                           .loss_terms = {model::LossTerm{}},
                           .seed = 11,
                           .compute = type,
                           .stage = {}};
    const auto module = model::make_module(b, spec, role);
    const model::Footprint size =
        model::measure(spec, role, samples.shapes,
                       {.rates = {}, .traits = {b.threads(), b.shares_memory(), b.attention_support()}});
    parallel::ParameterStore& store = module->parameters();
    train::Optimizer optimizer(b, store);
    backend::Arena saved(b, size.saved), scratch(b, std::max(size.scratch, size.sync_scratch) + (1 << 20));
    std::vector<std::int64_t> rows;
    for (const auto& list : samples.tokens) rows.push_back(static_cast<std::int64_t>(list.size()));
    module->prepare(rows, std::ssize(rows));
    Trained trained;
    std::vector<double> before = masters_of(b, store);
    if (disturbance != 0) {
        const Tensor first = store.groups().front().master();
        testing_support::write_element(b, first, first.size() / 2,
                                       before[static_cast<std::size_t>(first.size() / 2)] + disturbance);
    }
    for (int step = 1; step <= kSteps; ++step) {
        store.zero_gradients();
        const model::Batch batch{
            .samples = samples.views, .loss_scale = 1.0 / samples.targets, .step = step, .train = true};
        model::Result result;
        Tensor output;
        const auto state = module->forward(batch, {}, saved, scratch, output, result);
        module->collect(result);
        module->backward(*state, {}, {}, scratch);
        for (std::size_t i = 0; i < optimizer.size(); ++i) {
            optimizer.group(i).reduce_gradients(scratch);
            optimizer.add_squares(i, scratch);
        }
        trained.losses.push_back(result.loss);
        trained.norms.push_back(std::sqrt(optimizer.take_squares()));
        for (std::size_t i = 0; i < optimizer.size(); ++i) {
            optimizer.update(i, {.learning_rate = 1, .eps = 1}, step, 1);
            optimizer.group(i).gather_weights();
        }
        if (step == 1) {
            trained.updates = masters_of(b, store);
            for (std::size_t i = 0; i < before.size(); ++i) trained.updates[i] -= before[i];
        }
        saved.reset();
        scratch.reset();
    }
    return trained;
}

/// |found - expected| / |expected|, as vectors. Infinite where something is NaN or Inf.
double relative_error(const std::vector<double>& found, const std::vector<double>& expected) {
    double difference = 0, length = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        difference += std::pow(found[i] - expected[i], 2);
        length += std::pow(expected[i], 2);
    }
    const double error = std::sqrt(difference / length);
    return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

/// Largest relative errors of the losses, of the gradient norms, and of the update as a vector.
struct Tolerance {
    double loss, norm, update;
};
constexpr Tolerance kF32{1e-5, 1e-4, 1e-4}, kBf16{1e-3, 1e-2, 3e-2};

bool compare(DType type, const CheckOptions& options) {
    const auto cpu = backend::make_cpu(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
    const auto gpu = backend::make_cuda(0);
    const Trained expected = train(*cpu, type, options, 0),
                  found = train(*gpu, type, options, options.disturbance);
    const Tolerance allowed = type == DType::bf16 ? kBf16 : kF32;
    const double loss = relative_error(found.losses, expected.losses),
                 norm = relative_error(found.norms, expected.norms),
                 update = relative_error(found.updates, expected.updates);
    // A model that does not learn would make the comparison of updates void.
    const bool learns = expected.losses.back() < expected.losses.front();
    const bool passed = learns && loss <= allowed.loss && norm <= allowed.norm && update <= allowed.update;
    JsonLine("step")
        .add("dtype", name_of(type))
        .add("loss", found.losses.front())
        .add("second_loss", found.losses.back())
        .add("cpu_second_loss", expected.losses.back())
        .add("gradient_norm", found.norms.front())
        .add("loss_error", loss)
        .add("norm_error", norm)
        .add("update_error", update)
        .add("loss_tolerance", allowed.loss)
        .add("norm_tolerance", allowed.norm)
        .add("update_tolerance", allowed.update)
        .add("cudnn_plans",
             gpu->fused_attention() ? static_cast<double>(gpu->fused_attention()->plans()) : 0.0)
        .add("passed", passed)
        .print();
    return passed;
}

}  // namespace

int check_step(const CheckOptions& options) {
    int failed = 0;
    for (const DType type : {DType::f32, DType::bf16})
        if (!compare(type, options)) ++failed;
    return failed;
}

}  // namespace maestro::gpu_check
