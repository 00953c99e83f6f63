// Which rows travel to which ranks where the ranks of a group share the experts of a layer, and the order of
// rows by expert. Pure functions of the router's choices, which all ranks of the group know.
//
// A row is sent once to each rank that has one of its experts. Where ranks are on several nodes, it is sent
// once to each other node: a rank there, its proxy (collective::Nodes), forwards it within the node, and sums
// what comes back. No row is dropped, and none is padded. What a rank receives at a time is bounded: the
// exchange takes several rounds where many rows choose the experts of one rank.
//
// Shape letters: R rows of this rank, M rows that it receives, E experts, k choices of a row, N choices among
// received rows of experts that this rank has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/shard.hpp"
#include "collective/nodes.hpp"
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
    collective::Nodes nodes =
        collective::Nodes();  ///< of the ranks; without several, who they are is not read
    /// Whether rows that cross the border of a node are forwarded within it.
    bool by_nodes() const { return nodes.hierarchical(); }
    /// Returns the experts that rank r of the group has, whole or a part of their channels.
    Range experts_of(int r) const {
        const std::int64_t each = experts / degrees.ep;
        return {r / degrees.etp * each, (r / degrees.etp + 1) * each};
    }
    /// Returns to how many ranks one rank sends a row at most.
    int most_receivers() const { return std::min(degrees.ranks(), choices * degrees.etp); }
    /// Returns the rank to which rank `from` sends a row for rank `to`: `to` itself, or its proxy.
    int first_receiver(int from, int to) const;
    /// Returns the share of rows that are sent to a rank, or to a node, if all choices are equally likely:
    /// those with at least one choice among its experts.
    double share_of_rows() const { return share_of(experts / degrees.ep); }
    double share_of_node(int node) const;

private:
    double share_of(int experts_there) const;
};

/// What a rank handles at most in one round.
struct ExpertLimits {
    std::int64_t rows = 0;     ///< M: for its experts
    std::int64_t choices = 0;  ///< N
    /// Across nodes: rows that it receives from other nodes, and rows that it forwards within its node, each
    /// counted once for every receiver.
    std::int64_t crossing = std::numeric_limits<std::int64_t>::max();
    std::int64_t forwarded = std::numeric_limits<std::int64_t>::max();
};
/// A quarter and four standard deviations more than a rank handles on average, so that one round is the rule.
/// `rows`: of each rank of the group.
ExpertLimits expert_limits(const ExpertGroup& group, std::span<const std::int64_t> rows);

/// Rows that this rank sends to others and receives from them in one exchange. Results take the way back.
struct ExpertHop {
    std::vector<std::int64_t> send_rows, receive_rows;  ///< by rank of the group
    std::vector<std::int32_t> sent;  ///< which of the rows that this rank has, in the order of receivers
    /// [rows, ExpertGroup::most_receivers()]: the places of a row in `sent`, in the order of receivers; -1
    /// for those that are fewer.
    std::vector<std::int32_t> place;
    std::int64_t rows_sent() const;
    std::int64_t rows_received() const;
};

/// One round of the exchange, as this rank sees it.
struct ExpertRound {
    ExpertHop first;  ///< of rows of this rank: see ExpertGroup::first_receiver()
    /// Across nodes, of rows that have arrived from other nodes: to other ranks of this node.
    std::optional<ExpertHop> second = {};
    /// Across nodes: which rows of those that the first hop brings stay here, and for each of those that it
    /// brings its place among the former; -1: none.
    std::vector<std::int32_t> kept = {}, kept_place = {};
    /// [M]: the rows that this rank's experts get, counted over the ranks of the group. They come as the hops
    /// bring them: in the order of ranks those of the first, or across nodes of those that are kept, then
    /// those of the second.
    std::vector<std::int32_t> received = {};
    std::vector<std::int32_t> choices = {};  ///< [M, k]: of these rows
    std::int64_t rows = 0;                   ///< M
};
/// Divides the exchange into rounds, the same number on all ranks of the group, at least one. All receivers
/// of a row get it in the same round. `choice` is the table of all ranks' rows, [sum of rows, k]; rows[r] are
/// those of rank r.
std::vector<ExpertRound> plan_expert_rounds(const ExpertGroup& group, std::span<const std::int64_t> rows,
                                            std::span<const std::int32_t> choice, const ExpertLimits& limits);
/// Bytes of host memory of a rank: of the rounds that plan_expert_rounds() returns, and of what it needs
/// meanwhile, the choices of all ranks included. For one round at the limits of expert_limits(), which is the
/// rule; rows beyond these make further rounds, and take as much again.
struct ExpertHostBytes {
    std::int64_t round = 0, planning = 0;
};
ExpertHostBytes expert_host_bytes(const ExpertGroup& group, std::span<const std::int64_t> rows);
/// Returns a round of all rows in which all choices are equally likely: the numbers of rows alone.
ExpertRound expected_expert_round(const ExpertGroup& group, std::span<const std::int64_t> rows);

}  // namespace maestro::parallel
