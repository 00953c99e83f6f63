// Which rows travel to which ranks where the ranks of a group share the experts of a layer, and the order of
// rows by expert. Pure functions of the router's choices, which all ranks of the group know.
//
// A row is sent once to each rank that has one of its experts. No row is dropped, and none is padded. What a
// rank receives at a time is bounded: the exchange takes several rounds where many rows choose the experts of
// one rank.
//
// Shape letters: R rows of this rank, M rows that it receives, E experts, k choices of a row, N choices among
// received rows of experts that this rank has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/shard.hpp"
#include "parallel/mesh.hpp"

namespace maestro::parallel {

/// The choices of M rows in the order of their experts, and by row among equal ones.
struct ExpertOrder {
    std::vector<std::int64_t> begin;     ///< [experts + 1]: where the choices of each expert begin
    std::vector<std::int32_t> row;       ///< [N]: the row of each
    std::vector<std::int32_t> slot;      ///< [N]: its place in the table of choices [M, k]
    std::vector<std::int32_t> position;  ///< [M, k]: the place of each in this order; -1: of another rank
};
/// `choice` is the table [M, k] of experts, of which this rank has those in `experts`.
ExpertOrder order_by_expert(std::span<const std::int32_t> choice, int k, Range experts);

/// The experts of a group of ranks along Axis::ep.
struct ExpertGroup {
    ExpertDegrees degrees = {};
    int rank = 0;     ///< of this process in the group
    int experts = 0;  ///< E
    int choices = 0;  ///< k
    /// Returns the experts that rank r of the group has, whole or a part of their channels.
    Range experts_of(int r) const {
        const std::int64_t each = experts / degrees.ep;
        return {r / degrees.etp * each, (r / degrees.etp + 1) * each};
    }
    /// Returns the share of rows that are sent to a rank if all choices are equally likely: those with at
    /// least one choice among its experts.
    double share_of_rows() const;
};

/// What a rank receives at most in one round.
struct ExpertLimits {
    std::int64_t rows = 0;     ///< M
    std::int64_t choices = 0;  ///< N
};
/// A quarter and four standard deviations more than a rank receives on average of `rows` rows of the group,
/// so that one round is the rule.
ExpertLimits expert_limits(const ExpertGroup& group, std::int64_t rows);

/// One round of the exchange, as this rank sees it.
struct ExpertRound {
    std::vector<std::int64_t> send_rows, receive_rows;  ///< by rank of the group
    std::vector<std::int32_t> sent;                     ///< rows of this rank, in the order of receivers
    /// [R, ranks]: the place of a row in `sent` for each receiver; -1: it is not sent there in this round.
    std::vector<std::int32_t> place;
    std::vector<std::int32_t> received;  ///< rows of the group, counted over its ranks, in their order
};
/// Divides the exchange into rounds, the same number on all ranks of the group, at least one. `choice` is the
/// table of all ranks' rows, [sum of rows, k]; rows[r] are those of rank r.
std::vector<ExpertRound> plan_expert_rounds(const ExpertGroup& group, std::span<const std::int64_t> rows,
                                            std::span<const std::int32_t> choice, const ExpertLimits& limits);

}  // namespace maestro::parallel
