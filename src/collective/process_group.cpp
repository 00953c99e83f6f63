#include "collective/process_group.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/shard.hpp"
#include "ops/elementwise.hpp"

namespace maestro::collective {

namespace {

// A reduce-scatter receives from all other ranks at once, because the sum is taken in the order of ranks. The
// pieces that it receives at a time fill at most kReduceBytes, whatever the number of ranks. Few ranks do not
// need all of it, since longer messages than kMaxPiece are no faster.
constexpr std::size_t kReduceBytes = std::size_t{64} << 20;
constexpr std::int64_t kMaxPiece = 1 << 20;    ///< elements
constexpr std::int64_t kPieceAlignment = 128;  ///< elements; keeps every piece on an arena's alignment

/// Elements that a reduce-scatter takes from each rank at a time. The same on every rank.
std::int64_t reduce_piece(int ranks, DType type) {
    const auto senders = static_cast<std::size_t>(std::max(ranks - 1, 1));
    const auto elements = static_cast<std::int64_t>(kReduceBytes / size_of(type) / senders);
    return std::clamp(elements / kPieceAlignment * kPieceAlignment, kPieceAlignment, kMaxPiece);
}

/// A tensor that holds the rows of all ranks, concatenated in the order of ranks.
class RankRows {
public:
    RankRows(const Tensor& whole, std::span<const std::int64_t> rows, int size) : whole_(whole) {
        begin_.reserve(rows.size() + 1);
        begin_.push_back(0);
        for (const std::int64_t count : rows) begin_.push_back(begin_.back() + count);
        MAESTRO_CHECK(
            static_cast<int>(rows.size()) == size && whole.rank == 2 && whole.dim(0) == begin_.back(),
            "{} on {} ranks", whole.describe(), size);
    }
    Tensor operator[](int rank) const { return whole_.slice(begin_[rank], begin_[rank + 1]); }

private:
    Tensor whole_;
    std::vector<std::int64_t> begin_;  ///< first row by rank
};

void check_local(const Tensor& local, const Tensor& expected) {
    MAESTRO_CHECK(local.dtype == expected.dtype && local.rank == 2 && local.dim(0) == expected.dim(0) &&
                      local.columns() == expected.columns(),
                  "{} where {} belongs", local.describe(), expected.describe());
}

}  // namespace

ProcessGroup::Request ProcessGroup::exchange(std::vector<Message> sends, std::vector<Message> receives) {
    // A rank without rows sends no message, and its peers, which know its rows, do not wait for one. This
    // saves its latency, and the meta group counts the messages that a real group sends.
    std::erase_if(sends, [](const Message& m) { return m.bytes == 0; });
    std::erase_if(receives, [](const Message& m) { return m.bytes == 0; });
    for (const Message& m : sends) {
        ++traffic_.messages;
        traffic_.bytes += static_cast<std::int64_t>(m.bytes);
    }
    return begin(sends, receives);
}

template <class Outgoing, class Incoming>
ProcessGroup::Request ProcessGroup::exchange_with_all(const Outgoing& outgoing, const Incoming& incoming) {
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
    return exchange(std::move(sends), std::move(receives));
}

ProcessGroup::Request ProcessGroup::start_all_gather(backend::Backend& b, const Tensor& local,
                                                     const Tensor& whole,
                                                     std::span<const std::int64_t> rows) {
    const Tensor place = RankRows(whole, rows, size_)[rank_];
    check_local(local, place);
    ops::copy(b, local, place);
    return start_all_gather_in_place(whole, rows);
}

ProcessGroup::Request ProcessGroup::start_all_gather_in_place(const Tensor& whole,
                                                              std::span<const std::int64_t> rows) {
    const RankRows parts(whole, rows, size_);
    // The rows that are sent and those that are received do not overlap, so no copy is needed between.
    return exchange_with_all([&](int) { return parts[rank_]; }, [&](int from) { return parts[from]; });
}

ProcessGroup::Request ProcessGroup::start_all_to_all(backend::Backend& b, const Tensor& send,
                                                     std::span<const std::int64_t> send_rows,
                                                     const Tensor& received,
                                                     std::span<const std::int64_t> received_rows) {
    const RankRows outgoing(send, send_rows, size_), incoming(received, received_rows, size_);
    ops::copy(b, outgoing[rank_], incoming[rank_]);
    return exchange_with_all([&](int to) { return outgoing[to]; }, [&](int from) { return incoming[from]; });
}

ProcessGroup::Request ProcessGroup::start_shift(backend::Backend& b, const Tensor& send,
                                                const Tensor& received, int distance) {
    MAESTRO_CHECK(send.dtype == received.dtype, "{} and {}", send.describe(), received.describe());
    // The remainder of a negative number is negative in C++.
    const int step = ((distance % size_) + size_) % size_;
    if (step == 0) {
        ops::copy(b, send, received);
        return exchange({}, {});  // a request for the caller to wait for
    }
    return exchange({{(rank_ + step) % size_, send.data, send.bytes()}},
                    {{(rank_ + size_ - step) % size_, received.data, received.bytes()}});
}

void ProcessGroup::reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& local,
                                  std::span<const std::int64_t> rows, ops::Reduction reduction,
                                  backend::Arena& scratch) {
    const RankRows parts(whole, rows, size_);
    check_local(local, parts[rank_]);
    if (size_ == 1) {
        if (local.data != whole.data) ops::copy(b, whole, local);
        return;
    }
    // A reduction tree or a ring would need less memory. But a ring adds the terms of each rank's part in
    // another order, so the bits of a sum would depend on which rank holds the element, and those of a tree
    // on its shape. Here terms are added in the order of ranks. Pieces keep the memory small whatever the
    // tensor's size.
    const std::int64_t step = reduce_piece(size_, whole.dtype);
    const auto piece = [step](const Tensor& t, std::int64_t at) {
        const Tensor flat = t.reshape({t.size()});
        return flat.slice(std::min(at, flat.size()), std::min(at + step, flat.size()));
    };
    // No rank is sent this rank's own rows, so the result may overwrite them piece by piece. All ranks take
    // as many steps as the longest part needs; a rank whose part has ended exchanges empty messages, which
    // exchange() leaves out on both sides.
    const std::int64_t longest = *std::max_element(rows.begin(), rows.end()) * whole.columns();
    std::vector<Tensor> received(static_cast<std::size_t>(size_));
    for (std::int64_t at = 0; at < longest; at += step) {
        const backend::ArenaScope scope(scratch);
        const Tensor result = piece(local, at);
        // This rank's term stands at the place of its rank among the others, and not first or last.
        received[rank_] = piece(parts[rank_], at);
        wait(exchange_with_all(
            [&](int to) { return piece(parts[to], at); },
            [&](int from) { return received[from] = scratch.allocate(local.dtype, {result.size()}); }));
        // The scratch is used again for the next piece, although on a GPU this sum may not have been taken
        // yet: an exchange orders its receives after all operations that were issued before it.
        if (!result.empty()) ops::reduce(b, received, reduction, result);
    }
}

void ProcessGroup::all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction reduction,
                              backend::Arena& scratch) {
    if (size_ == 1 || values.empty()) return;
    // One rank sums an element and sends the result to all, so that all have the same bits. Each rank sends
    // 2 (n - 1) / n of the values, which is the least that an all-reduce of n ranks can do.
    std::vector<std::int64_t> rows;
    for (int r = 0; r < size_; ++r) rows.push_back(part_of(values.size(), r, size_).size());
    const Tensor flat = values.reshape({values.size(), 1});
    reduce_scatter(b, flat, RankRows(flat, rows, size_)[rank_], rows, reduction, scratch);
    wait(start_all_gather_in_place(flat, rows));
}

std::size_t reduce_scratch(int ranks, std::int64_t elements, DType type) {
    // An arena without memory counts what the allocations of reduce_scatter() take, padding included.
    backend::Arena measured;
    const std::int64_t piece = std::min(elements, reduce_piece(ranks, type));
    for (int sender = 1; sender < ranks; ++sender) measured.allocate(type, {piece});
    return measured.peak();
}

}  // namespace maestro::collective
