#include "parallel/row_shares.hpp"

#include <numeric>

#include "ops/elementwise.hpp"
#include "ops/linear.hpp"

namespace maestro::parallel {

namespace {
std::int64_t all_rows(std::span<const std::int64_t> shares) {
    return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}
}  // namespace

Tensor RowShares::gather(const Tensor& own, std::span<const std::int64_t> shares,
                         backend::Arena& arena) const {
    if (alone()) return own;
    const Tensor whole = arena.allocate(own.dtype, {all_rows(shares), own.columns()});
    group_->all_gather(backend_, own, whole, shares);
    return whole;
}

Tensor RowShares::part(const Tensor& own, std::span<const std::int64_t> shares, backend::Arena& arena) const {
    return alone() ? own : arena.allocate(own.dtype, {all_rows(shares), own.columns()});
}

void RowShares::sum(const Tensor& part, const Tensor& own, std::span<const std::int64_t> shares,
                    backend::Arena& scratch) const {
    if (!alone()) group_->reduce_scatter(backend_, part, own, shares, ops::Reduction::sum, scratch);
}

void RowShares::add_product(const Tensor& x, const Tensor& w, const Tensor& own,
                            std::span<const std::int64_t> shares, backend::Arena& scratch) const {
    if (alone()) return ops::linear_accumulate(backend_, x, w, own);
    const backend::ArenaScope scope(scratch);
    const Tensor part = scratch.allocate(own.dtype, {x.dim(0), own.columns()}),
                 summed = scratch.allocate(own.dtype, {own.dim(0), own.columns()});
    ops::linear(backend_, x, w, part);
    sum(part, summed, shares, scratch);
    ops::add(backend_, summed, own);
}

}  // namespace maestro::parallel
