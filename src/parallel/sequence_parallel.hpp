// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation", MLSys 2023). Between the
// matrix products each tp rank holds its own rows of the slice; a product needs all rows and computes its
// share of the columns.
#pragma once

#include <span>

#include "backend/arena.hpp"
#include "collective/process_group.hpp"

namespace maestro::parallel {

/// `tp`: the group, which must outlive it. On one rank all rows are there already and nothing is copied.
/// `rows` of a call: the rows of each tp rank, T in all.
class SequenceParallel {
public:
    SequenceParallel(backend::Backend& backend, collective::ProcessGroup& tp) : backend_(backend), tp_(&tp) {}

    bool single_rank() const { return tp_->size() == 1; }
    int rank() const { return tp_->rank(); }
    /// [T, C] from every rank's `own` rows; on one rank `own` itself. Collective.
    Tensor all_gather(const Tensor& own, std::span<const std::int64_t> rows, backend::Arena& arena) const;
    /// Where a rank computes its part of a sum over all rows, [T, C], for reduce_scatter() to turn into
    /// `own`.
    Tensor partial(const Tensor& own, std::span<const std::int64_t> rows, backend::Arena& arena) const;
    /// own = its rows of the sum of all ranks' `partial`. Collective.
    void reduce_scatter(const Tensor& partial, const Tensor& own, std::span<const std::int64_t> rows,
                        backend::Arena& scratch) const;
    /// own[rows, O] += its rows of x[T, I of this rank] w[O, I of this rank]^T, summed over the ranks
    /// (Megatron's RowParallelLinear). Collective.
    void add_row_parallel(const Tensor& x, const Tensor& w, const Tensor& own,
                          std::span<const std::int64_t> rows, backend::Arena& scratch) const;
    collective::ProcessGroup& group() const { return *tp_; }

private:
    backend::Backend& backend_;
    collective::ProcessGroup* tp_;
};

}  // namespace maestro::parallel
