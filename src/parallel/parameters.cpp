#include "parallel/parameters.hpp"

#include <algorithm>

#include "backend/host_access.hpp"
#include "base/random.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"

namespace maestro::parallel {

namespace {

constexpr double kInitialDeviation = 0.02;  // as GPT-2, and its residual scale in allocate()

std::int64_t whole_blocks(std::int64_t size) {
    return (size + kBlock - 1) / kBlock * kBlock;
}

Tensor place(const Tensor& flat, const Parameter& p) {
    const Tensor part = flat.slice(p.offset, p.offset + p.size());
    return p.shape.size() == 1 ? part : part.reshape({p.shard.row_count(), p.shard.columns.size()});
}

}  // namespace

Range flat_share(std::int64_t size, int index, int count) {
    const Range blocks = part_of(size / kBlock, index, count);
    return {blocks.begin * kBlock, blocks.end * kBlock};
}

std::vector<std::int64_t> blocks_of_shares(std::int64_t size, int count) {
    std::vector<std::int64_t> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(flat_share(size, i, count).size() / kBlock);
    return blocks;
}

Tensor in_blocks(const Tensor& flat) {
    return flat.reshape({flat.size() / kBlock, kBlock});
}

ParameterStore::ParameterStore(backend::Backend& backend, std::string section, std::uint64_t seed,
                               DType compute)
    : backend_(backend), section_(std::move(section)), seed_(seed), compute_(compute) {}

Parameter& ParameterStore::declare(std::string name, std::vector<std::int64_t> shape, Init init,
                                   bool trainable) {
    Shard all = whole(shape);
    const Range common{0, all.size()};
    return declare(std::move(name), std::move(shape), init, trainable, std::move(all), Sharing::tensor,
                   common);
}

Parameter& ParameterStore::declare(std::string name, std::vector<std::int64_t> shape, Init init,
                                   bool trainable, Shard shard, Sharing sharing, Range common) {
    MAESTRO_CHECK(!find(name) && master_.rank == 0 && (shape.size() == 1 || shape.size() == 2),
                  "parameter {}", name);
    Parameter& p = parameters_.emplace_back();
    p.name = std::move(name);
    p.decay = shape.size() == 2;
    p.shape = std::move(shape);
    p.shard = std::move(shard);
    p.trainable = trainable;
    p.init = init;
    p.sharing = sharing;
    p.common = common;
    return p;
}

void ParameterStore::allocate(double residual_scale) {
    // Trainable ones first, so that an offset means the same in the gradient's shorter array.
    std::int64_t trained = 0;
    for (auto& p : parameters_)
        if (p.trainable) {
            p.offset = trained;
            trained += whole_blocks(p.size());
        }
    std::int64_t total = trained;
    for (auto& p : parameters_)
        if (!p.trainable) {
            p.offset = total;
            total += whole_blocks(p.size());
        }
    const DType type = ops::accumulate_type(compute_);
    const auto make = [&](backend::Buffer& buffer, DType dtype, std::int64_t size) {
        buffer = backend::Buffer(backend_, static_cast<std::size_t>(size) * size_of(dtype));
        const Tensor tensor(buffer.data(), dtype, {size});
        ops::zero(backend_, tensor);
        return tensor;
    };
    master_ = make(master_buffer_, type, total);
    gradient_ = make(gradient_buffer_, type, trained);
    if (compute_ == DType::bf16) copy_ = make(compute_buffer_, compute_, total);
    for (auto& p : parameters_) {
        p.master = place(master_, p);
        p.weight = compute_ == DType::bf16 ? place(copy_, p) : p.master;
        if (p.trainable) p.gradient = place(gradient_, p);
        if (backend_.computes()) initialize(p, residual_scale);
    }
    refresh_compute();
}

void ParameterStore::initialize(const Parameter& p, double residual_scale) {
    ops::by_type(p.master.dtype, [&]<class T>(T) {
        backend::set_elements<T>(backend_, p.master, [&](T* values) {
            if (p.init == Init::ones || p.init == Init::zeros) {
                std::fill(values, values + p.size(), static_cast<T>(p.init == Init::ones ? 1.0f : 0.0f));
                return;
            }
            // By name and place in the logical parameter, not in the order of drawing: the same weights in
            // every layout.
            const Random random(seed_, "init/" + section_ + "." + p.name);
            const double deviation = kInitialDeviation * (p.init == Init::residual ? residual_scale : 1.0);
            for (const Extent& extent : extents_of(p.shape, p.shard))
                ops::parallel_for(extent.count, 64, [&](std::int64_t i) {
                    const auto at = static_cast<std::uint64_t>(extent.logical + i);
                    values[extent.local + i] =
                        static_cast<T>(static_cast<Accumulate<T>>(deviation * random.normal(at)));
                });
        });
    });
}

const Parameter* ParameterStore::find(std::string_view name) const {
    const auto at = std::find_if(parameters_.begin(), parameters_.end(),
                                 [&](const Parameter& p) { return p.name == name; });
    return at == parameters_.end() ? nullptr : &*at;
}

std::int64_t ParameterStore::count() const {
    std::int64_t n = 0;
    for (const auto& p : parameters_) n += p.size();
    return n;
}

std::int64_t ParameterStore::shared(Sharing sharing) const {
    std::int64_t n = 0;
    for (const auto& p : parameters_)
        if (p.trainable && p.sharing == sharing) n += p.common.size();
    return n;
}

std::size_t ParameterStore::bytes() const {
    return master_buffer_.bytes() + compute_buffer_.bytes() + gradient_buffer_.bytes();
}

void ParameterStore::refresh_compute() {
    if (compute_ == DType::bf16) ops::convert(backend_, master_, copy_);
}

void ParameterStore::zero_gradients() {
    if (gradient_.size() > 0) ops::zero(backend_, gradient_);
}

std::vector<Range> first_held(const Parameter& parameter, Range range, const Peers& peers) {
    std::vector<Range> ranges;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
        if (begin < end) ranges.push_back({begin, end});
    };
    if (parameter.sharing == Sharing::none || peers.group(parameter.sharing).rank() == 0) {
        add(range.begin, range.end);
    } else {
        add(range.begin, std::min(range.end, parameter.common.begin));
        add(std::max(range.begin, parameter.common.end), range.end);
    }
    return ranges;
}

std::int64_t most_shared(const ParameterStore& store, const Peers& peers) {
    std::int64_t most = 0;
    for (const Sharing sharing : kSharings)
        if (peers.group(sharing).size() > 1) most = std::max(most, store.shared(sharing));
    return most;
}

}  // namespace maestro::parallel
