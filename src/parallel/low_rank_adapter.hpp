// The LoRA adapters (spec/lora.hpp) of a linear layer, which may compute several matrices at once: queries,
// keys and values. One A has the rows of all of them, so that the input is read once, and one B has theirs.
//
// Shape letters: T rows, I input channels and O output channels of this rank, N adapted matrices of rank R.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/parameter_store.hpp"
#include "spec/lora.hpp"

namespace maestro::parallel {

/// What is frozen of a section with these adapters: `frozen`, and every parameter but theirs. Without
/// adapters, `frozen` alone.
FrozenParameters frozen_with(const Lora& lora, const FrozenParameters& frozen = {});

/// One of the matrices of a layer's weight.
struct AdapterTarget {
    std::string_view name;            ///< "q_proj"
    std::int64_t rows = 0;            ///< of the whole matrix
    std::vector<ParameterRows> held;  ///< its rows that this rank holds
};

/// The store outlives the object.
class LowRankAdapter {
public:
    /// Declare "PREFIX.lora_A.weight" and "PREFIX.lora_B.weight", by default with the result 0: A is drawn as
    /// PEFT draws it and B is zero. There is an adapter if LoRA has one of the targets.
    ///
    /// Of a layer whose output channels are split over tp: every rank holds A, and the rows of B that the
    /// weight has. Each rank's gradient of A is partial, of its output channels.
    static std::optional<LowRankAdapter> column_parallel(ParameterStore& store, const std::string& prefix,
                                                         const Lora& lora, std::int64_t inputs,
                                                         std::span<const AdapterTarget> targets,
                                                         bool trained);
    /// Of a layer whose input channels are split over tp: every rank holds its columns of A, and B. Each rank
    /// adds the term of its input channels to the output before the sum over the ranks, so its gradient of B
    /// is partial.
    static std::optional<LowRankAdapter> row_parallel(ParameterStore& store, const std::string& prefix,
                                                      const Lora& lora, std::string_view target,
                                                      std::int64_t outputs, std::int64_t inputs, Range part,
                                                      bool trained);

    bool trainable() const { return a_->trainable; }
    /// output[T, O] += the adapters' part for input[T, I].
    void forward(const Tensor& input, const Tensor& output, backend::Arena& scratch) const;
    /// Allocates [T, N R] for `d_inner`.
    Tensor allocate_inner(std::int64_t rows, backend::Arena& arena) const;
    /// d_input[T, I] += the adapters' part for d_output[T, O], and d_inner for backward_weights().
    void backward_input(const Tensor& d_output, const Tensor& d_input, const Tensor& d_inner) const;
    /// Adds the gradients of A and B. `inner` is overwritten: A x, which takes less time to compute again
    /// than it would take memory to keep, is computed there.
    void backward_weights(const Tensor& d_output, const Tensor& input, const Tensor& d_inner,
                          const Tensor& inner) const;

private:
    LowRankAdapter(backend::Backend& backend, const Parameter& a, const Parameter& b,
                   std::vector<Range> outputs, const Lora& lora)
        : backend_(&backend),
          a_(&a),
          b_(&b),
          outputs_(std::move(outputs)),
          rank_(lora.rank),
          scale_(lora.scale()) {}
    /// Calls body(i, rows) for each adapted matrix and its rows of B.
    template <class Body>
    void for_each_matrix(Body&& body) const;

    backend::Backend* backend_;
    const Parameter *a_, *b_;
    std::vector<Range> outputs_;  ///< by adapted matrix: its columns of the layer's output
    std::int64_t rank_;
    double scale_;
};

}  // namespace maestro::parallel
