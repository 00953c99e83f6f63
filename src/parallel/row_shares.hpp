// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation", MLSys 2023): between
// products each tp rank of a slice holds its share of the rows, in products all rows and its share of the
// columns.
#pragma once

#include <span>

#include "backend/arena.hpp"
#include "collective/process_group.hpp"

namespace maestro::parallel {

/// `group`: the tp ranks, which must outlive it; on one rank everything is there already and nothing is
/// copied. `shares`: rows of each of them, of T in all.
class RowShares {
public:
    RowShares(backend::Backend& backend, collective::ProcessGroup& group)
        : backend_(backend), group_(&group) {}

    bool alone() const { return group_->size() == 1; }
    int rank() const { return group_->rank(); }
    /// [T, C] from every rank's own rows; on one rank `own` itself. Collective.
    Tensor gather(const Tensor& own, std::span<const std::int64_t> shares, backend::Arena& arena) const;
    /// A place for a sum whose parts all ranks work out: for sum() to turn into `own`.
    Tensor part(const Tensor& own, std::span<const std::int64_t> shares, backend::Arena& arena) const;
    /// own = its rows of the sum over the ranks of `part`. Collective.
    void sum(const Tensor& part, const Tensor& own, std::span<const std::int64_t> shares,
             backend::Arena& scratch) const;
    /// own[rows, O] += its rows of x[T, I here] w[O, I here]^T, summed over the ranks. Collective.
    void add_product(const Tensor& x, const Tensor& w, const Tensor& own,
                     std::span<const std::int64_t> shares, backend::Arena& scratch) const;
    collective::ProcessGroup& group() const { return *group_; }

private:
    backend::Backend& backend_;
    collective::ProcessGroup* group_;
};

}  // namespace maestro::parallel
