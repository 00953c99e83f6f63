// Two small jobs on one rank, with their sections connected by hand: a vision encoder before a language
// model, and a teacher before a student.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "model/module.hpp"
#include "parallel/low_rank_adapter.hpp"
#include "support/device.hpp"

namespace maestro::model::test {

using namespace parallel;

constexpr int kMarker = 39;

inline ModelSpec language_spec(int width, int mlp, bool tied = true) {
    return {.kind = ModelSpec::Kind::language,
            .name = "language",
            .layers = 2,
            .width = width,
            .mixers = {AttentionForm{.heads = 4, .kv_heads = 2, .head_dim = 8, .rope_theta = 10000}},
            .mlp = mlp,
            .vocabulary = 40,
            .tie_embeddings = tied};
}

inline ModelSpec vision_spec() {
    return {.kind = ModelSpec::Kind::vision,
            .name = "vision",
            .layers = 2,
            .width = 16,
            .mixers = {AttentionForm{.heads = 4, .kv_heads = 2, .head_dim = 8, .rope_theta = 100}},
            .mlp = 24,
            .patch = 2,
            .merge = 2,
            .channels = 3};
}

/// The form of the layers of a model that has one.
inline AttentionForm& attention_of(ModelSpec& spec) {
    return std::get<AttentionForm>(spec.mixers.front());
}

/// Layers of two forms by turns: the second has fewer heads, which turn faster.
inline void use_two_mixers(ModelSpec& spec) {
    AttentionForm second = attention_of(spec);
    second.heads = 2;
    second.rope_theta = 10;
    spec.mixers.push_back(second);
    for (int layer = 0; layer < spec.layers; ++layer) spec.mixer_of_layer.push_back(layer % 2);
}

/// The data that the view of a sample refers to.
struct Owned {
    std::vector<std::int32_t> tokens;
    std::vector<float> weights;
    std::vector<std::uint8_t> flags;
    std::vector<std::vector<std::uint8_t>> pixels;
    std::vector<ItemView> items;
};

class Samples {
public:
    void add(std::vector<std::int32_t> tokens, const std::vector<Item>& sizes = {}) {
        Owned& sample = *owned_.emplace_back(std::make_unique<Owned>());
        sample.tokens = std::move(tokens);
        for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
            sample.weights.push_back(0.5f * static_cast<float>((j + owned_.size() - 1) % 3));
            if (j > 0 && sample.tokens[j] != kMarker) weight_ += static_cast<double>(sample.weights.back());
        }
        sample.flags.assign(sample.tokens.size(), 0);
        for (const Item& size : sizes) {
            auto& pixels = sample.pixels.emplace_back();
            for (int i = 0; i < size.height * size.width * 3; ++i)
                pixels.push_back(static_cast<std::uint8_t>((5 * i * i + 31 * i + 17 * pictures_) % 256));
            ++pictures_;
            sample.items.push_back({pixels.data(), size});
        }
        views_.push_back({static_cast<std::int64_t>(views_.size()), sample.tokens, sample.weights,
                          sample.flags, sample.items});
        shapes_.push_back({static_cast<std::int64_t>(sample.tokens.size()), sizes, 1});
    }
    Owned& at(std::size_t i) { return *owned_[i]; }
    Batch batch(bool train = true) const {
        return {.samples = views_, .loss_scale = 1 / weight_, .train = train};
    }
    const std::vector<SampleView>& views() const { return views_; }
    const std::vector<SampleShape>& shapes() const { return shapes_; }

private:
    std::vector<std::unique_ptr<Owned>> owned_;
    std::vector<SampleView> views_;
    std::vector<SampleShape> shapes_;
    double weight_ = 0;
    int pictures_ = 0;
};

inline void fill_weights(Module& module, const std::string& section) {
    for (const Parameter& p : module.parameters().parameters()) {
        double phase = 0;
        for (const char c : section + "." + p.name) phase += static_cast<unsigned char>(c);
        std::vector<double> list(static_cast<std::size_t>(p.size()));
        for (const Extent& part : extents_of(p.shape, p.shard))
            for (std::int64_t i = 0; i < part.count; ++i) {
                const auto x = static_cast<double>(part.logical + i);
                const double wave = std::sin(0.37 * x + 0.0013 * x * x + phase);
                const double value = p.name.ends_with("norm.weight") ? 1 + 0.1 * wave : 0.2 * wave;
                list[static_cast<std::size_t>(part.local + i)] = value;
            }
        const DType type = p.weight.dtype == DType::f64 ? DType::f64 : DType::f32;
        std::vector<std::byte> bytes(list.size() * size_of(type));
        const Tensor values(bytes.data(), type, {p.size()});
        for (std::size_t i = 0; i < list.size(); ++i)
            testing_support::set_element(values, static_cast<std::int64_t>(i), list[i]);
        module.parameters().group_of(p).set_weights(p, {0, p.size()}, values);
    }
    module.parameters().zero_gradients();
}

/// Layers as in the encoders and language models of other families: vision with LayerNorm, GELU, biases and
/// one adapter of queries, keys and values, both without a norm of heads.
inline void use_other_forms(ModelSpec& spec) {
    spec.form.head_norm = false;
    if (spec.kind == ModelSpec::Kind::language) return;
    spec.form.norm = LayerForm::Norm::layer;
    spec.form.mlp = LayerForm::Mlp::gelu;
    spec.form.bias = LayerForm::Bias::all;
    spec.form.fused_qkv = true;
}

/// Experts in the second layer of language models, balanced by the loss, and one for all tokens.
inline void use_experts(ModelSpec& spec) {
    if (spec.kind == ModelSpec::Kind::vision) return;
    spec.experts = {.count = 12,
                    .per_token = 3,
                    .mlp = 12,
                    .shared_mlp = 10,
                    .dense_layers = 1,
                    .balance = ExpertsSpec::Balance::loss,
                    .balance_strength = 0.3};
}
/// Experts in all layers, one for each token, balanced by a bias.
inline void use_sigmoid_experts(ModelSpec& spec) {
    if (spec.kind == ModelSpec::Kind::vision) return;
    spec.mlp = 0;
    spec.experts = {.count = 12,
                    .per_token = 1,
                    .mlp = 12,
                    .router = ExpertsSpec::Router::sigmoid,
                    .normalize = false,
                    .balance = ExpertsSpec::Balance::bias,
                    .balance_strength = 0.01};
}

/// Adapters of all linear layers, and of one matrix of each fused weight and of one other layer.
inline const Lora kAllAdapters{
    .rank = 3, .alpha = 4.5, .targets = {kLoraTargets.begin(), kLoraTargets.end()}},
    kSomeAdapters{.rank = 2, .alpha = 1, .targets = {"k_proj", "up_proj", "down_proj"}};

/// Of a student whose first edge is that of its teacher.
inline std::vector<LossTerm> distillation(double alpha, double temperature) {
    return {{.weight = 1 - alpha},
            {.kind = LossTerm::Kind::forward_kl, .edge = 0, .weight = alpha, .temperature = temperature}};
}

/// An upstream section, vision or teacher, and a language section that computes the loss.
class Job {
public:
    enum class Kind { vlm, distill };
    /// `change` may modify the sizes of both models. Both have the adapters `lora`.
    Job(Kind kind, DType type, Recompute recompute = Recompute::none, int threads = 1,
        const std::function<void(ModelSpec&)>& change = {}, const Lora& lora = {})
        : kind_(kind), backend_(testing_support::make_device(threads)) {
        const bool vlm = kind == Kind::vlm;
        first_name = vlm ? "vision" : "teacher";
        last_name = vlm ? "language" : "student";
        first_spec = vlm ? vision_spec() : language_spec(24, 32);
        last_spec = vlm ? language_spec(24, 32) : language_spec(16, 24, false);
        if (change) {
            change(first_spec);
            change(last_spec);
        }
        first_role = {.section = first_name,
                      .inputs = {},
                      .emits = true,
                      .output_width = 24,
                      .trained = vlm,
                      .needs_backward = vlm,
                      .markers = Markers(kMarker),
                      .compute = type,
                      .recompute = recompute};
        last_role = {.section = last_name,
                     .inputs = {{vlm ? EdgeTensor::embeddings : EdgeTensor::hidden, first_spec}},
                     .loss_terms = vlm ? std::vector{LossTerm{}} : distillation(0.3, 2),
                     .markers = Markers(kMarker),
                     .compute = type,
                     .recompute = recompute};
        first_role.lora = last_role.lora = lora;
        first_role.frozen = last_role.frozen = frozen_with(lora);
        if (vlm) {
            samples.add({3, kMarker, 5, 7, kMarker, 11, 12, 13}, {{5, 7}, {8, 4}});
            samples.add({kMarker, 9, 2, 30, 31}, {{3, 9}});
            samples.add({1, 2, 8, 4, 2, 17});
        } else {
            samples.add({3, 14, 15, 9, 2, 6});
            samples.add({5, 35, 8, 9, 7, 9, 3, 2, 38});
        }
        first = make_module(*backend_, first_spec, first_role);
        last = make_module(*backend_, last_spec, last_role);
        fill_weights(*first, first_name);
        fill_weights(*last, last_name);
    }

    backend::Backend& backend() { return *backend_; }

    /// Runs forward and, with `train`, backward in arenas of these sizes, and records the peaks of both
    /// sections.
    Result run(bool train = true, Footprint first_size = ample(), Footprint last_size = ample()) {
        backend::Arena first_saved(*backend_, first_size.saved), first_scratch(*backend_, first_size.scratch);
        backend::Arena last_saved(*backend_, last_size.saved), last_scratch(*backend_, last_size.scratch);
        first->parameters().zero_gradients();
        last->parameters().zero_gradients();
        const Batch batch = samples.batch(train);
        Result result;
        Tensor rows, none;
        const auto first_state = first->forward(batch, {}, first_saved, first_scratch, rows, result);
        std::vector<std::vector<Tensor>> inputs(1);
        std::int64_t begin = 0;
        for (const SampleView& sample : samples.views()) {
            auto count = static_cast<std::int64_t>(sample.tokens.size());
            if (kind_ == Kind::vlm) {
                count = 0;
                for (const ItemView& p : sample.items) count += Units(vision_spec()).outputs(p.item);
            }
            inputs[0].push_back(rows.slice(begin, begin + count));
            begin += count;
        }
        const auto last_state = last->forward(batch, inputs, last_saved, last_scratch, none, result);
        for (backend::Arena* scratch : {&first_scratch, &last_scratch}) scratch->reset();  // as between tasks
        if (train) {
            const Tensor d_rows = last_scratch.allocate(last_role.compute, {rows.dim(0), rows.dim(1)});
            last->backward(*last_state, {}, std::vector<Tensor>{d_rows}, last_scratch);
            if (kind_ == Kind::vlm) first->backward(*first_state, d_rows, {}, first_scratch);
        }
        for (Module* module : {first.get(), last.get()}) module->collect(result);
        first_used = {.saved = first_saved.peak(), .scratch = first_scratch.peak()};
        last_used = {.saved = last_saved.peak(), .scratch = last_scratch.peak()};
        return result;
    }
    static Footprint ample() { return {.saved = std::size_t{16} << 20, .scratch = std::size_t{16} << 20}; }

    std::string first_name, last_name;
    ModelSpec first_spec, last_spec;
    Role first_role, last_role;
    Samples samples;
    Footprint first_used, last_used;

private:
    Kind kind_;
    std::unique_ptr<backend::Backend> backend_;

public:
    std::unique_ptr<Module> first, last;
};

}  // namespace maestro::model::test
