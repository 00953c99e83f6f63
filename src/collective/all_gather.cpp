// All-gather across nodes: the rows of a rank reach every other node once, and are distributed there.
#include "collective/process_group.hpp"
#include "collective/rank_rows.hpp"

namespace maestro::collective {

Operation ProcessGroup::launch_all_gather(const Tensor& whole, std::span<const std::int64_t> rows) {
    const RankRows parts(whole, rows, size_);
    if (size_ == 1 || parts.longest() == 0) return {};
    if (native_ && parts.equal()) return until_ended(gather_natively(parts));
    return launch(CollectiveKind::all_gather, bytes_of(parts), [&](Exchange what) {
        return nodes_.hierarchical() ? all_gather_by_nodes(parts, what) : all_gather_directly(parts, what);
    });
}

Operation ProcessGroup::launch_all_gather(backend::Backend& b, const Tensor& local, const Tensor& whole,
                                          std::span<const std::int64_t> rows) {
    place_local(b, local, whole, rows);
    return launch_all_gather(whole, rows);
}

Operation ProcessGroup::all_gather_directly(RankRows parts, Exchange what) {
    co_await AwaitedExchange{this, exchange_with_all([&](int) { return parts[rank_]; },
                                                     [&](int from) { return parts[from]; }, what)};
}

Operation ProcessGroup::all_gather_by_nodes(RankRows parts, Exchange what) {
    const int node = nodes_.of(rank_);
    const std::vector<int> peers = nodes_.peers(rank_);
    const std::span<const int> shards = nodes_.shards_of_proxy(rank_);
    const std::int64_t longest = parts.longest(), step = node_segment(longest);
    const auto message = [&](int peer, int shard, std::int64_t at) {
        const Tensor segment = parts.segment(shard, at, step);
        return Message{peer, segment.data, segment.bytes()};
    };
    // This rank's rows to the rank of each other node that exchanges them, and from other nodes the rows that
    // this rank exchanges for its own.
    const auto begin_across = [&](std::int64_t at) {
        std::vector<Message> sends, receives;
        for (int other = 0; other < nodes_.count(); ++other)
            if (other != node) sends.push_back(message(nodes_.proxy(other, rank_), rank_, at));
        for (const int shard : shards)
            if (shard != rank_) receives.push_back(message(shard, shard, at));
        return exchange(std::move(sends), std::move(receives), what);
    };
    // Both to the other ranks of the node.
    const auto begin_within = [&](std::int64_t at) {
        std::vector<Message> sends, receives;
        for (const int peer : peers) {
            for (const int shard : shards) sends.push_back(message(peer, shard, at));
            for (const int shard : nodes_.shards_of_proxy(peer)) receives.push_back(message(peer, shard, at));
        }
        return exchange(std::move(sends), std::move(receives), what);
    };
    // Nothing but the rows themselves takes memory, so that two segments are under way within the node as
    // well.
    Request between = begin_across(0), in_node = 0;
    for (std::int64_t at = 0; at < longest; at += step) {
        co_await AwaitedExchange{this, between};
        if (at + step < longest) between = begin_across(at + step);
        const Request next = begin_within(at);
        if (at > 0) co_await AwaitedExchange{this, in_node};
        in_node = next;
    }
    co_await AwaitedExchange{this, in_node};
}

}  // namespace maestro::collective
