// Reduce-scatter in segments, so that it takes little memory whatever the tensor's size, with the exchange of
// the next segment under way while one is summed.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "collective/process_group.hpp"
#include "collective/rank_rows.hpp"
#include "ops/elementwise.hpp"

namespace maestro::collective {

namespace {

// A reduce-scatter receives from all other ranks at once, because the sum is taken in the order of ranks. The
// two segments that are under way fill at most kReduceBytes, whatever the number of ranks. Few ranks do not
// need all of it, since longer messages than kMaxPiece are no faster.
constexpr std::size_t kReduceBytes = std::size_t{64} << 20;
constexpr std::int64_t kMaxPiece = 1 << 20;      ///< elements
constexpr std::int64_t kSegmentAlignment = 128;  ///< elements; keeps every segment on an arena's alignment

std::int64_t aligned_down(std::int64_t elements) {
    return std::max(elements / kSegmentAlignment, std::int64_t{1}) * kSegmentAlignment;
}

/// Elements that a reduce-scatter takes from each rank at a time. The same on every rank.
std::int64_t reduce_segment(int ranks, DType type) {
    const auto buffers = static_cast<std::size_t>(2 * std::max(ranks - 1, 1));
    return std::min(aligned_down(static_cast<std::int64_t>(kReduceBytes / size_of(type) / buffers)),
                    kMaxPiece);
}

/// Sets of buffers for segments of `elements` elements: a second one only where there is a second segment.
int sets_of(std::int64_t elements, std::int64_t segment) {
    return elements > segment ? 2 : 1;
}

/// What a rank of a hierarchical group needs while one segment of every shard is summed, in buffers of a
/// segment. Of what is exchanged and summed within the node, two successive segments are under way.
struct NodeBuffers {
    std::size_t received;  ///< from the ranks of its node, for the shards that it exchanges for the node
    std::size_t partial;   ///< sums of these within the node
    std::size_t remote;    ///< the partial sums of the other nodes for its shard
    std::size_t total() const { return received + partial + remote; }
};
NodeBuffers buffers_of(const Nodes& nodes, int rank) {
    const std::size_t shards = nodes.shards_of_proxy(rank).size(), here = nodes.on(nodes.of(rank)).size();
    return {.received = 2 * (here - 1) * shards,
            .partial = here > 1 ? 2 * shards : 0,
            .remote = static_cast<std::size_t>(nodes.count() - 1)};
}

/// Elements of a segment in a hierarchical group: its buffers fit into the scratch of a group of one node.
std::int64_t segment_by_nodes(const Nodes& nodes, std::int64_t elements, DType type) {
    std::size_t most = 1;
    for (int rank = 0; rank < nodes.ranks(); ++rank) most = std::max(most, buffers_of(nodes, rank).total());
    const std::size_t bytes = reduce_scratch(nodes.ranks(), elements, type);
    return aligned_down(
        std::min(node_segment(elements), static_cast<std::int64_t>(bytes / size_of(type) / most)));
}

}  // namespace

std::size_t reduce_scratch(int ranks, std::int64_t elements, DType type) {
    if (ranks == 1 || elements == 0) return 0;
    // An arena without memory counts what the allocations take, padding included.
    backend::Arena measured;
    const std::int64_t segment = reduce_segment(ranks, type);
    for (int buffer = 0; buffer < sets_of(elements, segment) * (ranks - 1); ++buffer)
        measured.allocate(type, {std::min(elements, segment)});
    // The smallest segments of a hierarchical group, which has at most five buffers for each rank: with m
    // shards for each of the L ranks of a node, 2 L m and one for each other node, and m is at most 2 n / (L
    // + 1) of the n ranks.
    const auto least = static_cast<std::size_t>(5 * ranks * kSegmentAlignment) * size_of(type);
    return std::max(measured.peak(), least);
}

double sums_by_nodes(double nodes, double ranks, double elements, DType type) {
    if (nodes <= 1 || ranks <= 1) return 1;
    // As NodeBuffers and reduce_scratch(), where a rank exchanges as many shards as there are nodes.
    const double all = nodes * ranks, buffers = (2 * ranks + 1) * nodes - 1,
                 direct = std::min(static_cast<double>(kReduceBytes / size_of(type)) / (2 * (all - 1)),
                                   static_cast<double>(kMaxPiece)),
                 scratch = std::max((all - 1) * (elements > direct ? 2 * direct : elements),
                                    5 * all * kSegmentAlignment),
                 segment = std::min(scratch / buffers,
                                    static_cast<double>(node_segment(static_cast<std::int64_t>(elements))));
    return std::max(std::ceil(elements / segment), 1.0) * (nodes + 1);
}

void ProcessGroup::reduce(backend::Backend& b, std::span<const Tensor> terms, ops::Reduction reduction,
                          const Tensor& result) {
    if (result.empty()) return;
    const double before_s = b.counts().seconds;
    ops::reduce(b, terms, reduction, result);
    computed(b.counts().seconds - before_s);
}

Operation ProcessGroup::launch_reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& local,
                                              std::span<const std::int64_t> rows, ops::Reduction reduction,
                                              backend::Arena& scratch, Sums sums) {
    const RankRows parts(whole, rows, size_);
    check_same_form(local, parts[rank_]);
    if (size_ == 1) {
        if (local.data != whole.data) ops::copy(b, whole, local);
        return {};
    }
    if (parts.longest() == 0) return {};
    // NCCL's maximum ignores NaN.
    if (reduction == ops::Reduction::sum && !ordered(sums)) {
        for (int r = 0; r < size_; ++r)
            if (r != rank_ && !parts[r].empty()) count_message(parts[r].bytes());
        return until_ended(native_->begin_sum_scatter(parts, local));
    }
    return launch(CollectiveKind::reduce_scatter, bytes_of(parts), [&](Exchange what) {
        return reduce_scatter_by_ranks(b, parts, local, reduction, scratch, what);
    });
}

Operation ProcessGroup::reduce_scatter_by_ranks(backend::Backend& b, const RankRows& parts,
                                                const Tensor& local, ops::Reduction reduction,
                                                backend::Arena& scratch, Exchange what) {
    return nodes_.hierarchical() ? reduce_scatter_by_nodes(b, parts, local, reduction, scratch, what)
                                 : reduce_scatter_directly(b, parts, local, reduction, scratch, what);
}

/// A reduction tree or a ring would need less memory. But a ring adds the terms of each rank's part in
/// another order, so the bits of a sum would depend on which rank holds the element, and those of a tree on
/// its shape. Here terms are added in the order of ranks.
Operation ProcessGroup::reduce_scatter_directly(backend::Backend& b, RankRows parts, Tensor local,
                                                ops::Reduction reduction, backend::Arena& scratch,
                                                Exchange what) {
    struct Segment {
        std::vector<Tensor> buffers, terms;  ///< by rank
        Tensor result;
        Request request = 0;
    };
    const backend::ArenaScope scope(scratch);
    const std::int64_t step = reduce_segment(size_, local.dtype), longest = parts.longest();
    std::array<Segment, 2> segments;
    for (int set = 0; set < sets_of(local.size(), step); ++set)
        for (int r = 0; r < size_; ++r)
            segments[set].buffers.push_back(
                r == rank_ ? Tensor{} : scratch.allocate(local.dtype, {std::min(local.size(), step)}));
    // No rank is sent this rank's own rows, so the result may overwrite them segment by segment. All ranks
    // take as many steps as the longest part needs; a rank whose part has ended exchanges empty messages,
    // which exchange() leaves out on both sides.
    const auto start = [&](std::int64_t at) {
        Segment& segment = segments[at / step % 2];
        const std::vector<Tensor>& buffers = segment.buffers.empty() ? segments[0].buffers : segment.buffers;
        segment.result = RankRows::segment_of(local, at, step);
        segment.terms.resize(static_cast<std::size_t>(size_));
        // This rank's term stands at the place of its rank among the others, and not first or last.
        segment.terms[rank_] = parts.segment(rank_, at, step);
        segment.request = exchange_with_all(
            [&](int to) { return parts.segment(to, at, step); },
            [&](int from) { return segment.terms[from] = buffers[from].slice(0, segment.result.size()); },
            what);
    };
    start(0);
    for (std::int64_t at = 0; at < longest; at += step) {
        if (at + step < longest) start(at + step);
        Segment& segment = segments[at / step % 2];
        co_await AwaitedExchange{this, segment.request};
        // The buffers are used again for the segment after the next, although on a GPU this sum may not have
        // been taken yet: an exchange orders its receives after all operations that were issued before it.
        reduce(b, segment.terms, reduction, segment.result);
    }
}

namespace {

/// The reduce-scatter of a hierarchical group as one of its ranks sees it, segment by segment. Each rank
/// exchanges some shards for its node (Nodes::proxy): it receives these from the ranks of its node, sums them
/// in the order of ranks and sends each sum to the shard's rank, which adds one from every node, in their
/// order.
class PieceByNodes {
public:
    struct Transfer {
        int peer;
        Tensor tensor;
    };
    struct Transfers {
        std::vector<Transfer> sends, receives;
    };

    PieceByNodes(int rank, const Nodes& nodes, const RankRows& parts, const Tensor& local,
                 backend::Arena& scratch)
        : rank_(rank),
          node_(nodes.of(rank)),
          nodes_(nodes),
          parts_(parts),
          local_(local),
          peers_(nodes.peers(rank)),
          shards_(nodes.shards_of_proxy(rank)),
          step_(segment_by_nodes(nodes, parts.longest(), local.dtype)) {
        const NodeBuffers count = buffers_of(nodes, rank);
        const Tensor memory =
            scratch.allocate(local.dtype, {static_cast<std::int64_t>(count.total()) * step_});
        for (std::size_t i = 0; i < count.total(); ++i) {
            const auto begin = static_cast<std::int64_t>(i) * step_;
            (i < count.received                   ? received_
             : i < count.received + count.partial ? partial_buffers_
                                                  : remote_)
                .push_back(memory.slice(begin, begin + step_));
        }
    }

    std::int64_t step() const { return step_; }

    /// To and from the ranks of the node.
    Transfers within(std::int64_t at) {
        Transfers transfers;
        std::size_t buffer = set_of(at) * received_.size() / 2;
        std::vector<std::vector<Tensor>>& terms = terms_[set_of(at)];
        terms.assign(shards_.size(), std::vector<Tensor>(nodes_.on(node_).size()));
        for (std::size_t s = 0; s < shards_.size(); ++s)
            terms[s][nodes_.position(rank_)] = parts_.segment(shards_[s], at, step_);
        for (const int peer : peers_) {
            for (const int shard : nodes_.shards_of_proxy(peer))
                transfers.sends.push_back({peer, parts_.segment(shard, at, step_)});
            for (std::size_t s = 0; s < shards_.size(); ++s) {
                Tensor& term = terms[s][nodes_.position(peer)];
                term = received_[buffer++].slice(0, terms[s][nodes_.position(rank_)].size());
                transfers.receives.push_back({peer, term});
            }
        }
        return transfers;
    }
    /// After within() has arrived: the partial sums of the node.
    template <class Reduce>
    void sum_within(std::int64_t at, Reduce&& reduce) {
        partial_.clear();
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const std::vector<Tensor>& terms = terms_[set_of(at)][s];
            const Tensor local_term = terms[nodes_.position(rank_)];
            if (terms.size() == 1) {
                partial_.push_back(local_term);
                continue;
            }
            partial_.push_back(partial_buffers_[2 * s + set_of(at)].slice(0, local_term.size()));
            reduce(terms, partial_.back());
        }
    }
    /// Between nodes: partial sums to the ranks whose shards they belong to, and of this rank's shard.
    Transfers across(std::int64_t at) {
        Transfers transfers;
        result_ = RankRows::segment_of(local_, at, step_);
        totals_.clear();
        std::size_t buffer = 0;
        for (int node = 0; node < nodes_.count(); ++node) {
            if (node == node_) {
                for (std::size_t s = 0; s < shards_.size(); ++s)
                    if (shards_[s] == rank_) totals_.push_back(partial_[s]);
                continue;
            }
            totals_.push_back(remote_[buffer++].slice(0, result_.size()));
            transfers.receives.push_back({nodes_.proxy(node, rank_), totals_.back()});
        }
        for (std::size_t s = 0; s < shards_.size(); ++s)
            if (shards_[s] != rank_) transfers.sends.push_back({shards_[s], partial_[s]});
        return transfers;
    }
    /// After across() has arrived.
    template <class Reduce>
    void sum_across(Reduce&& reduce) {
        reduce(totals_, result_);
    }

private:
    std::size_t set_of(std::int64_t at) const { return static_cast<std::size_t>(at / step_ % 2); }

    int rank_, node_;
    const Nodes& nodes_;
    const RankRows& parts_;
    Tensor local_;
    std::vector<int> peers_;
    std::span<const int> shards_;
    std::int64_t step_;
    std::vector<Tensor> received_, partial_buffers_, remote_;  ///< of step_ elements each
    /// By set, shard and position: what within() exchanges.
    std::array<std::vector<std::vector<Tensor>>, 2> terms_;
    std::vector<Tensor> partial_;  ///< by shard: sums within the node
    std::vector<Tensor> totals_;   ///< by node: the partial sums of this rank's shard
    Tensor result_;
};

}  // namespace

Operation ProcessGroup::reduce_scatter_by_nodes(backend::Backend& b, RankRows parts, Tensor local,
                                                ops::Reduction reduction, backend::Arena& scratch,
                                                Exchange what) {
    const backend::ArenaScope scope(scratch);
    PieceByNodes segment(rank_, nodes_, parts, local, scratch);
    const auto messages = [](const std::vector<PieceByNodes::Transfer>& transfers) {
        std::vector<Message> list;
        for (const auto& [peer, tensor] : transfers) list.push_back({peer, tensor.data, tensor.bytes()});
        return list;
    };
    const auto begin_within = [&](std::int64_t at) {
        const PieceByNodes::Transfers transfers = segment.within(at);
        return exchange(messages(transfers.sends), messages(transfers.receives), what);
    };
    const auto begin_across = [&](std::int64_t at) {
        const PieceByNodes::Transfers transfers = segment.across(at);
        return exchange(messages(transfers.sends), messages(transfers.receives), what);
    };
    const auto sum = [&](std::span<const Tensor> terms, const Tensor& result) {
        reduce(b, terms, reduction, result);
    };
    // While the sums of one segment cross between nodes, the next segment is exchanged within them.
    const std::int64_t step = segment.step(), longest = parts.longest();
    Request in_node = begin_within(0), between = 0;
    for (std::int64_t at = 0; at < longest; at += step) {
        co_await AwaitedExchange{this, in_node};
        if (at + step < longest) in_node = begin_within(at + step);
        segment.sum_within(at, sum);
        if (at > 0) {
            co_await AwaitedExchange{this, between};
            segment.sum_across(sum);
        }
        between = begin_across(at);
    }
    co_await AwaitedExchange{this, between};
    segment.sum_across(sum);
}

}  // namespace maestro::collective
