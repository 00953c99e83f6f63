// The collectives of process groups by NCCL, between forked processes with a GPU each. The tensors hold small
// integers, whose sums are exact in every type and order: results are compared with closed forms, bit for
// bit.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "backend/gpus.hpp"
#include "collective/implementations.hpp"
#include "comm/communicator.hpp"
#include "fmt/format.h"
#include "json_line.hpp"
#include "peaks.hpp"
#include "shared_world.hpp"
#include "support/elements.hpp"
#include "training/checks.hpp"
#include "training/forked.hpp"
#include "transport/choice.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

using collective::Sums;
constexpr std::int64_t kColumns = 128;

/// Element i of what rank `rank` contributes: an integer between -5 and 5.
double value_of(int rank, std::int64_t i) {
    return static_cast<double>((i * 7 + rank * 3) % 11) - 5;
}
double sum_of(int ranks, std::int64_t i) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
    return sum;
}

/// One rank: its group and its GPU.
class Rank {
public:
    Rank(int rank, const CheckOptions& options)
        : small_(options.small),
          waiter_(options.seconds / 3),
          world_(comm::Communicator::world(waiter_, "the GPUs")),
          gpu_(backend::make_cuda(rank)) {
        gpu_->set_wait([this](const auto& ready, const std::string& what) {
            waiter_.wait_until(ready, [&] { return what; });
        });
        group_ =
            collective::make_nccl_group(comm::Communicator::world(waiter_, "the GPUs"),
                                        collective::Nodes(world_.size()), *gpu_, Sums::automatic, "NCCL");
        tensors_ = backend::Arena(*gpu_, 4 * bytes() + (std::size_t{1} << 20));
        scratch_ = backend::Arena(
            *gpu_, collective::reduce_scratch(world_.size(), elements(DType::f32), DType::f32) +
                       (std::size_t{1} << 16));
    }
    /// Returns how many cases were wrong on any rank.
    int check();

private:
    int rank() const { return world_.rank(); }
    int size() const { return world_.size(); }
    std::size_t bytes() const { return small_ ? std::size_t{1} << 18 : std::size_t{64} << 20; }
    std::int64_t elements(DType type) const { return static_cast<std::int64_t>(bytes() / size_of(type)); }

    using Expected = std::function<double(std::int64_t i)>;
    Tensor tensor(DType type, std::int64_t rows, const Expected& value) {
        const Tensor t = tensors_.allocate(type, {rows, kColumns});
        std::vector<std::byte> host(t.bytes());
        Tensor view = t;
        view.data = host.data();
        for (std::int64_t i = 0; i < t.size(); ++i) testing_support::set_element(view, i, value(i));
        if (t.size() > 0) gpu_->upload(host.data(), t);
        return t;
    }
    Tensor local(DType type, std::int64_t rows) {
        return tensor(type, rows, [this](std::int64_t i) { return value_of(rank(), i); });
    }
    Tensor result(DType type, std::int64_t rows) {
        return tensor(type, rows, [](std::int64_t) { return -77.0; });
    }
    /// Elements that differ.
    std::int64_t wrong(const Tensor& t, const Expected& expected) {
        std::vector<std::byte> host(t.bytes());
        if (t.size() > 0) gpu_->download(t, host.data());
        Tensor view = t;
        view.data = host.data();
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < t.size(); ++i)
            if (testing_support::element_of(view, i) != expected(i)) ++count;
        return count;
    }

    /// One case: prepare() makes tensors and returns what runs it and what counts its wrong elements.
    struct Case {
        std::function<void()> run;
        std::function<std::int64_t()> wrong;
    };
    /// `sent`: bytes that a rank sends; 0: not timed.
    void add(const char* operation, DType type, const char* how, double sent, const Case& one);

    Case exchange(DType type, std::int64_t most);
    Case shift(DType type, std::int64_t rows);
    Case gather(DType type, const std::vector<std::int64_t>& rows);
    Case reduce_scatter(DType type, const std::vector<std::int64_t>& rows, Sums sums);
    Case all_reduce(DType type, std::int64_t rows, Sums sums);
    void check(DType type);
    void measure(DType type);
    std::vector<std::int64_t> equal(std::int64_t rows) const {
        return std::vector<std::int64_t>(static_cast<std::size_t>(size()), rows);
    }
    /// Different rows on each rank, and none on the last one.
    std::vector<std::int64_t> unequal() const {
        std::vector<std::int64_t> rows = equal(0);
        for (std::size_t r = 0; r + 1 < rows.size(); ++r) rows[r] = static_cast<std::int64_t>(3 * r + 2);
        return rows;
    }

    bool small_;
    comm::Waiter waiter_;
    comm::Communicator world_;
    std::unique_ptr<backend::Backend> gpu_;
    std::unique_ptr<collective::ProcessGroup> group_;
    backend::Arena tensors_, scratch_;
    int failed_ = 0;
};

std::int64_t sum(const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}
std::int64_t before(const std::vector<std::int64_t>& rows, int rank) {
    return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
}

/// Rank a sends rank b (a + 2 b) % 3 rows of what it has, or `most` rows to each.
Rank::Case Rank::exchange(DType type, std::int64_t most) {
    const auto rows = [=](int from, int to) { return most > 0 ? most : std::int64_t{(from + 2 * to) % 3}; };
    std::vector<std::int64_t> out, in;
    for (int r = 0; r < size(); ++r) {
        out.push_back(rows(rank(), r));
        in.push_back(rows(r, rank()));
    }
    const Tensor sent = local(type, sum(out)), received = result(type, sum(in));
    const auto expected = [=, this](std::int64_t i) {
        int from = 0;
        std::int64_t at = i / kColumns;
        while (at >= in[static_cast<std::size_t>(from)]) at -= in[static_cast<std::size_t>(from++)];
        for (int to = 0; to < rank(); ++to) at += rows(from, to);
        return value_of(from, at * kColumns + i % kColumns);
    };
    return {[=, this] { group_->all_to_all(*gpu_, sent, out, received, in); },
            [=, this] { return wrong(received, expected); }};
}

Rank::Case Rank::shift(DType type, std::int64_t rows) {
    const Tensor sent = local(type, rows), received = result(type, rows);
    const int from = (rank() + size() - 1) % size();
    return {[=, this] { group_->wait(group_->start_shift(*gpu_, sent, received, 1)); },
            [=, this] { return wrong(received, [=](std::int64_t i) { return value_of(from, i); }); }};
}

Rank::Case Rank::gather(DType type, const std::vector<std::int64_t>& rows) {
    const Tensor part = local(type, rows[static_cast<std::size_t>(rank())]), whole = result(type, sum(rows));
    const auto expected = [=](std::int64_t i) {
        int from = 0;
        std::int64_t at = i;
        while (at >= rows[static_cast<std::size_t>(from)] * kColumns)
            at -= rows[static_cast<std::size_t>(from++)] * kColumns;
        return value_of(from, at);
    };
    return {[=, this] { group_->all_gather(*gpu_, part, whole, rows); },
            [=, this] { return wrong(whole, expected); }};
}

Rank::Case Rank::reduce_scatter(DType type, const std::vector<std::int64_t>& rows, Sums sums) {
    const Tensor whole = local(type, sum(rows)), part = result(type, rows[static_cast<std::size_t>(rank())]);
    const std::int64_t begin = before(rows, rank()) * kColumns;
    const int ranks = size();
    return {[=, this] {
                group_->launch_reduce_scatter(*gpu_, whole, part, rows, ops::Reduction::sum, scratch_, sums)
                    .wait();
            },
            [=, this] { return wrong(part, [=](std::int64_t i) { return sum_of(ranks, begin + i); }); }};
}

/// In place: a second run sums what the first one has left, so that it is checked after one run.
Rank::Case Rank::all_reduce(DType type, std::int64_t rows, Sums sums) {
    const Tensor values = local(type, rows);
    const int ranks = size();
    return {
        [=, this] { group_->launch_all_reduce(*gpu_, values, ops::Reduction::sum, scratch_, sums).wait(); },
        [=, this] { return wrong(values, [=](std::int64_t i) { return sum_of(ranks, i); }); }};
}

void Rank::add(const char* operation, DType type, const char* how, double sent, const Case& one) {
    one.run();
    const double found = world_.sum(static_cast<double>(one.wrong()));
    JsonLine line("collective");
    line.add("operation", operation)
        .add("dtype", name_of(type))
        .add("by", how)
        .add("ranks", static_cast<double>(size()))
        .add("wrong", found);
    if (sent > 0) {
        std::vector<double> times;
        DeviceTimer timer(gpu_->stream());
        for (int i = 0; i < (small_ ? 1 : 7); ++i) {
            world_.barrier();
            timer.start();
            one.run();
            times.push_back(world_.max(timer.stop()));
        }
        std::sort(times.begin(), times.end());
        const double seconds = std::max(times[times.size() / 2], 1e-9);
        line.add("bytes", sent).add("seconds", seconds).add("rate", sent / seconds);
    }
    if (rank() == 0) line.print();
    if (found > 0) ++failed_;
    tensors_.reset();
}

constexpr const char* kNccl = "NCCL";
constexpr const char* kSends = "NCCL's sends and receives";
constexpr const char* kOrdered = "NCCL's sends and Maestro's sums";

/// Small tensors of odd sizes.
void Rank::check(DType type) {
    add("exchange", type, kSends, 0, exchange(type, 0));
    add("shift", type, kSends, 0, shift(type, 5));
    add("all-gather", type, kNccl, 0, gather(type, equal(3)));
    add("all-gather of unequal parts", type, kSends, 0, gather(type, unequal()));
    add("reduce-scatter", type, kNccl, 0, reduce_scatter(type, equal(3), Sums::automatic));
    add("reduce-scatter", type, kOrdered, 0, reduce_scatter(type, equal(3), Sums::ordered));
    add("reduce-scatter of unequal parts", type, kOrdered, 0,
        reduce_scatter(type, unequal(), Sums::automatic));
    add("all-reduce", type, kNccl, 0, all_reduce(type, 7, Sums::automatic));
    add("all-reduce", type, kOrdered, 0, all_reduce(type, 7, Sums::ordered));
}

/// Large ones, which are timed as well.
void Rank::measure(DType type) {
    const std::int64_t each = elements(type) / kColumns / size();
    const auto sent =
        static_cast<double>(each * kColumns) * static_cast<double>(size_of(type)) * (size() - 1);
    add("exchange", type, kSends, sent, exchange(type, each));
    add("all-gather", type, kNccl, sent, gather(type, equal(each)));
    add("reduce-scatter", type, kNccl, sent, reduce_scatter(type, equal(each), Sums::automatic));
    add("reduce-scatter", type, kOrdered, sent, reduce_scatter(type, equal(each), Sums::ordered));
    add("all-reduce", type, kNccl, 2 * sent, all_reduce(type, each * size(), Sums::automatic));
}

int Rank::check() {
    for (const DType type : {DType::f32, DType::bf16}) check(type);
    add("all-reduce", DType::f64, kNccl, 0, all_reduce(DType::f64, 1, Sums::automatic));
    for (const DType type : {DType::f32, DType::bf16}) measure(type);
    return failed_;
}

/// The body of a process. Errors are reported before anything is destroyed: that may wait for other ranks.
int run_rank(SharedWorld& world, int rank, const CheckOptions& options) {
    join_world(world, rank);
    std::unique_ptr<Rank> one;
    try {
        one = std::make_unique<Rank>(rank, options);
        if (rank == options.missing_rank)
            for (;;) pause();
        const int failed = one->check();
        one.reset();
        return failed > 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::fflush(nullptr);
        _exit(static_cast<int>(error.code()));
    }
}

}  // namespace

int check_collectives(const CheckOptions& options) {
    const auto skip = [](const std::string& why) {
        JsonLine("collective").add("skipped", why).print();
        return 0;
    };
    if (transport::nccl_version().empty()) return skip("built without NCCL");
    // In another process, because CUDA does not work after a fork of a process that has used it.
    const int gpus = exit_code_of(options.seconds, [] { return backend::find_gpus().count; });
    if (gpus < 0) throw Error(ExitCode::broken_invariant, "the GPUs could not be counted in time");
    if (gpus < 2) return skip(fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s"));
    const int ranks = std::min(gpus, kMostRanks);
    const auto world = make_shared_world(ranks, options.seconds / 3);
    const std::string wrong =
        run_forked(ranks, options.seconds, [&](int rank) { return run_rank(*world, rank, options); });
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    return !wrong.empty();
}

}  // namespace maestro::gpu_check
