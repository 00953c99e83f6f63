#include "model/module.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <list>
#include <variant>

#include "base/check.hpp"
#include "model/kind.hpp"

namespace maestro::model {

bool wants_input_gradient(const Role& role) {
    // Hidden states come from a frozen teacher, which needs no gradient.
    return std::any_of(role.inputs.begin(), role.inputs.end(), [](const InputSpec& input) {
        return input.gradient && input.tensor != EdgeTensor::hidden;
    });
}

namespace {

void check_sizes(const ModelSpec& spec, const Role& role) {
    const auto refuse = [&](const std::string& what) {
        throw Error(ExitCode::bad_deck, "model." + spec.name + ": " + what, Scope::all_ranks);
    };
    const int mlp = spec.experts.in_layer(0) ? spec.experts.mlp : spec.mlp;
    if (spec.layers < 1 || spec.width < 1 || mlp < 1) refuse("layers, width and mlp must be at least 1");
    const ModelKind& kind = kind_of(spec);
    for (const MixerForm& form : spec.mixers) {
        const std::string wrong =
            std::visit([&](const auto& of) { return of.check_sizes(kind.head_dim_unit); }, form);
        if (!wrong.empty()) refuse(wrong);
        const auto* attention = std::get_if<AttentionForm>(&form);
        if (attention && attention->kv_heads != spec.kv_heads())
            refuse("kv_heads must be the same in all layers");
    }
    const std::vector<int>& of_layer = spec.mixer_of_layer;
    MAESTRO_CHECK(of_layer.empty() || std::ssize(of_layer) == spec.layers, "{} mixers for {} layers",
                  of_layer.size(), spec.layers);
    for (int layer = 0; layer < spec.layers; ++layer)
        MAESTRO_CHECK(spec.mixer_index(layer) >= 0 && spec.mixer_index(layer) < std::ssize(spec.mixers),
                      "layer {} has mixer {} of {}", layer, spec.mixer_index(layer), spec.mixers.size());
    if (const std::string wrong = kind.check_sizes(spec, role); !wrong.empty()) refuse(wrong);
}

}  // namespace

std::span<const ModelKind* const> kinds() {
    static constexpr std::array<const ModelKind*, 2> kKinds = {&kVisionKind, &kLanguageKind};
    return kKinds;
}

const ModelKind& kind_of(ModelSpec::Kind kind) {
    const auto found = std::find_if(kinds().begin(), kinds().end(),
                                    [&](const ModelKind* each) { return each->kind == kind; });
    MAESTRO_CHECK(found != kinds().end(), "kind {} of model is not in kinds()", static_cast<int>(kind));
    return **found;
}

const ModelKind* find_kind(std::string_view word) {
    const auto found = std::find_if(kinds().begin(), kinds().end(),
                                    [&](const ModelKind* each) { return each->word == word; });
    return found == kinds().end() ? nullptr : *found;
}

std::unique_ptr<Module> make_module(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                                    parallel::Mesh mesh, InitialWeights weights) {
    check_sizes(spec, role);  // before any constructor divides by them
    std::unique_ptr<Module> module = kind_of(spec).make(backend, spec, role, std::move(mesh));
    // Every layer adds to the residual stream twice. Scaling the output projections by 1 / sqrt(2 layers), as
    // GPT-2 does, keeps the variance of the stream independent of the depth.
    module->parameters().allocate(1 / std::sqrt(2.0 * spec.layers));
    if (weights == InitialWeights::drawn) {
        Pulse pulse;
        module->parameters().initialize(pulse);
    }
    return module;
}

namespace {

/// Samples of given shapes, with the data that their views refer to.
class ProbeSamples {
public:
    ProbeSamples(std::span<const SampleShape> shapes, const Markers& markers) {
        // Views point into the elements of these vectors, which must therefore not move.
        tokens_.reserve(shapes.size());
        weights_.reserve(shapes.size());
        flags_.reserve(shapes.size());
        items_.reserve(shapes.size());
        for (const SampleShape& shape : shapes) add(shape, markers);
    }
    std::span<const SampleView> views() const { return views_; }

private:
    void add(const SampleShape& shape, const Markers& markers) {
        const auto count = static_cast<std::size_t>(
            std::max<std::int64_t>(shape.tokens, static_cast<std::int64_t>(shape.items.size())));
        std::int32_t word = 0;
        while (markers.kind_of(word)) ++word;
        // Markers come first and every token has a loss weight: no other sample of these lengths has more
        // targets, so the head and the loss need the most memory.
        auto& ids = tokens_.emplace_back(count, word);
        for (std::size_t i = 0; i < shape.items.size(); ++i) ids[i] = markers.of(shape.items[i].kind);
        weights_.emplace_back(count, 1.0f);
        flags_.emplace_back(count, std::uint8_t{0});
        auto& items = items_.emplace_back();
        for (const Item& item : shape.items) items.push_back({nullptr, item});
        views_.push_back(
            {static_cast<std::int64_t>(views_.size()), ids, weights_.back(), flags_.back(), items});
    }

    std::vector<std::vector<std::int32_t>> tokens_;
    std::vector<std::vector<float>> weights_;
    std::vector<std::vector<std::uint8_t>> flags_;
    std::vector<std::vector<ItemView>> items_;
    std::vector<SampleView> views_;
};

std::int64_t total_rows(const std::vector<Tensor>& tensors) {
    std::int64_t rows = 0;
    for (const Tensor& t : tensors) rows += t.dim(0);
    return rows;
}

/// Returns how many more rows an embedding edge may deliver to this rank than `delivered`: another
/// micro-batch of the same lengths may have all of its items among the rows of one rank.
std::int64_t worst_case_extra_rows(const InputSpec& input, const Role& role,
                                   std::span<const SampleShape> shapes, std::int64_t delivered,
                                   std::int64_t local_rows) {
    std::int64_t rows = 0;
    for (const SampleShape& shape : shapes) rows += input.units.outputs(shape.items);
    if (role.computes_loss()) rows = std::min(rows, local_rows);
    return std::max<std::int64_t>(rows - delivered, 0);
}

/// Notes what a pass has used when it comes to each layer.
struct PassMarks final : parallel::PassObserver {
    PassMarks(parallel::ParameterStore& store_, std::function<Footprint::Mark()> used_)
        : store(store_), used(std::move(used_)) {
        store.set_observer(this);
    }
    ~PassMarks() override { store.set_observer(nullptr); }
    void weights_needed(const parallel::ParameterGroup&) override {}
    void gradients_final(const parallel::ParameterGroup&) override {}
    void layer_passed(int layer) override { (*of_pass)[static_cast<std::size_t>(layer)] = used(); }

    parallel::ParameterStore& store;
    std::function<Footprint::Mark()> used;
    std::vector<Footprint::Mark>* of_pass = nullptr;  ///< of the present pass
};

void add_parameters(const parallel::ParameterStore& store, Footprint& footprint) {
    footprint.parameters = store.bytes();
    footprint.gradients = store.gradient_bytes();
    footprint.optimizer = store.optimizer_states();
    footprint.frozen_shard = store.frozen_shard_bytes();
    footprint.sync_scratch = store.sync_scratch();
    footprint.group_layers.clear();
    for (int layer = 0; layer <= store.layers(); ++layer)
        footprint.group_layers.insert(footprint.group_layers.end(), store.groups_from(layer).size(), layer);
}

}  // namespace

Footprint measure(const ModelSpec& spec, const Role& role, std::span<const SampleShape> shapes,
                  const MeasureOptions& options, parallel::Mesh mesh) {
    const auto meta = backend::make_meta(options.rates, options.traits);
    const auto module = make_module(*meta, spec, role, std::move(mesh), InitialWeights::zeros);
    if (options.worst_case) module->assume_worst_case();
    const ProbeSamples samples(shapes, role.markers);
    const Batch batch{
        .samples = samples.views(), .loss_scale = 1, .train = options.train, .lane_rows = options.lane_rows};
    const auto input_rows = module->input_rows(batch);
    std::vector<std::vector<Tensor>> inputs(role.inputs.size());
    for (std::size_t e = 0; e < inputs.size(); ++e)
        for (const std::int64_t rows : input_rows[e])
            inputs[e].push_back(Tensor(nullptr, role.compute, {rows, row_width(role.inputs[e], spec.width)}));
    const auto sent = [&]() -> std::array<collective::Traffic, 3> {
        const parallel::Mesh& groups = module->mesh();
        return {groups.tp().traffic(), groups.cp().traffic(), groups.ep().traffic()};
    };
    const auto communication_s = [&] {
        const auto traffic = sent();
        return traffic[0].seconds + traffic[1].seconds + traffic[2].seconds;
    };
    backend::Arena saved, scratch;
    Tensor output;
    Result result;
    double before_s = 0;  // what was sent before the present pass
    Footprint footprint;
    const auto layers = static_cast<std::size_t>(module->parameters().layers()) + 1;
    footprint.forward_marks.resize(layers);
    footprint.backward_marks.resize(layers);
    double factor = options.factors[0];
    const auto used = [&] {
        const backend::Counts& counts = meta->counts();
        return Footprint::Mark{.passed = true,
                               .until_wait_s = factor * counts.until_wait_s,
                               .device_s = factor * counts.device_s,
                               .host_s = factor * counts.host_s,
                               .sent_s = communication_s() - before_s,
                               .flops = counts.flops,
                               .saved = saved.mark(),
                               .sent = sent()};
    };
    PassMarks marks(module->parameters(), used);
    marks.of_pass = &footprint.forward_marks;
    // Allocating and zeroing the parameters was counted as well, but is not part of a task.
    meta->reset_counts();
    const auto state = module->forward(batch, inputs, saved, scratch, output, result);
    // A task begins with empty scratch memory: forward and backward do not add up, and the peak covers the
    // larger.
    scratch.reset();
    footprint.saved = saved.peak();
    add_parameters(module->parameters(), footprint);
    footprint.host = module->host_bytes(*state);
    footprint.forward_flops = meta->counts().flops;
    footprint.forward_end = used();
    footprint.forward_s = footprint.forward_end.seconds();
    if (options.train && role.needs_backward) {
        std::vector<Tensor> d_inputs(inputs.size());
        for (std::size_t e = 0; e < inputs.size(); ++e) {
            // A pipeline hands a gradient from stage to stage, wanted or not.
            if (!role.inputs[e].gradient && role.inputs[e].tensor != EdgeTensor::stream) continue;
            const std::int64_t rows = total_rows(inputs[e]);
            const int width = row_width(role.inputs[e], spec.width);
            d_inputs[e] = scratch.allocate(role.compute, {rows, width});
            // The gradients of the inputs lie in the task's scratch memory: room for the worst case is
            // taken beside them, so that the peak includes it.
            if (options.worst_case && role.inputs[e].tensor == EdgeTensor::embeddings)
                scratch.allocate(
                    role.compute,
                    {worst_case_extra_rows(role.inputs[e], role, shapes, rows, result.tokens), width});
        }
        meta->reset_counts();
        before_s = communication_s();
        factor = options.factors[1];
        marks.of_pass = &footprint.backward_marks;
        module->backward(*state, output.rank != 0 ? output : Tensor{}, d_inputs, scratch);
        footprint.backward_flops = meta->counts().flops;
        footprint.backward_end = used();
        footprint.backward_s = footprint.backward_end.seconds();
    }
    footprint.tp = module->mesh().tp().traffic();
    footprint.cp = module->mesh().cp().traffic();
    footprint.ep = module->mesh().ep().traffic();
    footprint.scratch = scratch.peak();
    return footprint;
}

void measure_parameters(const ModelSpec& spec, const Role& role, backend::Traits traits, parallel::Mesh mesh,
                        Footprint& footprint) {
    const auto meta = backend::make_meta({}, traits);
    add_parameters(make_module(*meta, spec, role, std::move(mesh), InitialWeights::zeros)->parameters(),
                   footprint);
}

}  // namespace maestro::model
