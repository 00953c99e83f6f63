// Measured times of collectives, by kind, ranks, nodes and bytes, and from them the time of any other.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace maestro::collective {

enum class CollectiveKind { all_gather, reduce_scatter, all_reduce, all_to_all };
/// By kind, as cluster files call them.
inline constexpr std::array<std::string_view, 4> kCollectiveNames{"all_gather", "reduce_scatter",
                                                                  "all_reduce", "all_to_all"};

/// A collective of so many ranks on so many nodes took so many seconds.
struct CollectiveRow {
    CollectiveKind kind = CollectiveKind::all_gather;
    int ranks = 2;  ///< at least 2
    int nodes = 1;  ///< 1 to `ranks`
    /// The size by which the tests of NCCL (nccl-tests, doc/PERFORMANCE.md) name a collective: that of the
    /// largest array of a rank. All that an all-gather returns, all that a reduce-scatter or an all-reduce
    /// sums, or all that a rank sends in an all-to-all, its part for itself included.
    double bytes = 0;
    double seconds = 0;
    bool operator==(const CollectiveRow&) const = default;
};

/// An immutable table, which copies share. One without rows knows no times.
///
/// Between two measured sizes the time is linear in bytes: each pair of rows has a latency and a bandwidth
/// (Hockney 1994; in pieces as in Clauss et al., IPDPS 2011, because libraries change their algorithm with
/// the size). It is that of the smallest row for less, and goes on as between the last two for more. Of n
/// ranks, each exchanges (n - 1) / n of the bytes (Thakur, Rabenseifner, Gropp 2005; an all-reduce twice as
/// many): measured for other numbers of ranks, it takes the time in which these exchange as much, and between
/// two measured numbers of ranks it lies linearly between their times, as the latency of a ring grows.
///
/// Times within a node and across nodes are told from rows within a node and across nodes. Of the latter
/// count those whose ranks per node are nearest, by their ratio, since these share the network.
class CollectiveTimes {
public:
    CollectiveTimes() = default;
    /// No two rows differ in seconds alone.
    explicit CollectiveTimes(std::vector<CollectiveRow> rows);

    bool empty() const { return !table_; }
    /// By kind, nodes, ranks and bytes.
    const std::vector<CollectiveRow>& rows() const;
    /// `bytes` as in CollectiveRow; of 0 it is the latency. Nothing if no row of this kind is within a node,
    /// or across nodes, as this collective is.
    std::optional<double> seconds(CollectiveKind kind, int ranks, int nodes, double bytes) const;
    /// Returns the table in which the rows within a node, or those across nodes, take `factor` times as long.
    CollectiveTimes slower(bool across_nodes, double factor) const;
    bool operator==(const CollectiveTimes& other) const;

private:
    struct Table;
    std::shared_ptr<const Table> table_;
};

}  // namespace maestro::collective
