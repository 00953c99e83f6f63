#include "parallel/sequence_parallel.hpp"

#include <numeric>

#include "ops/elementwise.hpp"
#include "ops/linear.hpp"

namespace maestro::parallel {

namespace {
std::int64_t slice_rows(std::span<const std::int64_t> tp_rows) {
    return std::accumulate(tp_rows.begin(), tp_rows.end(), std::int64_t{0});
}
}  // namespace

StartedGather SequenceParallel::start_all_gather(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                                 backend::Arena& arena) const {
    if (single_rank()) return {local, nullptr, 0};
    const Tensor all = arena.allocate(local.dtype, {slice_rows(tp_rows), local.columns()});
    return {all, tp_, tp_->start_all_gather(backend_, local, all, tp_rows)};
}

Tensor SequenceParallel::partial(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                 backend::Arena& arena) const {
    return single_rank() ? local : arena.allocate(local.dtype, {slice_rows(tp_rows), local.columns()});
}

collective::Operation SequenceParallel::launch_reduce_scatter(const Tensor& partial, const Tensor& local,
                                                              std::span<const std::int64_t> tp_rows,
                                                              backend::Arena& scratch) const {
    if (single_rank()) return {};
    return tp_->launch_reduce_scatter(backend_, partial, local, tp_rows, ops::Reduction::sum, scratch);
}

void SequenceParallel::add_row_parallel(const Tensor& x, const Tensor& w, const Tensor& addend,
                                        const Tensor& local, std::span<const std::int64_t> tp_rows,
                                        backend::Arena& scratch) const {
    if (single_rank()) return ops::linear_accumulate(backend_, x, w, local, addend);
    const backend::ArenaScope scope(scratch);
    // The addend comes after the sum over the ranks. If each rank added its copy of the residual stream
    // first, the stream would be counted once for every rank.
    const Tensor partial = scratch.allocate(local.dtype, {x.dim(0), local.columns()});
    ops::linear(backend_, x, w, partial);
    reduce_scatter(partial, local, tp_rows, scratch);
    ops::add(backend_, addend, local);
}

}  // namespace maestro::parallel
