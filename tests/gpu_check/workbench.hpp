// Where an operation is laid out on a device: its inputs, always the same, its results, and memory for them.
#pragma once

#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::gpu_check {

/// How large: rows x columns of activations, heads and sizes of attention, tokens of a vocabulary.
struct Sizes {
    std::int64_t rows = 0, columns = 0;
    std::int64_t heads = 0, kv_heads = 0, head_columns = 0;
    std::int64_t vocabulary = 0;
    std::int64_t inputs = 0, outputs = 0;  ///< of products
};

class Workbench {
public:
    /// Room, in bytes, for tensors and for scratch; `meta` needs none. `poison`: results hold NaN before the
    /// operation; else nothing was ever written there.
    Workbench(backend::Backend& b, std::size_t tensors, std::size_t scratch, bool poison);

    /// Normal values times `scale`, other ones with every call, the same ones on every device.
    Tensor random(DType type, std::initializer_list<std::int64_t> shape, double scale = 1);
    Tensor filled(DType type, std::initializer_list<std::int64_t> shape, double value);
    /// What the operation overwrites.
    Tensor result(DType type, std::initializer_list<std::int64_t> shape);
    /// What it adds to.
    Tensor sum(DType type, std::initializer_list<std::int64_t> shape);
    /// Ids, places and pixels; in real memory on paper too, where operations look at them.
    template <class T>
    Tensor list(const std::vector<T>& values) {
        Tensor t = memory_.allocate(dtype_of<T>(), {static_cast<std::int64_t>(values.size())});
        if (b.computes() && !values.empty()) b.upload(values.data(), t);
        if (!b.computes()) {
            const auto bytes = std::as_bytes(std::span(values));
            t.data = kept_.emplace_back(bytes.begin(), bytes.end()).data();
        }
        return t;
    }
    /// Whole numbers below `limit`, in no order; those of `different` ones are all different.
    std::vector<std::int32_t> places(std::int64_t count, std::int64_t limit, bool different = false);

    const std::vector<Tensor>& results() const { return results_; }
    std::size_t tensor_bytes() const { return memory_.peak(); }

    backend::Backend& b;
    backend::Arena scratch;

private:
    Tensor made(DType type, std::initializer_list<std::int64_t> shape,
                const std::function<double(std::int64_t)>& value);
    backend::Arena memory_;
    bool poison_;
    std::vector<Tensor> results_;
    std::list<std::vector<std::byte>> kept_;  ///< on paper
    std::int64_t made_ = 0;
};

/// One operation: lay(bench, type, sizes) makes its tensors and gives back what runs it.
struct Operation {
    enum class Roof { memory, products };
    std::string name;
    Roof roof = Roof::memory;
    std::vector<DType> types;
    std::function<std::function<void()>(Workbench&, DType, const Sizes&)> lay;
    std::string shape(const Sizes&) const;  ///< for people
    enum class Shape { rows, product, attention, loss } shape_kind = Shape::rows;
};

/// What one takes and costs on a GPU, from the operation itself on paper.
struct Cost {
    std::size_t tensors = 0, scratch = 0;  ///< bytes
    double flops = 0, bytes = 0;
};
Cost cost_of(const Operation& operation, DType type, const Sizes& sizes, backend::Traits traits);

/// Every operation of src/ops.
std::vector<Operation> operations();
std::vector<Operation> row_operations();      ///< element by element, or row by row
std::vector<Operation> moving_operations();   ///< rows and columns from place to place
std::vector<Operation> product_operations();  ///< products and attention
std::vector<Operation> loss_operations();

}  // namespace maestro::gpu_check
