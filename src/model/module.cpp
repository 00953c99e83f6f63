#include "model/module.hpp"

#include <cmath>

#include "model/language.hpp"
#include "model/vision.hpp"
#include "ops/patchify.hpp"

namespace maestro::model {

std::int64_t picture_tokens(int height, int width, Geometry geometry) {
    return ops::picture_patches(height, width, geometry.patch, geometry.merge) /
           (std::int64_t{geometry.merge} * geometry.merge);
}

std::int64_t expanded_tokens(const SampleShape& shape, Geometry geometry) {
    std::int64_t tokens = shape.tokens;
    if (geometry.patch > 0)
        for (const PictureSize& p : shape.pictures) tokens += picture_tokens(p.height, p.width, geometry) - 1;
    return tokens;
}

namespace {

void check_sizes(const ModelSpec& spec, const Role& role) {
    const auto refuse = [&](const std::string& what) {
        throw Error(ExitCode::bad_deck, "model." + spec.name + ": " + what, Scope::all_ranks);
    };
    if (spec.layers < 1 || spec.width < 1 || spec.heads < 1 || spec.kv_heads < 1 || spec.mlp < 1)
        refuse("layers, width, heads, kv_heads and mlp must be at least 1");
    if (spec.heads % spec.kv_heads != 0) refuse("heads must be a multiple of kv_heads");
    const bool vision = spec.kind == ModelSpec::Kind::vision;
    if (spec.head_dim < 1 || spec.head_dim % (vision ? 4 : 2) != 0 || spec.head_dim > 256)
        refuse(std::string("head_dim must be a multiple of ") + (vision ? "4" : "2") + ", at most 256");
    if (vision && (spec.patch < 1 || spec.merge < 1 || spec.channels < 1 || role.output_width < 1))
        refuse("patch, merge and channels must be at least 1");
    if (!vision && spec.vocabulary < 1) refuse("vocabulary must be at least 1");
}

}  // namespace

std::unique_ptr<Module> make_module(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                                    parallel::Mesh mesh, InitialWeights weights) {
    check_sizes(spec, role);
    std::unique_ptr<Module> module;
    if (spec.kind == ModelSpec::Kind::vision)
        module = std::make_unique<Vision>(backend, spec, role, std::move(mesh));
    else
        module = std::make_unique<Language>(backend, spec, role, std::move(mesh));
    // Every layer adds twice to the residual stream. Scaled so, the stream's variance does not grow with the
    // number of layers.
    module->parameters().allocate(1 / std::sqrt(2.0 * spec.layers));
    if (weights == InitialWeights::drawn) {
        Pulse pulse;
        module->parameters().initialize(pulse);
    }
    return module;
}

Footprint measure(const ModelSpec& spec, const Role& role, std::span<const SampleShape> shapes,
                  const MeasureOptions& options, parallel::Mesh mesh) {
    const auto meta = backend::make_meta(options.rates, options.traits);
    const auto module = make_module(*meta, spec, role, std::move(mesh), InitialWeights::zeros);
    if (options.worst_case) module->assume_worst_case();
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::vector<float>> weights;
    std::vector<std::vector<std::uint8_t>> flags;
    std::vector<std::vector<Picture>> pictures;
    std::vector<SampleView> views;
    std::vector<std::vector<Tensor>> inputs(role.inputs.size());
    tokens.reserve(shapes.size());
    weights.reserve(shapes.size());
    flags.reserve(shapes.size());
    pictures.reserve(shapes.size());
    for (const SampleShape& shape : shapes) {
        const auto count = static_cast<std::size_t>(
            std::max<std::int64_t>(shape.tokens, static_cast<std::int64_t>(shape.pictures.size())));
        // Markers first, and a weight for every token: the most rows that such a sample can ask logits of.
        auto& ids = tokens.emplace_back(count, role.marker == 0 ? 1 : 0);
        for (std::size_t p = 0; p < shape.pictures.size(); ++p) ids[p] = role.marker;
        weights.emplace_back(count, 1.0f);
        flags.emplace_back(count, std::uint8_t{0});
        auto& shown = pictures.emplace_back();
        for (const PictureSize& p : shape.pictures) shown.push_back({nullptr, p.height, p.width});
        views.push_back({static_cast<std::int64_t>(views.size()), ids, weights.back(), flags.back(), shown});
    }
    const Batch batch{.samples = views, .loss_scale = 1, .train = options.train};
    const auto input_rows = module->input_rows(batch);
    for (std::size_t e = 0; e < inputs.size(); ++e)
        for (const std::int64_t rows : input_rows[e])
            inputs[e].push_back(Tensor(nullptr, role.compute, {rows, row_width(role.inputs[e], spec.width)}));
    const auto sent_s = [&] {
        return module->mesh().tp().traffic().seconds + module->mesh().cp().traffic().seconds;
    };
    backend::Arena saved, scratch;
    Tensor output;
    Result result;
    meta->reset_counts();
    const auto state = module->forward(batch, inputs, saved, scratch, output, result);
    scratch.reset();
    Footprint footprint{.saved = saved.peak(),
                        .parameters = module->parameters().bytes(),
                        .optimizer = module->parameters().optimizer_states(),
                        .reduce_scratch = module->parameters().reduce_scratch(),
                        .forward_flops = meta->counts().flops,
                        .forward_s = meta->counts().seconds + sent_s()};
    if (options.train && role.needs_backward) {
        std::vector<Tensor> d_inputs(inputs.size());
        for (std::size_t e = 0; e < inputs.size(); ++e) {
            std::int64_t rows = 0;
            for (const Tensor& t : inputs[e]) rows += t.dim(0);
            const int width = row_width(role.inputs[e], spec.width);
            d_inputs[e] = scratch.allocate(role.compute, {rows, width});
            if (options.worst_case && role.inputs[e].tensor == EdgeTensor::embeddings) {
                std::int64_t all = 0;  // rows of pictures, of which a rank may hold as many as it has rows
                for (const SampleShape& shape : shapes)
                    for (const PictureSize& p : shape.pictures)
                        all += picture_tokens(p.height, p.width,
                                              {role.inputs[e].from.patch, role.inputs[e].from.merge});
                if (role.loss) all = std::min(all, result.tokens);
                scratch.allocate(role.compute, {std::max<std::int64_t>(all - rows, 0), width});
            }
        }
        meta->reset_counts();
        const double before_s = sent_s();
        module->backward(*state, output.rank != 0 ? output : Tensor{}, d_inputs, scratch);
        footprint.backward_flops = meta->counts().flops;
        footprint.backward_s = meta->counts().seconds + sent_s() - before_s;
    }
    footprint.tp = module->mesh().tp().traffic();
    footprint.cp = module->mesh().cp().traffic();
    footprint.scratch = scratch.peak();
    return footprint;
}

}  // namespace maestro::model
