#include "collective/process_group.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "base/shard.hpp"
#include "ops/elementwise.hpp"

namespace maestro::collective {

namespace {

constexpr std::int64_t kPiece = 1 << 20;  ///< elements of a rank that are reduced at a time

std::int64_t sum(std::span<const std::int64_t> rows, std::size_t count) {
    return std::accumulate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), std::int64_t{0});
}

/// Where the rows of `rank` lie in a tensor that has all ranks' one below the other.
Tensor part(const Tensor& whole, std::span<const std::int64_t> rows, int rank) {
    const std::int64_t begin = sum(rows, static_cast<std::size_t>(rank));
    return whole.slice(begin, begin + rows[static_cast<std::size_t>(rank)]);
}

void check(const Tensor& whole, std::span<const std::int64_t> rows, int size) {
    MAESTRO_CHECK(
        static_cast<int>(rows.size()) == size && whole.rank == 2 && whole.dim(0) == sum(rows, rows.size()),
        "{} on {} ranks", whole.describe(), size);
}

void check(const Tensor& whole, const Tensor& own, std::span<const std::int64_t> rows, int rank, int size) {
    check(whole, rows, size);
    MAESTRO_CHECK(whole.dtype == own.dtype && own.rank == 2 &&
                      own.dim(0) == rows[static_cast<std::size_t>(rank)] && whole.columns() == own.columns(),
                  "{} of {}", own.describe(), whole.describe());
}

}  // namespace

ProcessGroup::Request ProcessGroup::exchange(std::vector<Message> out, std::vector<Message> in) {
    std::erase_if(out, [](const Message& m) { return m.bytes == 0; });
    std::erase_if(in, [](const Message& m) { return m.bytes == 0; });
    for (const Message& m : out) {
        ++traffic_.messages;
        traffic_.bytes += static_cast<std::int64_t>(m.bytes);
    }
    return begin(out, in);
}

ProcessGroup::Request ProcessGroup::exchange_with_all(const std::function<Tensor(int)>& outgoing,
                                                      const std::function<Tensor(int)>& incoming) {
    std::vector<Message> out, in;
    for (int i = 1; i < size_; ++i) {  // each begins with its next one: no rank is everyone's first
        const int to = (rank_ + i) % size_, from = (rank_ + size_ - i) % size_;
        const Tensor mine = outgoing(to), theirs = incoming(from);
        out.push_back({to, mine.data, mine.bytes()});
        in.push_back({from, theirs.data, theirs.bytes()});
    }
    return exchange(std::move(out), std::move(in));
}

ProcessGroup::Request ProcessGroup::start_all_gather(backend::Backend& b, const Tensor& own,
                                                     const Tensor& whole,
                                                     std::span<const std::int64_t> rows) {
    check(whole, own, rows, rank_, size_);
    ops::copy(b, own, part(whole, rows, rank_));
    return start_all_gather_in_place(whole, rows);
}

ProcessGroup::Request ProcessGroup::start_all_gather_in_place(const Tensor& whole,
                                                              std::span<const std::int64_t> rows) {
    check(whole, rows, size_);
    return exchange_with_all([&](int) { return part(whole, rows, rank_); },
                             [&](int from) { return part(whole, rows, from); });
}

ProcessGroup::Request ProcessGroup::start_all_to_all(backend::Backend& b, const Tensor& send,
                                                     std::span<const std::int64_t> send_rows,
                                                     const Tensor& received,
                                                     std::span<const std::int64_t> received_rows) {
    check(send, send_rows, size_);
    check(received, received_rows, size_);
    ops::copy(b, part(send, send_rows, rank_), part(received, received_rows, rank_));
    return exchange_with_all([&](int to) { return part(send, send_rows, to); },
                             [&](int from) { return part(received, received_rows, from); });
}

ProcessGroup::Request ProcessGroup::start_shift(backend::Backend& b, const Tensor& send,
                                                const Tensor& received, int distance) {
    MAESTRO_CHECK(send.dtype == received.dtype, "{} and {}", send.describe(), received.describe());
    const int step = ((distance % size_) + size_) % size_;
    if (step == 0) {
        ops::copy(b, send, received);
        return exchange({}, {});
    }
    return exchange({{(rank_ + step) % size_, send.data, send.bytes()}},
                    {{(rank_ + size_ - step) % size_, received.data, received.bytes()}});
}

void ProcessGroup::reduce_scatter(backend::Backend& b, const Tensor& whole, const Tensor& own,
                                  std::span<const std::int64_t> rows, ops::Reduction how,
                                  backend::Arena& scratch) {
    check(whole, own, rows, rank_, size_);
    if (size_ == 1) {
        if (own.data != whole.data) ops::copy(b, whole, own);
        return;
    }
    // In pieces, so that what comes from the others takes little memory however large the tensor is.
    const auto piece = [](const Tensor& t, std::int64_t at) {
        const Tensor flat = t.reshape({t.size()});
        return flat.slice(std::min(at, flat.size()), std::min(at + kPiece, flat.size()));
    };
    // Nobody is sent this rank's own rows, so the result may take their place.
    const std::int64_t longest = *std::max_element(rows.begin(), rows.end()) * whole.columns();
    for (std::int64_t at = 0; at < longest; at += kPiece) {
        const backend::ArenaScope scope(scratch);
        const Tensor mine = piece(own, at);
        std::vector<Tensor> parts(static_cast<std::size_t>(size_));
        parts[rank_] = piece(part(whole, rows, rank_), at);
        wait(exchange_with_all(
            [&](int to) { return piece(part(whole, rows, to), at); },
            [&](int from) { return parts[from] = scratch.allocate(own.dtype, {mine.size()}); }));
        if (!mine.empty()) ops::reduce(b, parts, how, mine);
    }
}

void ProcessGroup::all_reduce(backend::Backend& b, const Tensor& values, ops::Reduction how,
                              backend::Arena& scratch) {
    if (size_ == 1 || values.empty()) return;
    std::vector<std::int64_t> rows;
    for (int r = 0; r < size_; ++r) rows.push_back(part_of(values.size(), r, size_).size());
    const Tensor flat = values.reshape({values.size(), 1});
    reduce_scatter(b, flat, part(flat, rows, rank_), rows, how, scratch);
    wait(start_all_gather_in_place(flat, rows));
}

std::size_t reduce_scratch(int ranks, std::int64_t elements, DType type) {
    backend::Arena measured;
    for (int other = 1; other < ranks; ++other) measured.allocate(type, {std::min(elements, kPiece)});
    return measured.peak();
}

}  // namespace maestro::collective
