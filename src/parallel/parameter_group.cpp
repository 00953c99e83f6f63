#include "parallel/parameter_group.hpp"

#include <algorithm>
#include <utility>

#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"

namespace maestro::parallel {

namespace {

std::int64_t round_up(std::int64_t size, std::int64_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/// Views a flat array as one row per block, the unit in which collectives divide it.
Tensor in_blocks(const Tensor& flat) {
    return flat.reshape({flat.size() / kBlock, kBlock});
}

/// Views the parameter's elements of a flat array in the form of its shard.
Tensor view(const Tensor& flat, const Parameter& p) {
    const Tensor part = flat.slice(p.offset, p.offset + p.size());
    return p.shape.size() == 1 ? part : part.reshape({p.shard.row_count(), p.shard.columns.size()});
}

}  // namespace

ParameterGroup::ParameterGroup(backend::Backend& backend, const Mesh& mesh,
                               std::vector<Parameter*> parameters)
    : backend_(backend), mesh_(mesh), parameters_(std::move(parameters)) {
    MAESTRO_CHECK(!parameters_.empty(), "a parameter group without parameters");
    const bool trainable = parameters_.front()->trainable;
    const DType weight_type = parameters_.front()->type;
    data_axes_ = parameters_.front()->data_axes;
    std::int64_t size = 0;
    for (Parameter* p : parameters_) {
        MAESTRO_CHECK(p->trainable == trainable && p->data_axes == data_axes_ && p->type == weight_type,
                      "{} and {} are in one group, but not both of them are trainable, of experts or of one "
                      "type",
                      parameters_.front()->name, p->name);
        // Padding to whole blocks starts every parameter on a cache line. It is zero in all arrays and stays
        // so: its gradient is zero, and updates list the elements of parameters only.
        p->offset = size;
        size += round_up(p->size(), kBlock);
    }
    // The flat array is divided, not the parameters, and ends with padding to equal shards, which NCCL's
    // collectives need.
    const int ranks = mesh.shape().copies(data_axes_), rank = mesh.copy_of(data_axes_);
    size = round_up(size, ranks * kBlock);
    const auto make = [&](backend::Buffer& buffer, DType dtype, std::int64_t elements) {
        buffer = backend::Buffer(backend, static_cast<std::size_t>(elements) * size_of(dtype));
        const Tensor tensor(buffer.data(), dtype, {elements});
        if (elements > 0) ops::zero(backend, tensor);
        return tensor;
    };
    // Gradients have the type of the masters: in bf16, the sum over many micro-batches would lose the small
    // ones.
    const DType type = ops::accumulate_type(weight_type);
    weights_ = make(weights_buffer_, weight_type, size);
    if (trainable) gradient_ = make(gradient_buffer_, type, size);
    for (Parameter* p : parameters_) {
        p->weight = view(weights_, *p);
        if (trainable) p->gradient = view(gradient_, *p);
    }
    const std::int64_t shard = size / ranks;
    shard_ = {rank * shard, (rank + 1) * shard};
    shard_blocks_.assign(static_cast<std::size_t>(ranks), shard / kBlock);
    if (weight_type == type)
        master_ = weights_.slice(shard_.begin, shard_.end);
    else if (trainable)
        master_ = make(master_buffer_, type, shard_.size());
}

std::size_t ParameterGroup::bytes() const {
    return weights_buffer_.bytes() + gradient_buffer_.bytes() + master_buffer_.bytes();
}

Range ParameterGroup::shard_of(const Parameter& p) const {
    // A shard may begin or end within a parameter, contain it, or have nothing of it.
    return {std::max(p.offset, shard_.begin) - p.offset,
            std::min(p.offset + p.size(), shard_.end) - p.offset};
}

std::vector<Range> ParameterGroup::first_copies(const Parameter& parameter, Range range) const {
    std::vector<Range> ranges;
    std::int64_t at = range.begin;
    const auto add_until = [&](std::int64_t end) {
        if (at < std::min(end, range.end)) ranges.push_back({at, std::min(end, range.end)});
    };
    for (const Parameter::Replicated& r : parameter.replicated) {
        if (mesh_.group(r.axes).rank() == 0) continue;  // this rank has the first copy
        add_until(r.elements.begin);
        at = std::max(at, r.elements.end);
    }
    add_until(range.end);
    return ranges;
}

std::int64_t ParameterGroup::replicated(Axes axes) const {
    std::int64_t count = 0;
    for (const Parameter* p : parameters_)
        for (const Parameter::Replicated& r : p->replicated)
            if (r.axes == axes) count += r.elements.size();
    return count;
}

std::int64_t ParameterGroup::replicated_in_replica() const {
    const auto along = [&](Axis axis) { return mesh_.group(axis).size() > 1 ? replicated(axis) : 0; };
    return along(Axis::tp) + along(Axis::kv);
}

template <class Copy>
void ParameterGroup::for_each_replicated(Axes axes, const Tensor& packed, Copy&& copy) const {
    std::int64_t begin = 0;
    for (const Parameter* p : parameters_)
        for (const Parameter::Replicated& r : p->replicated) {
            if (r.axes != axes) continue;
            const std::int64_t end = begin + r.elements.size();
            copy(gradient_.slice(p->offset + r.elements.begin, p->offset + r.elements.end),
                 packed.slice(begin, end));
            begin = end;
        }
}

/// Replicated elements are scattered among others, and most parameters have few of them. Packed into one
/// array they take one all-reduce instead of one per parameter.
collective::Operation ParameterGroup::launch_sum_of_copies(Axes axes, backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    const Tensor packed = scratch.allocate(gradient_.dtype, {replicated(axes)});
    pack(axes, packed);
    co_await mesh_.group(axes).launch_all_reduce(backend_, packed, ops::Reduction::sum, scratch);
    unpack(axes, packed);
}

void ParameterGroup::pack(Axes axes, const Tensor& packed) const {
    for_each_replicated(axes, packed, [&](const Tensor& gradient, const Tensor& copy) {
        ops::convert(backend_, gradient, copy);
    });
}

void ParameterGroup::unpack(Axes axes, const Tensor& packed) const {
    for_each_replicated(axes, packed, [&](const Tensor& gradient, const Tensor& copy) {
        ops::convert(backend_, copy, gradient);
    });
}

void ParameterGroup::sum_copies(backend::Arena& scratch) {
    MAESTRO_CHECK(trainable(), "frozen parameters have no gradients to reduce");
    for (const Axis axis : {Axis::tp, Axis::kv})
        // Equal on all ranks of the group, so that all of them skip it or none does.
        if (mesh_.group(axis).size() > 1 && replicated(axis) > 0) launch_sum_of_copies(axis, scratch).wait();
}

collective::Operation ParameterGroup::launch_reduce(backend::Arena& scratch) {
    // Copies first: afterwards all of them have the same gradient. Each holder of a copy takes the sum along
    // the data axes with its own counterparts, and so that these sums are equal on all of them, bit for bit,
    // they are ordered: NCCL's order depends on the place in the array, which may differ between the holders.
    if (mesh_.group(Axis::tied).size() > 1 && replicated(Axis::tied) > 0) return reduce_tied(scratch);
    const bool ordered = data_group().ordered(collective::Sums::automatic);
    return !ordered && replicated_in_replica() > 0 ? reduce_with_copies(scratch)
                                                   : launch_reduce_scatter(scratch);
}

collective::Operation ParameterGroup::reduce_tied(backend::Arena& scratch) {
    co_await launch_sum_of_copies(Axis::tied, scratch);
    co_await launch_reduce_scatter(scratch, collective::Sums::ordered);
}

collective::Operation ParameterGroup::reduce_with_copies(backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    const Tensor packed = scratch.allocate(gradient_.dtype, {replicated_in_replica()});
    const std::int64_t along_tp = mesh_.tp().size() > 1 ? replicated(Axis::tp) : 0;
    const Tensor of_tp = packed.slice(0, along_tp), of_kv = packed.slice(along_tp, packed.size());
    if (!of_tp.empty()) pack(Axis::tp, of_tp);
    if (!of_kv.empty()) pack(Axis::kv, of_kv);
    co_await launch_reduce_scatter(scratch);
    co_await data_group().launch_all_reduce(backend_, packed, ops::Reduction::sum, scratch,
                                            collective::Sums::ordered);
    if (!of_tp.empty()) unpack(Axis::tp, of_tp);
    if (!of_kv.empty()) unpack(Axis::kv, of_kv);
}

collective::Operation ParameterGroup::launch_reduce_scatter(backend::Arena& scratch, collective::Sums sums) {
    collective::ProcessGroup& ranks = data_group();
    co_await ranks.launch_rendezvous();
    co_await ranks.launch_reduce_scatter(backend_, in_blocks(gradient_),
                                         in_blocks(gradient_.slice(shard_.begin, shard_.end)), shard_blocks_,
                                         ops::Reduction::sum, scratch, sums);
}

/// The packed copy and the scratch memory of its all-reduce exist together.
std::size_t ParameterGroup::scratch_of_packed(std::int64_t count, int ranks) const {
    if (ranks == 1) return 0;
    backend::Arena packed;
    packed.allocate(gradient_.dtype, {count});
    return packed.peak() +
           collective::reduce_scratch(ranks, part_of(count, 0, ranks).size(), gradient_.dtype);
}

std::size_t ParameterGroup::scratch_of_copies(Axes axes) const {
    return scratch_of_packed(replicated(axes), mesh_.group(axes).size());
}

std::size_t ParameterGroup::copies_scratch() const {
    return trainable() ? std::max(scratch_of_copies(Axis::tp), scratch_of_copies(Axis::kv)) : 0;
}

std::size_t ParameterGroup::reduce_scratch() const {
    if (!trainable()) return 0;
    // The collectives run one after another and release their scratch memory: the largest decides.
    const int ranks = static_cast<int>(shard_blocks_.size());
    return std::max({scratch_of_copies(Axis::tied), scratch_of_packed(replicated_in_replica(), ranks),
                     collective::reduce_scratch(ranks, shard_.size(), gradient_.dtype)});
}

collective::Operation ParameterGroup::launch_gather(collective::ProcessGroup& ranks) {
    MAESTRO_CHECK(
        ranks.size() == static_cast<int>(shard_blocks_.size()) && ranks.rank() == mesh_.copy_of(data_axes_),
        "shards of {} ranks cannot be gathered on {}", shard_blocks_.size(), ranks.size());
    if (master_buffer_.bytes() > 0) ops::convert(backend_, master_, weights_.slice(shard_.begin, shard_.end));
    co_await ranks.launch_rendezvous();
    // In place: each rank's shard is already where it belongs in the array.
    co_await ranks.launch_all_gather(in_blocks(weights_), shard_blocks_);
}

void ParameterGroup::set_weights(const Parameter& parameter, Range range, const Tensor& values) const {
    MAESTRO_CHECK(values.size() == range.size() &&
                      (values.dtype == DType::f32 || values.dtype == ops::accumulate_type(weights_.dtype)),
                  "{} for {} elements of {}", values.describe(), range.size(), parameter.name);
    if (range.size() <= 0) return;
    const Tensor target = weights_.slice(parameter.offset + range.begin, parameter.offset + range.end);
    if (values.dtype == weights_.dtype) return backend_.upload(values.data, target);
    backend::Buffer buffer;
    Tensor uploaded = values;
    if (!backend_.shares_memory()) {
        buffer = backend::Buffer(backend_, values.bytes());
        uploaded.data = buffer.data();
        backend_.upload(values.data, uploaded);
    }
    ops::convert(backend_, uploaded, target);
    const Range in_shard = shard_of(parameter),
                kept{std::max(range.begin, in_shard.begin), std::min(range.end, in_shard.end)};
    if (master_.rank == 0 || kept.size() <= 0) return;
    ops::convert(backend_, uploaded.slice(kept.begin - range.begin, kept.end - range.begin),
                 shard_weights(parameter, kept));
}

Tensor ParameterGroup::shard_weights(const Parameter& parameter, Range range) const {
    const std::int64_t begin = parameter.offset + range.begin, end = parameter.offset + range.end;
    MAESTRO_CHECK(begin >= shard_.begin && end <= shard_.end, "elements [{}, {}) of {} are not in this shard",
                  range.begin, range.end, parameter.name);
    return master_.rank != 0 ? master_.slice(begin - shard_.begin, end - shard_.begin)
                             : weights_.slice(begin, end);
}

void ParameterGroup::zero_gradient(Range range) {
    if (trainable() && range.size() > 0) ops::zero(backend_, gradient_.slice(range.begin, range.end));
}

}  // namespace maestro::parallel
