// Dispatch and combine of experts that several ranks share (Axis::ep): rows travel to the ranks that have
// their experts, and the results back, where those of a row are summed.
//
// Shape letters as in expert_dispatch.hpp; C model width.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "base/tensor.hpp"
#include "parallel/expert_dispatch.hpp"

namespace maestro::parallel {

class ExpertExchange {
public:
    /// Rows of the residual stream are [C] of `type`. Backend and mesh outlive it.
    ExpertExchange(backend::Backend& backend, const Mesh& mesh, ExpertGroup group, DType type,
                   std::int64_t width)
        : backend_(backend), mesh_(&mesh), group_(std::move(group)), type_(type), width_(width) {}

    /// Where the rows of a hop go and come from: see ExpertHop.
    struct Hop {
        const ExpertHop* counts;
        Tensor sent, place;  ///< i32
        Tensor buffer;       ///< [sent, C], for rows on their way
    };
    /// A round with its indices on the device.
    struct Round {
        const ExpertRound* round;
        Hop first, second;        ///< across nodes alone there is a second one
        Tensor kept, kept_place;  ///< i32, likewise: see ExpertRound
        Tensor landed;            ///< [rows that the first hop brings, C], likewise
        std::int64_t received() const { return round->rows; }
    };

    /// Gathers the choices of all ranks, choice[R, k] of each, and returns the rounds in which rows travel;
    /// on the meta backend one round of expected size. Collective over Axis::ep, as are dispatch() and
    /// combine(). `rows`: of each rank of the group.
    std::vector<ExpertRound> plan(const Tensor& choice, std::span<const std::int64_t> rows,
                                  backend::Arena& scratch) const;
    /// Describes a round of `local_rows` rows of this rank. Its memory remains in `scratch`; it refers to
    /// `round`.
    Round describe(const ExpertRound& round, std::int64_t local_rows, backend::Arena& scratch) const;
    /// Returns received[M, ...], the rows of local[R, ...] that travel in this round.
    Tensor dispatch(const Tensor& local, const Round& round, backend::Arena& scratch) const;
    /// Sends results[M, ...] back and adds them to sum[R, ...].
    void combine(const Tensor& results, const Round& round, const Tensor& sum, backend::Arena& scratch) const;

private:
    /// Indices from the host; on the meta backend, which has none, a tensor of `count`.
    Tensor indices(const std::vector<std::int32_t>& values, std::int64_t count, backend::Arena& arena) const;
    /// Returns memory for as many rows like those of `like` as `of_rows` has: `of_rows` itself, or other.
    Tensor room_for(const Tensor& like, const Tensor& of_rows, backend::Arena& scratch) const;

    backend::Backend& backend_;
    const Mesh* mesh_;
    ExpertGroup group_;
    DType type_;
    std::int64_t width_;
};

}  // namespace maestro::parallel
