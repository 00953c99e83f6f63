#include "parity.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <thread>

#include "json_line.hpp"
#include "support/elements.hpp"

namespace maestro::gpu_check {

namespace {

const std::vector<Sizes> kSizes{
    {.rows = 37,
     .columns = 131,
     .heads = 4,
     .kv_heads = 2,
     .head_columns = 24,
     .vocabulary = 203,
     .inputs = 67,
     .outputs = 45},
    {.rows = 96,
     .columns = 512,
     .heads = 4,
     .kv_heads = 2,
     .head_columns = 64,
     .vocabulary = 1024,
     .inputs = 256,
     .outputs = 128},
    {.rows = 1001,
     .columns = 4104,
     .heads = 16,
     .kv_heads = 8,
     .head_columns = 128,
     .vocabulary = 32'003,
     .inputs = 1024,
     .outputs = 768},
};

using Bytes = std::vector<std::byte>;

std::vector<Bytes> results_of(const Operation& operation, DType type, const Sizes& sizes, backend::Backend& b,
                              bool poison, std::vector<Tensor>& shapes) {
    const Cost cost =
        cost_of(operation, type, sizes, {b.threads(), b.shares_memory(), b.attention_support()});
    Workbench bench(b, cost.tensors, cost.scratch, poison);
    operation.prepare(bench, type, sizes)();
    shapes = bench.results();
    std::vector<Bytes> list;
    for (const Tensor& t : shapes) {
        list.emplace_back(t.bytes());
        b.download(t, list.back().data());
    }
    return list;
}

/// The largest |found - expected| of an element, relative to its magnitude plus the root mean square of its
/// tensor. Infinite if an element is NaN or Inf.
double error_between(const Tensor& shape, const Bytes& found, const Bytes& expected) {
    if (shape.dtype == DType::i32) return found == expected ? 0 : std::numeric_limits<double>::infinity();
    Tensor a = shape, e = shape;
    a.data = const_cast<std::byte*>(found.data());
    e.data = const_cast<std::byte*>(expected.data());
    using testing_support::element_of;
    double squares = 0, max_error = 0;
    for (std::int64_t i = 0; i < shape.size(); ++i) squares += std::pow(element_of(e, i), 2);
    const double rms = std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(shape.size(), 1))) +
                       std::numeric_limits<double>::min();
    for (std::int64_t i = 0; i < shape.size(); ++i) {
        const double error =
            std::abs(element_of(a, i) - element_of(e, i)) / (rms + std::abs(element_of(e, i)));
        if (!(error <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
        max_error = std::max(max_error, error);
    }
    return max_error;
}

/// Tolerance of an element: a few rounding errors, and sums in a different order.
double tolerance_of(DType type) {
    return type == DType::f64 ? 1e-11 : type == DType::f32 ? 5e-5 : 2e-2;
}

/// Checks one case. Returns whether it passed.
bool check(const Operation& operation, DType type, const Sizes& sizes, backend::Backend& gpu,
           const ParityOptions& options) {
    std::vector<Tensor> shapes;
    const auto found = results_of(operation, type, sizes, gpu, options.poison, shapes);
    JsonLine line("parity");
    line.add("operation", operation.name).add("dtype", name_of(type)).add("shape", operation.shape(sizes));
    bool passed = true;
    if (options.compare) {
        const bool reproducible = found == results_of(operation, type, sizes, gpu, options.poison, shapes);
        const auto cpu =
            backend::make_cpu(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
        const auto expected = results_of(operation, type, sizes, *cpu, options.poison, shapes);
        double error = 0;
        for (std::size_t i = 0; i < shapes.size(); ++i)
            error = std::max(error, error_between(shapes[i], found[i], expected[i]));
        passed = reproducible && error <= tolerance_of(type);
        line.add("error", error).add("tolerance", tolerance_of(type)).add("same_again", reproducible);
    }
    line.add("passed", passed).print();
    return passed;
}

}  // namespace

int check_parity(backend::Backend& gpu, const ParityOptions& options) {
    int failed = 0;
    for (const Operation& operation : operations()) {
        if (operation.name.find(options.only) == std::string::npos) continue;
        for (const DType type : operation.types)
            for (std::size_t i = 0; i < (options.small ? 2 : kSizes.size()); ++i)
                if (type == options.type.value_or(type) && !check(operation, type, kSizes[i], gpu, options))
                    ++failed;
    }
    return failed;
}

int check_cudnn(backend::Backend& gpu, bool small) {
    backend::FusedAttention* const fused = gpu.fused_attention();
    JsonLine line("cudnn");
    if (fused == nullptr) {
        line.add("skipped", gpu.describe()).print();
        return 0;
    }
    const int failed = check_parity(gpu, {.only = "attention", .small = small, .type = DType::bf16});
    line.add("plans", static_cast<double>(fused->plans()))
        .add("failed", static_cast<double>(failed))
        .add("backend", gpu.describe())
        .print();
    return failed + (fused->plans() == 0);
}

}  // namespace maestro::gpu_check
