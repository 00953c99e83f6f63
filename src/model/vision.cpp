#include "model/vision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "backend/host_access.hpp"
#include "model/kind.hpp"
#include "ops/columns.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/patchify.hpp"
#include "ops/position_table.hpp"
#include "ops/rotary.hpp"

namespace maestro::model {

/// All pictures of a micro-batch, patch after patch.
struct Vision::PackedPictures {
    std::vector<const ItemView*> items;
    std::vector<std::int64_t> lengths;  ///< patches of each picture
    std::vector<std::int32_t> y, x;     ///< by patch: its row and column in the picture
};

/// This rank's part of a micro-batch, with what backward() reads.
struct Vision::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    std::vector<MixerTables> tables;
    std::vector<std::int64_t> tp_token_rows;  ///< tokens of each tp rank of the slice
    std::int64_t local_rows = 0;
    StackActivations stack;
    Tensor patches;                          ///< [local, patch_columns_]
    ops::InterpolatedRows positions;         ///< of the learned table, by local row
    Tensor position_index, position_weight;  ///< [4 local]: the same on the device
    /// Of the mergers, in the order in which forward runs them.
    std::vector<PatchMergerActivations> mergers;
};

Vision::Vision(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
    : Module(backend, role, std::move(mesh)),
      backend_(backend),
      spec_(spec),
      role_(role),
      units_(spec),
      patches_per_token_(std::int64_t{spec.merge} * spec.merge),
      patch_columns_(std::int64_t{frames_of(spec.vision_form.patches)} * spec.patch * spec.patch *
                     spec.channels),
      width_(role.output_width / static_cast<int>(1 + spec.deepstack.size())),
      patch_weight_(role.stage.first() ? &store_.declare("patch.weight", {spec.width, patch_columns_},
                                                         parallel::Init::normal, role.trained)
                                       : nullptr),
      patch_bias_(role.stage.first()
                      ? &store_.declare("patch.bias", {spec.width}, parallel::Init::zeros, role.trained)
                      : nullptr),
      positions_(role.stage.first() && spec.position_table > 0
                     ? &store_.declare("position.weight",
                                       {std::int64_t{spec.position_table} * spec.position_table, spec.width},
                                       parallel::Init::normal, role.trained)
                     : nullptr),
      layers_(backend, spec, role, mesh_, store_, [&](int layer) {
          const int i = deepstack_of(layer);
          if (i < 0) return;
          const int number = store_.begin_layer();
          deepstack_.push_back(
              {number, PatchMerger(backend, spec, role, mesh_, store_, "deepstack." + std::to_string(i) + ".",
                                   width_, PatchMerger::NormOf::tokens)});
      }) {
    const bool stream = role.inputs.size() == 1 && role.inputs[0].tensor == EdgeTensor::stream;
    MAESTRO_CHECK(role.stage.first() ? role.inputs.empty() : stream,
                  "stage {} of {} has {} inputs, the first of which is {} residual stream", role.stage.index,
                  role.section, role.inputs.size(), stream ? "a" : "no");
    MAESTRO_CHECK(deepstack_.size() == spec.deepstack.size(),
                  "stage {} of {} has {} of {} layers of DeepStack", role.stage.index, role.section,
                  deepstack_.size(), spec.deepstack.size());
    if (!role.stage.last()) return;
    const int number = store_.begin_layer();
    merger_.emplace(
        number, PatchMerger(backend, spec, role, mesh_, store_, "", width_, PatchMerger::NormOf::patches));
}

int Vision::deepstack_of(int layer) const {
    const auto at = std::find(spec_.deepstack.begin(), spec_.deepstack.end(), layer);
    return at == spec_.deepstack.end() ? -1 : static_cast<int>(at - spec_.deepstack.begin());
}

Vision::PackedPictures Vision::pack(const Batch& batch) const {
    PackedPictures packed;
    for (const SampleView& sample : batch.samples)
        for (const ItemView& picture : sample.items) {
            if (!units_.reads(picture.item.kind)) continue;
            const std::size_t before = packed.y.size();
            ops::patch_positions(picture.item.height, picture.item.width, spec_.patch, spec_.merge, packed.y,
                                 packed.x);
            packed.lengths.push_back(static_cast<std::int64_t>(packed.y.size() - before));
            packed.items.push_back(&picture);
        }
    return packed;
}

parallel::Sequences Vision::sequences_of(const PackedPictures& packed) const {
    // A picture is a sequence: attention stays within it. No token is divided between ranks, because its
    // patches are merged on one of them.
    constexpr auto kMask = parallel::AttentionMask::bidirectional;
    parallel::Sequences sequences(
        parallel::Partition(packed.lengths, kMask, mesh_.degrees(), patches_per_token_), kMask, mesh_);
    // Other samples may have more and smaller pictures.
    sequences.most_sequences = sequences.partition.rows() / patches_per_token_;
    return sequences;
}

std::vector<std::vector<std::int64_t>> Vision::input_rows(const Batch& batch) const {
    if (role_.stage.first()) return {};
    std::vector<std::size_t> sample_of;  // by picture
    for (std::size_t s = 0; s < batch.samples.size(); ++s)
        for (const ItemView& view : batch.samples[s].items)
            if (units_.reads(view.item.kind)) sample_of.push_back(s);
    std::vector<std::int64_t> rows(batch.samples.size(), 0);
    for (const parallel::RowRange& range :
         sequences_of(pack(batch)).partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank()))
        rows[sample_of[range.sequence]] += range.count;
    return {rows};
}

void Vision::cut_patches(const PackedPictures& packed, State& state, backend::Arena& kept,
                         backend::Arena& scratch) const {
    state.patches = kept.allocate(role_.compute, {state.local_rows, patch_columns_});
    std::int64_t local_row = 0;
    for (const parallel::RowRange& range :
         state.sequences.partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        // One picture at a time: on a GPU its pixels are copied to scratch memory, which the next one reuses.
        const backend::ArenaScope scope(scratch);
        const auto& [data, picture] = *packed.items[range.sequence];
        const std::span pixels(data, static_cast<std::size_t>(units_.bytes(picture)));
        ops::patchify(backend_, backend::to_device(backend_, pixels, scratch), picture.height, picture.width,
                      spec_.channels, spec_.patch, spec_.merge, spec_.vision_form.patches, range.first,
                      state.patches.slice(local_row, local_row + range.count));
        local_row += range.count;
    }
}

void Vision::make_tables(const PackedPictures& packed, State& state, backend::Arena& kept,
                         backend::Arena& scratch) const {
    const parallel::Partition& partition = state.sequences.partition;
    const auto slice = partition.slice(mesh_.cp_rank());
    const std::array positions = {parallel::pick(packed.y, slice, partition.offsets()),
                                  parallel::pick(packed.x, slice, partition.offsets())};
    state.tables = layers_.tables(state.sequences, positions, kept, scratch);
}

Tensor Vision::embed(const PackedPictures& packed, State& state, backend::Arena& kept,
                     backend::Arena& scratch) const {
    cut_patches(packed, state, patch_weight_->trainable ? kept : scratch, scratch);
    const Tensor stream =
        (layers_.keeps_input() ? kept : scratch).allocate(role_.compute, {state.local_rows, spec_.width});
    // A convolution whose stride equals its kernel size is a linear layer over patches.
    ops::linear(backend_, state.patches, patch_weight_->weight, stream, patch_bias_->weight);
    if (!positions_) return stream;
    std::vector<ops::GridPosition> places;
    places.reserve(static_cast<std::size_t>(state.local_rows));
    const std::span<const std::int32_t> offsets = state.sequences.partition.offsets();
    for (const parallel::RowRange& range :
         state.sequences.partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        const auto first = static_cast<std::size_t>(offsets[range.sequence]),
                   end = static_cast<std::size_t>(offsets[range.sequence + 1]);
        // Its last patch is at the lower right corner.
        const std::int32_t height = packed.y[end - 1] + 1, width = packed.x[end - 1] + 1;
        for (std::size_t row = first + range.first; row < first + range.first + range.count; ++row)
            places.push_back({packed.y[row], packed.x[row], height, width});
    }
    state.positions = ops::interpolate_rows(places, spec_.position_table);
    state.position_index = backend::to_device(backend_, state.positions.index, kept);
    state.position_weight = backend::to_device(backend_, state.positions.weight, kept);
    ops::position_embedding(backend_, state.position_index, state.position_weight, positions_->weight,
                            stream);
    return stream;
}

void Vision::embed_backward(const State& state, const Tensor& d_stream, backend::Arena& scratch) const {
    if (patch_weight_->trainable)
        ops::linear_backward_weight(backend_, d_stream, state.patches, patch_weight_->gradient,
                                    patch_bias_->gradient, scratch);
    if (positions_ && positions_->trainable)
        ops::position_embedding_backward(backend_, state.position_index, state.position_weight, d_stream,
                                         positions_->gradient, scratch);
}

void Vision::merge(const Merger& merger, State& state, const Tensor& stream, std::int64_t column,
                   const Tensor& output, backend::Arena& kept, backend::Arena& scratch) const {
    store_.layer_needed(merger.layer);
    const backend::ArenaScope scope(scratch);
    const bool all = output.columns() == width_;
    const Tensor tokens = all ? output : scratch.allocate(role_.compute, {output.dim(0), width_});
    state.mergers.push_back(merger.merger.forward(stream, tokens, state.tp_token_rows, kept, scratch));
    if (!all) ops::copy_columns(backend_, {tokens}, {output, column}, width_);
}

void Vision::merge_backward(const Merger& merger, const PatchMergerActivations& a, const State& state,
                            const Tensor& d_output, std::int64_t column, const Tensor& d_stream,
                            bool accumulate, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    Tensor d_tokens = d_output;
    if (d_output.columns() != width_) {
        d_tokens = scratch.allocate(role_.compute, {d_output.dim(0), width_});
        ops::copy_columns(backend_, {d_output, column}, {d_tokens}, width_);
    }
    merger.merger.backward(a, d_tokens, d_stream, accumulate, state.tp_token_rows, scratch);
    store_.layer_final(merger.layer);
}

std::unique_ptr<Saved> Vision::forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                       backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                       Result&) {
    MAESTRO_CHECK(inputs.size() == role_.inputs.size(), "{} inputs of a stage of a vision section, not {}",
                  inputs.size(), role_.inputs.size());
    const PackedPictures packed = pack(batch);
    auto state = std::make_unique<State>(sequences_of(packed));
    for (const std::int64_t rows : state->sequences.tp_rows)
        state->tp_token_rows.push_back(rows / patches_per_token_);
    state->local_rows = state->sequences.tp_rows[static_cast<std::size_t>(mesh_.tp_rank())];
    const DType type = role_.compute;
    // A frozen encoder has no backward pass, which is the only reader of everything but the output: its
    // activations live in scratch memory and are overwritten by the next task.
    backend::Arena& kept = role_.needs_backward ? saved : scratch;
    make_tables(packed, *state, kept, scratch);
    if (role_.stage.last())
        output = saved.allocate(type, {state->local_rows / patches_per_token_, role_.output_width});
    const Tensor stream = role_.stage.first() ? embed(packed, *state, kept, scratch)
                                              : layers_.receive(inputs.front(), state->local_rows,
                                                                layers_.keeps_input() ? kept : scratch);
    state->stack = layers_.forward(
        stream, state->sequences, state->tables, kept, scratch, [&](int layer, const Tensor& inner) {
            const int i = deepstack_of(layer);
            if (i >= 0) merge(deepstack_[i], *state, inner, (1 + i) * width_, output, kept, scratch);
        });
    if (role_.stage.last())
        merge(*merger_, *state, state->stack.output, 0, output, kept, scratch);
    else
        output = layers_.send(state->stack, saved);
    return state;
}

void Vision::backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                      backend::Arena& scratch) {
    auto& state = static_cast<State&>(saved);
    const backend::ArenaScope scope(scratch);
    // A vision section has no upstream section: the gradient of the patches is not needed.
    const bool first = role_.stage.first(), delivered = !first && d_inputs.front().rank != 0;
    const Tensor d_stream =
        delivered ? d_inputs.front() : scratch.allocate(role_.compute, {state.local_rows, spec_.width});
    if (role_.stage.last())
        merge_backward(*merger_, state.mergers.back(), state, d_output, 0, d_stream, false, scratch);
    else
        ops::convert(backend_, d_output, d_stream);
    layers_.backward(state.stack, state.sequences, state.tables, d_stream, scratch,
                     [&](int layer, const Tensor& d_inner) {
                         const int i = deepstack_of(layer);
                         if (i >= 0)
                             merge_backward(deepstack_[i], state.mergers[i], state, d_output,
                                            (1 + i) * width_, d_inner, true, scratch);
                     });
    if (first) embed_backward(state, d_stream, scratch);
}

const ModelKind kVisionKind{
    .kind = ModelSpec::Kind::vision,
    .word = "vision",
    .head_dim_unit = 4,  // half of the pairs of channels turn by the row, half by the column
    .rotary = [](const AttentionForm& form) { return ops::rotary_2d(form.head_dim, form.rope_theta); },
    .units =
        [](const ModelSpec& spec) {
            return Units(Units::Encoder{.reads = Item::Kind::picture,
                                        .side = spec.patch * spec.merge,
                                        .unit = std::int64_t{spec.merge} * spec.merge,
                                        .channels = spec.channels});
        },
    .check_sizes =
        [](const ModelSpec& spec, const Role& role) {
            const bool good =
                spec.patch >= 1 && spec.merge >= 1 && spec.channels >= 1 && role.output_width >= 1;
            return std::string(good ? "" : "patch, merge and channels must be at least 1");
        },
    .check_samples =
        [](const ModelSpec& spec, const SampleRange& samples) {
            return samples.channels == spec.channels
                       ? std::string()
                       : fmt::format("pictures of {} channels, model.{}.channels is {}", samples.channels,
                                     spec.name, spec.channels);
        },
    .make = [](backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh)
        -> std::unique_ptr<Module> { return std::make_unique<Vision>(backend, spec, role, std::move(mesh)); },
    .before_layers =
        [](const ModelSpec& spec) {
            std::vector<std::string> parts{"patch"};
            if (spec.position_table > 0) parts.push_back("position");
            return parts;
        },
    .split_sizes = [](const ModelSpec&) { return std::vector<std::pair<const char*, int>>(); },
};

}  // namespace maestro::model
