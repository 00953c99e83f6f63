#include "collective/process_group.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/shard.hpp"
#include "collective/rank_rows.hpp"
#include "ops/elementwise.hpp"

namespace maestro::collective {

ProcessGroup::Request ProcessGroup::exchange(std::vector<Message> sends, std::vector<Message> receives,
                                             Exchange what) {
    // A rank without rows sends no message, and its peers, which know its rows, do not wait for one. This
    // saves its latency, and the meta group counts the messages that a real group sends.
    std::erase_if(sends, [](const Message& m) { return m.bytes == 0; });
    std::erase_if(receives, [](const Message& m) { return m.bytes == 0; });
    for (const Message& m : sends) {
        ++traffic_.messages;
        traffic_.bytes += static_cast<std::int64_t>(m.bytes);
    }
    return begin_as(what, sends, receives);
}

ProcessGroup::Request ProcessGroup::exchange_with_all(const std::function<Tensor(int)>& outgoing,
                                                      const std::function<Tensor(int)>& incoming,
                                                      Exchange what) {
    std::vector<Message> sends, receives;
    sends.reserve(static_cast<std::size_t>(size_));
    receives.reserve(static_cast<std::size_t>(size_));
    // Every rank begins with the rank after it. If all began with rank 0, its link would be the bottleneck.
    for (int i = 1; i < size_; ++i) {
        const int to = (rank_ + i) % size_, from = (rank_ + size_ - i) % size_;
        const Tensor sent = outgoing(to), received = incoming(from);
        sends.push_back({to, sent.data, sent.bytes()});
        receives.push_back({from, received.data, received.bytes()});
    }
    return exchange(std::move(sends), std::move(receives), what);
}

void ProcessGroup::place_local(backend::Backend& b, const Tensor& local, const Tensor& whole,
                               std::span<const std::int64_t> rows) const {
    const Tensor place = RankRows(whole, rows, size_)[rank_];
    check_same_form(local, place);
    ops::copy(b, local, place);
}

ProcessGroup::Request ProcessGroup::start_all_gather(backend::Backend& b, const Tensor& local,
                                                     const Tensor& whole,
                                                     std::span<const std::int64_t> rows) {
    place_local(b, local, whole, rows);
    return start_all_gather_in_place(whole, rows);
}

ProcessGroup::Request ProcessGroup::start_all_gather_in_place(const Tensor& whole,
                                                              std::span<const std::int64_t> rows) {
    return gather_in_place(RankRows(whole, rows, size_), Exchange::all_gather);
}

ProcessGroup::Request ProcessGroup::gather_in_place(const RankRows& parts, Exchange what) {
    if (native_ && parts.equal() && size_ > 1 && parts.longest() > 0) return gather_natively(parts);
    // The rows that are sent and those that are received do not overlap, so no copy is needed between.
    return exchange_with_all([&](int) { return parts[rank_]; }, [&](int from) { return parts[from]; }, what);
}

ProcessGroup::Request ProcessGroup::start_all_to_all(backend::Backend& b, const Tensor& send,
                                                     std::span<const std::int64_t> send_rows,
                                                     const Tensor& received,
                                                     std::span<const std::int64_t> received_rows) {
    const RankRows outgoing(send, send_rows, size_), incoming(received, received_rows, size_);
    ops::copy(b, outgoing[rank_], incoming[rank_]);
    return exchange_with_all([&](int to) { return outgoing[to]; }, [&](int from) { return incoming[from]; },
                             Exchange::all_to_all);
}

ProcessGroup::Request ProcessGroup::start_shift(backend::Backend& b, const Tensor& send,
                                                const Tensor& received, int distance) {
    MAESTRO_CHECK(send.dtype == received.dtype, "{} and {}", send.describe(), received.describe());
    // The remainder of a negative number is negative in C++.
    const int step = ((distance % size_) + size_) % size_;
    if (step == 0) {
        ops::copy(b, send, received);
        return exchange({}, {}, Exchange::messages);  // a request for the caller to wait for
    }
    return exchange({{(rank_ + step) % size_, send.data, send.bytes()}},
                    {{(rank_ + size_ - step) % size_, received.data, received.bytes()}}, Exchange::messages);
}

ProcessGroup::Request ProcessGroup::gather_natively(const RankRows& parts) {
    count(1, parts[rank_].bytes());
    return native_->begin_all_gather(parts[rank_], parts.whole());
}

void ProcessGroup::count(int parts, std::size_t bytes) {
    traffic_.messages += parts * (size_ - 1);
    traffic_.bytes += parts * (size_ - 1) * static_cast<std::int64_t>(bytes);
}

Operation ProcessGroup::until_ended(Request request) {
    co_await AwaitedExchange{this, request};
}

Operation ProcessGroup::until_both(Operation algorithm, Request whole) {
    co_await std::move(algorithm);
    co_await AwaitedExchange{this, whole};
}

Operation ProcessGroup::launch(CollectiveKind kind, double bytes,
                               const std::function<Operation(Exchange)>& algorithm) {
    const std::optional<Request> whole = begin_whole(kind, bytes);
    return whole ? until_both(algorithm(Exchange::part), *whole) : algorithm(Exchange::messages);
}

double ProcessGroup::bytes_of(const RankRows& parts) const {
    const auto all = static_cast<double>(parts.whole().bytes()),
               local = static_cast<double>(parts[rank_].bytes()), others = static_cast<double>(size_ - 1);
    return std::max(all - local, local * others) * size_ / others;
}

Operation ProcessGroup::launch_all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction reduction,
                                          backend::Arena& scratch, Sums sums) {
    if (size_ == 1 || values.empty()) return {};
    if (reduction == ops::Reduction::sum && !ordered(sums)) {
        count(2, values.bytes() / static_cast<std::size_t>(size_));
        return until_ended(native_->begin_all_sum(values));
    }
    // One rank sums an element and sends the result to all, so that all have the same bits. Each rank sends
    // 2 (n - 1) / n of the values, which is the least that an all-reduce of n ranks can do.
    std::vector<std::int64_t> rows;
    for (int r = 0; r < size_; ++r) rows.push_back(part_of(values.size(), r, size_).size());
    const Tensor flat = values.reshape({values.size(), 1});
    return launch(CollectiveKind::all_reduce, static_cast<double>(values.bytes()), [&](Exchange what) {
        return all_reduce_in_parts(b, flat, std::move(rows), reduction, scratch, what);
    });
}

Operation ProcessGroup::all_reduce_in_parts(backend::Backend& b, Tensor flat, std::vector<std::int64_t> rows,
                                            ops::Reduction reduction, backend::Arena& scratch,
                                            Exchange what) {
    const RankRows parts(flat, rows, size_);
    const bool whole = what == Exchange::part;
    if (whole)
        co_await reduce_scatter_by_ranks(b, parts, parts[rank_], reduction, scratch, what);
    else
        co_await launch_reduce_scatter(b, flat, parts[rank_], rows, reduction, scratch, Sums::ordered);
    co_await AwaitedExchange{this, gather_in_place(parts, whole ? what : Exchange::all_gather)};
}

}  // namespace maestro::collective
