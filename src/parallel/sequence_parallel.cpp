#include "parallel/sequence_parallel.hpp"

#include <numeric>

#include "ops/elementwise.hpp"
#include "ops/linear.hpp"

namespace maestro::parallel {

namespace {
std::int64_t total(std::span<const std::int64_t> rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}
}  // namespace

Tensor SequenceParallel::all_gather(const Tensor& own, std::span<const std::int64_t> rows,
                                    backend::Arena& arena) const {
    if (single_rank()) return own;
    const Tensor all = arena.allocate(own.dtype, {total(rows), own.columns()});
    tp_->all_gather(backend_, own, all, rows);
    return all;
}

Tensor SequenceParallel::partial(const Tensor& own, std::span<const std::int64_t> rows,
                                 backend::Arena& arena) const {
    return single_rank() ? own : arena.allocate(own.dtype, {total(rows), own.columns()});
}

void SequenceParallel::reduce_scatter(const Tensor& partial, const Tensor& own,
                                      std::span<const std::int64_t> rows, backend::Arena& scratch) const {
    if (!single_rank()) tp_->reduce_scatter(backend_, partial, own, rows, ops::Reduction::sum, scratch);
}

void SequenceParallel::add_row_parallel(const Tensor& x, const Tensor& w, const Tensor& own,
                                        std::span<const std::int64_t> rows, backend::Arena& scratch) const {
    if (single_rank()) return ops::linear_accumulate(backend_, x, w, own);
    const backend::ArenaScope scope(scratch);
    const Tensor part = scratch.allocate(own.dtype, {x.dim(0), own.columns()}),
                 summed = scratch.allocate(own.dtype, {own.dim(0), own.columns()});
    ops::linear(backend_, x, w, part);
    reduce_scatter(part, summed, rows, scratch);
    ops::add(backend_, summed, own);
}

}  // namespace maestro::parallel
