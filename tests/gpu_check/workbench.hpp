// The tensors of an operation under test: reproducible inputs, results, and their memory on a device.
#pragma once

#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::gpu_check {

/// Sizes: rows x columns of activations, heads of attention, and the vocabulary.
struct Sizes {
    std::int64_t rows = 0, columns = 0;
    std::int64_t heads = 0, kv_heads = 0, head_columns = 0;
    std::int64_t vocabulary = 0;
    std::int64_t inputs = 0, outputs = 0;  ///< of GEMMs
};

class Workbench {
public:
    /// tensors, scratch: bytes to allocate, ignored by `meta`. `poison`: results are NaN before the
    /// operation; else they are uninitialized.
    Workbench(backend::Backend& b, std::size_t tensors, std::size_t scratch, bool poison);

    /// Normally distributed values times `scale`: different in every call, but the same on every device.
    Tensor random(DType type, std::initializer_list<std::int64_t> shape, double scale = 1);
    Tensor filled(DType type, std::initializer_list<std::int64_t> shape, double value);
    /// A result that the operation overwrites.
    Tensor result(DType type, std::initializer_list<std::int64_t> shape);
    /// A result that the operation adds to.
    Tensor sum(DType type, std::initializer_list<std::int64_t> shape);
    /// Ids, indices and pixels. On `meta` they are in host memory, because operations read them there.
    template <class T>
    Tensor list(const std::vector<T>& values) {
        Tensor t = memory_.allocate(dtype_of<T>(), {static_cast<std::int64_t>(values.size())});
        if (b.computes() && !values.empty()) b.upload(values.data(), t);
        if (!b.computes()) {
            const auto bytes = std::as_bytes(std::span(values));
            t.data = lists_.emplace_back(bytes.begin(), bytes.end()).data();
        }
        return t;
    }
    /// Random integers below `limit`; all distinct if `distinct`.
    std::vector<std::int32_t> indices(std::int64_t count, std::int64_t limit, bool distinct = false);

    const std::vector<Tensor>& results() const { return results_; }
    std::size_t tensor_bytes() const { return memory_.peak(); }

    backend::Backend& b;
    backend::Arena scratch;

private:
    Tensor create(DType type, std::initializer_list<std::int64_t> shape,
                  const std::function<double(std::int64_t)>& value);
    backend::Arena memory_;
    bool poison_;
    std::vector<Tensor> results_;
    std::list<std::vector<std::byte>> lists_;  ///< on `meta`
    std::int64_t created_ = 0;
};

/// An operation. prepare(bench, type, sizes) creates its tensors and returns a function that runs it.
struct Operation {
    enum class Roof { memory, arithmetic };
    std::string name;
    Roof roof = Roof::memory;
    std::vector<DType> types;
    std::function<std::function<void()>(Workbench&, DType, const Sizes&)> prepare;
    std::string shape(const Sizes&) const;  ///< for messages
    enum class Shape { rows, gemm, attention, loss } shape_kind = Shape::rows;
};

/// Memory and work of an operation on a GPU, measured by running it on `meta`.
struct Cost {
    std::size_t tensors = 0, scratch = 0;  ///< bytes
    double flops = 0, bytes = 0;
};
Cost cost_of(const Operation& operation, DType type, const Sizes& sizes, backend::Traits traits);

/// Every operation of src/ops.
std::vector<Operation> operations();
std::vector<Operation> row_operations();     ///< elementwise and row-wise operations
std::vector<Operation> moving_operations();  ///< copies of rows and columns
std::vector<Operation> matmul_operations();  ///< GEMMs and attention
std::vector<Operation> loss_operations();

}  // namespace maestro::gpu_check
