// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation in large transformer models",
// MLSys 2023; Megatron-LM's gather_from_sequence_parallel_region and
// reduce_scatter_to_sequence_parallel_region). Between the GEMMs each tp rank holds its local rows of the
// slice. A GEMM needs all rows and computes the columns of this rank.
//
// Shape letters: T rows of the slice, `local` of them on this rank, C columns.
#pragma once

#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "collective/process_group.hpp"
#include "parallel/row_chunks.hpp"

namespace maestro::parallel {

/// An all-gather that has been started. On one rank nothing is gathered.
class StartedGather {
public:
    StartedGather() = default;
    StartedGather(Tensor rows, collective::ProcessGroup* tp, collective::ProcessGroup::Request request)
        : rows_(rows), tp_(tp), request_(request) {}
    /// Waits, once, and returns the rows of all ranks.
    Tensor wait() {
        if (tp_) std::exchange(tp_, nullptr)->wait(request_);
        return rows_;
    }

private:
    Tensor rows_;
    collective::ProcessGroup* tp_ = nullptr;  ///< null if there is nothing to wait for
    collective::ProcessGroup::Request request_ = 0;
};

/// `tp` is the tensor-parallel group; it and the backend outlive the object. `tp_rows` of a call are the
/// local rows of each tp rank, T in all. On one rank all rows are local: nothing is copied and nothing is
/// allocated.
class SequenceParallel {
public:
    SequenceParallel(backend::Backend& backend, collective::ProcessGroup& tp) : backend_(backend), tp_(&tp) {}

    bool single_rank() const { return tp_->size() == 1; }
    int rank() const { return tp_->rank(); }
    /// Returns the rows [T, C] of all ranks, allocated in `arena`; on one rank `local` itself. Collective.
    Tensor all_gather(const Tensor& local, std::span<const std::int64_t> tp_rows,
                      backend::Arena& arena) const {
        return start_all_gather(local, tp_rows, arena).wait();
    }
    /// The same beside work that does not need the rows.
    StartedGather start_all_gather(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                   backend::Arena& arena) const {
        return start_all_gather(local, tp_rows, rows_of_all(local, tp_rows, arena));
    }
    /// The same into all[T, C], which is that of rows_of_all(), or a chunk of it.
    StartedGather start_all_gather(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                   const Tensor& all) const;
    /// Begins a gather for each of these chunks of `local` into that chunk of `all`.
    std::vector<StartedGather> start_all_gather(const Tensor& local, std::span<const RowChunk> chunks,
                                                const Tensor& all) const;
    /// Allocates a tensor [T, C] of T = `rows` rows for what is gathered from `local`, or for this rank's
    /// part of a sum over the ranks that reduce_scatter() turns into `local`. On one rank returns `local`
    /// itself.
    Tensor rows_of_all(const Tensor& local, std::int64_t rows, backend::Arena& arena) const;
    Tensor rows_of_all(const Tensor& local, std::span<const std::int64_t> tp_rows,
                       backend::Arena& arena) const {
        return rows_of_all(local, slice_rows(tp_rows), arena);
    }
    /// local[local, C] = this rank's rows of the sum of all ranks' partial[T, C], in the order of ranks.
    /// Collective.
    void reduce_scatter(const Tensor& partial, const Tensor& local, std::span<const std::int64_t> tp_rows,
                        backend::Arena& scratch) const {
        launch_reduce_scatter(partial, local, tp_rows, scratch).wait();
    }
    /// The same beside work that does not need `local`. `scratch` is in use until the operation has ended.
    collective::Operation launch_reduce_scatter(const Tensor& partial, const Tensor& local,
                                                std::span<const std::int64_t> tp_rows,
                                                backend::Arena& scratch) const;
    /// The same for a chunk of both tensors, after chunks whose sums are still under way: `sums` has them,
    /// and receives this one.
    void launch_reduce_scatter(const Tensor& partial, const Tensor& local, const RowChunk& chunk,
                               std::vector<collective::Operation>& sums, backend::Arena& scratch) const;
    collective::ProcessGroup& group() const { return *tp_; }

private:
    static std::int64_t slice_rows(std::span<const std::int64_t> tp_rows) {
        return std::accumulate(tp_rows.begin(), tp_rows.end(), std::int64_t{0});
    }

    backend::Backend& backend_;
    collective::ProcessGroup* tp_;
};

}  // namespace maestro::parallel
