// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation in large transformer models",
// MLSys 2023; Megatron-LM's gather_from_sequence_parallel_region and
// reduce_scatter_to_sequence_parallel_region). Between the GEMMs each tp rank holds its local rows of the
// slice. A GEMM needs all rows and computes the columns of this rank.
//
// Shape letters: T rows of the slice, `local` of them on this rank, C columns.
#pragma once

#include <span>
#include <utility>

#include "backend/arena.hpp"
#include "collective/process_group.hpp"

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
                                   backend::Arena& arena) const;
    /// Allocates the tensor [T, C] for this rank's part of a sum over the ranks, which reduce_scatter() turns
    /// into `local`; on one rank returns `local` itself.
    Tensor partial(const Tensor& local, std::span<const std::int64_t> tp_rows, backend::Arena& arena) const;
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
    /// local[local, O] = addend[local, O] + this rank's rows of x w^T, summed over the ranks, where x[T, I]
    /// and w[O, I] have this rank's part of the input channels (Megatron-LM's RowParallelLinear).
    /// Collective.
    void add_row_parallel(const Tensor& x, const Tensor& w, const Tensor& addend, const Tensor& local,
                          std::span<const std::int64_t> tp_rows, backend::Arena& scratch) const;
    collective::ProcessGroup& group() const { return *tp_; }

private:
    backend::Backend& backend_;
    collective::ProcessGroup* tp_;
};

}  // namespace maestro::parallel
