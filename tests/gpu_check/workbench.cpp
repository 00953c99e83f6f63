#include "workbench.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

/// The number of distinct random values. Larger tensors repeat them, and each tensor starts at a different
/// one.
constexpr std::size_t kNormalValues = 65'521;

const std::vector<double>& normal_values() {
    static const std::vector<double> values = [] {
        const Random numbers(17, "gpu_check");
        std::vector<double> list(kNormalValues);
        for (std::size_t i = 0; i < kNormalValues; ++i) list[i] = numbers.normal(i);
        return list;
    }();
    return values;
}

template <class T>
void upload(backend::Backend& b, const Tensor& t, const std::function<double(std::int64_t)>& value) {
    std::vector<T> host(static_cast<std::size_t>(t.size()));
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < t.size(); ++i)
        host[static_cast<std::size_t>(i)] =
            static_cast<T>(static_cast<Accumulate<T>>(value(i)));  // bf16 converts from float
    if (t.size() > 0) b.upload(host.data(), t);
}

}  // namespace

Workbench::Workbench(backend::Backend& backend, std::size_t tensors, std::size_t scratch_bytes, bool poison)
    : b(backend), scratch(backend, scratch_bytes), memory_(backend, tensors), poison_(poison) {}

Tensor Workbench::create(DType type, std::initializer_list<std::int64_t> shape,
                         const std::function<double(std::int64_t)>& value) {
    const Tensor t = memory_.allocate(type, shape);
    if (!b.computes()) return t;
    if (type == DType::f64)
        upload<double>(b, t, value);
    else if (type == DType::f32)
        upload<float>(b, t, value);
    else
        upload<bf16>(b, t, value);
    return t;
}

Tensor Workbench::random(DType type, std::initializer_list<std::int64_t> shape, double scale) {
    const auto first = static_cast<std::size_t>(7919 * ++created_);
    const std::vector<double>& values = normal_values();
    return create(type, shape, [&values, first, scale](std::int64_t i) {
        return scale * values[(first + static_cast<std::size_t>(i)) % kNormalValues];
    });
}

Tensor Workbench::filled(DType type, std::initializer_list<std::int64_t> shape, double value) {
    return create(type, shape, [value](std::int64_t) { return value; });
}

Tensor Workbench::result(DType type, std::initializer_list<std::int64_t> shape) {
    const bool numbers = type == DType::f64 || type == DType::f32 || type == DType::bf16;
    results_.push_back(poison_ && numbers ? filled(type, shape, std::numeric_limits<double>::quiet_NaN())
                                          : memory_.allocate(type, shape));
    return results_.back();
}

Tensor Workbench::sum(DType type, std::initializer_list<std::int64_t> shape) {
    results_.push_back(random(type, shape));
    return results_.back();
}

std::vector<std::int32_t> Workbench::indices(std::int64_t count, std::int64_t limit, bool distinct) {
    const Random numbers(19, "gpu_check/" + std::to_string(++created_));
    std::vector<std::int32_t> list(static_cast<std::size_t>(count));
    if (distinct) {
        const std::vector<std::int64_t> order = numbers.permutation(limit);
        std::transform(order.begin(), order.begin() + count, list.begin(),
                       [](std::int64_t i) { return static_cast<std::int32_t>(i); });
    } else {
        for (std::size_t i = 0; i < list.size(); ++i)
            list[i] = static_cast<std::int32_t>(numbers.bits(i) % static_cast<std::uint64_t>(limit));
    }
    return list;
}

std::string Operation::shape(const Sizes& s) const {
    const auto text = [](std::int64_t n) { return std::to_string(n); };
    switch (shape_kind) {
        case Shape::rows:
            return text(s.rows) + " x " + text(s.columns);
        case Shape::gemm:
            return text(s.rows) + " x " + text(s.inputs) + " x " + text(s.outputs);
        case Shape::attention:
            return text(s.rows) + " tokens, " + text(s.heads) + "/" + text(s.kv_heads) + " heads of " +
                   text(s.head_columns);
        case Shape::loss:
            return text(s.rows) + " x " + text(s.vocabulary);
    }
    return {};
}

Cost cost_of(const Operation& operation, DType type, const Sizes& sizes, backend::Traits traits) {
    const auto meta = backend::make_meta({}, traits);
    Workbench bench(*meta, 0, 0, false);
    const auto run = operation.prepare(bench, type, sizes);
    meta->reset_counts();
    run();
    return {bench.tensor_bytes(), bench.scratch.peak(), meta->counts().flops, meta->counts().bytes};
}

std::vector<Operation> operations() {
    return concatenate({row_operations(), moving_operations(), matmul_operations(), loss_operations()});
}

}  // namespace maestro::gpu_check
