#include "parallel/sequence_parallel.hpp"

namespace maestro::parallel {

namespace {
Tensor rows(const Tensor& tensor, const Range& range) {
    return tensor.slice(range.begin, range.end);
}
}  // namespace

StartedGather SequenceParallel::start_all_gather(const Tensor& local, std::span<const std::int64_t> tp_rows,
                                                 const Tensor& all) const {
    if (single_rank()) return {local, nullptr, 0};
    return {all, tp_, tp_->start_all_gather(backend_, local, all, tp_rows)};
}

std::vector<StartedGather> SequenceParallel::start_all_gather(const Tensor& local,
                                                              std::span<const RowChunk> chunks,
                                                              const Tensor& all) const {
    std::vector<StartedGather> started;
    for (const RowChunk& chunk : chunks)
        started.push_back(start_all_gather(rows(local, chunk.local), chunk.tp_rows, rows(all, chunk.slice)));
    return started;
}

Tensor SequenceParallel::rows_of_all(const Tensor& local, std::int64_t rows, backend::Arena& arena) const {
    return single_rank() ? local : arena.allocate(local.dtype, {rows, local.columns()});
}

collective::Operation SequenceParallel::launch_reduce_scatter(const Tensor& partial, const Tensor& local,
                                                              std::span<const std::int64_t> tp_rows,
                                                              backend::Arena& scratch) const {
    if (single_rank()) return {};
    return tp_->launch_reduce_scatter(backend_, partial, local, tp_rows, ops::Reduction::sum, scratch);
}

void SequenceParallel::launch_reduce_scatter(const Tensor& partial, const Tensor& local,
                                             const RowChunk& chunk, std::vector<collective::Operation>& sums,
                                             backend::Arena& scratch) const {
    // A sum of NCCL is one exchange, and the next one may be launched before it has ended.
    if (tp_->ordered(collective::Sums::automatic))
        for (collective::Operation& sum : sums) sum.wait();
    sums.push_back(
        launch_reduce_scatter(rows(partial, chunk.slice), rows(local, chunk.local), chunk.tp_rows, scratch));
}

}  // namespace maestro::parallel
