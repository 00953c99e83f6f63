// Collective operations on tensors against values that every rank computes by itself, and their traffic
// against closed forms and against the same operations of a meta group.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/check.hpp"
#include "collective/process_group.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/device.hpp"

namespace {

using namespace maestro;
using collective::ProcessGroup;
using testing_support::element_of;
using testing_support::set_element;
using Rows = std::vector<std::int64_t>;

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f64};

/// A whole number below 8, so that sums of a few are exact in every type.
double value_of(int rank, std::int64_t element, int salt) {
    return static_cast<double>((rank * 31 + element * 7 + salt * 13 + element * element % 5) % 8);
}

struct Rig {
    explicit Rig(const comm::Communicator& world)
        : device(testing_support::make_device(1, world.rank())),
          group(collective::make_process_group(world.split(0, world.rank(), "tensor ranks"), *device)),
          counting(collective::make_meta_group(world.rank(), world.size())) {}

    Tensor tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
        memory.emplace_back(
            *device, std::max<std::size_t>(1, static_cast<std::size_t>(rows * columns) * size_of(dtype)));
        const Tensor made(memory.back().data(), dtype, {rows, columns});
        fill(made, [](std::int64_t) { return -77; });
        return made;
    }
    template <class Value>
    void fill(const Tensor& t, Value&& value) {
        std::vector<double> values;
        for (std::int64_t i = 0; i < t.size(); ++i) values.push_back(value(i));
        testing_support::write_elements(*device, t, values);
    }
    std::vector<double> values(const Tensor& t) { return testing_support::read_elements(*device, t); }
    /// Both have sent the same, and so much.
    void check_traffic(std::int64_t bytes, const char* what) {
        MAESTRO_CHECK(group->traffic().bytes == bytes && counting->traffic().bytes == bytes &&
                          group->traffic().messages == counting->traffic().messages,
                      "{}: {} bytes in {} messages, a meta group {} in {}, expected {}", what,
                      group->traffic().bytes, group->traffic().messages, counting->traffic().bytes,
                      counting->traffic().messages, bytes);
        group->reset_traffic();
        counting->reset_traffic();
    }
    int rank() const { return group->rank(); }
    int size() const { return group->size(); }

    std::unique_ptr<backend::Backend> device, meta = backend::make_meta();
    std::unique_ptr<ProcessGroup> group, counting;
    backend::Arena scratch{*device, 1 << 20}, counted;
    std::vector<backend::Buffer> memory;
};

Rows random_rows(std::mt19937& random, int size) {
    Rows rows;
    for (int r = 0; r < size; ++r) rows.push_back(std::uniform_int_distribution<std::int64_t>(0, 6)(random));
    return rows;
}

std::int64_t sum(const Rows& rows, int count) {
    std::int64_t all = 0;
    for (int r = 0; r < count; ++r) all += rows[static_cast<std::size_t>(r)];
    return all;
}

void gathers_and_scatters(Rig& rig, DType dtype, std::mt19937& random) {
    const Rows rows = random_rows(random, rig.size());
    const std::int64_t columns = std::uniform_int_distribution<std::int64_t>(1, 5)(random);
    const std::int64_t all = sum(rows, rig.size()), mine = rows[static_cast<std::size_t>(rig.rank())];
    const std::int64_t row_bytes = columns * static_cast<std::int64_t>(size_of(dtype));

    const Tensor shard = rig.tensor(dtype, mine, columns), whole = rig.tensor(dtype, all, columns);
    rig.fill(shard, [&](std::int64_t i) { return value_of(rig.rank(), i, 1); });
    rig.group->all_gather(*rig.device, shard, whole, rows);
    rig.counting->all_gather(*rig.meta, shard, whole, rows);
    const std::vector<double> gathered = rig.values(whole);
    for (int r = 0; r < rig.size(); ++r)
        for (std::int64_t i = 0; i < rows[static_cast<std::size_t>(r)] * columns; ++i)
            MAESTRO_CHECK(gathered[static_cast<std::size_t>(sum(rows, r) * columns + i)] == value_of(r, i, 1),
                          "{} of rank {} in a gather", i, r);
    rig.check_traffic((rig.size() - 1) * mine * row_bytes, "all-gather");

    for (const ops::Reduction how : {ops::Reduction::sum, ops::Reduction::max}) {
        rig.fill(whole, [&](std::int64_t i) { return value_of(rig.rank(), i, 2); });
        rig.group->reduce_scatter(*rig.device, whole, shard, rows, how, rig.scratch);
        rig.counting->reduce_scatter(*rig.meta, whole, shard, rows, how, rig.counted);
        const std::int64_t first = sum(rows, rig.rank()) * columns;
        const std::vector<double> found = rig.values(shard);
        for (std::int64_t i = 0; i < shard.size(); ++i) {
            double due = 0;
            for (int r = 0; r < rig.size(); ++r)
                due = how == ops::Reduction::sum ? due + value_of(r, first + i, 2)
                                                 : std::max(due, value_of(r, first + i, 2));
            MAESTRO_CHECK(found[static_cast<std::size_t>(i)] == due, "{} in a reduce-scatter: {}, not {}", i,
                          found[static_cast<std::size_t>(i)], due);
        }
        rig.check_traffic((all - mine) * row_bytes, "reduce-scatter");
        MAESTRO_CHECK(rig.scratch.mark() == 0 && rig.counted.mark() == 0, "scratch memory is not released");
    }
}

void exchanges(Rig& rig, DType dtype, std::mt19937& random) {
    // counts[from][to], the same on every rank
    std::vector<Rows> counts;
    for (int r = 0; r < rig.size(); ++r) counts.push_back(random_rows(random, rig.size()));
    const std::int64_t columns = 3;
    Rows coming;
    for (const Rows& from : counts) coming.push_back(from[static_cast<std::size_t>(rig.rank())]);
    const Rows& going = counts[static_cast<std::size_t>(rig.rank())];
    const Tensor send = rig.tensor(dtype, sum(going, rig.size()), columns),
                 received = rig.tensor(dtype, sum(coming, rig.size()), columns);
    rig.fill(send, [&](std::int64_t i) { return value_of(rig.rank(), i, 3); });
    rig.group->all_to_all(*rig.device, send, going, received, coming);
    rig.counting->all_to_all(*rig.meta, send, going, received, coming);
    const std::vector<double> found = rig.values(received);
    for (int from = 0; from < rig.size(); ++from) {
        const std::int64_t there = sum(counts[static_cast<std::size_t>(from)], rig.rank()) * columns,
                           here = sum(coming, from) * columns;
        for (std::int64_t i = 0; i < coming[static_cast<std::size_t>(from)] * columns; ++i)
            MAESTRO_CHECK(found[static_cast<std::size_t>(here + i)] == value_of(from, there + i, 3),
                          "{} from rank {}", i, from);
    }
    rig.check_traffic((sum(going, rig.size()) - going[static_cast<std::size_t>(rig.rank())]) * columns *
                          static_cast<std::int64_t>(size_of(dtype)),
                      "all-to-all");
}

/// Two shifts and a gather under way at once, ended in another order than begun.
void overlaps(Rig& rig) {
    const Rows rows(static_cast<std::size_t>(rig.size()), 2);
    const auto filled = [&](std::int64_t count, int salt) {
        const Tensor made = rig.tensor(DType::f32, count, 2);
        rig.fill(made, [&](std::int64_t i) { return value_of(rig.rank(), i, salt); });
        return made;
    };
    const Tensor shard = filled(2, 4), forth = filled(5, 5), back = filled(5, 6);
    const Tensor ahead = rig.tensor(DType::f32, 5, 2), behind = rig.tensor(DType::f32, 5, 2),
                 whole = rig.tensor(DType::f32, 2 * rig.size(), 2);
    const auto first = rig.group->start_shift(*rig.device, forth, ahead, 1);
    const auto second = rig.group->start_shift(*rig.device, back, behind, -2);
    const auto third = rig.group->start_all_gather(*rig.device, shard, whole, rows);
    rig.group->wait(third);
    rig.group->wait(first);
    rig.group->wait(second);
    const int n = rig.size();
    const auto expect = [&](const Tensor& found, int from, int salt, const char* what) {
        const std::vector<double> values = rig.values(found);
        for (std::int64_t i = 0; i < found.size(); ++i)
            MAESTRO_CHECK(values[static_cast<std::size_t>(i)] == value_of(from, i, salt), "{} of {}", i,
                          what);
    };
    expect(ahead, (rig.rank() + n - 1) % n, 5, "a shift by one");
    expect(behind, (rig.rank() + 2) % n, 6, "a shift back by two");
    for (int r = 0; r < n; ++r) expect(whole.slice(2 * r, 2 * r + 2), r, 4, "a gather beside shifts");
    rig.group->reset_traffic();
}

/// More than any buffer on the way holds, in both directions.
void long_messages_come_whole(Rig& rig) {
    const std::int64_t bytes = std::int64_t{testing_support::kOnGpu ? 40 : 4} << 20, size = bytes / 4 + 3;
    const Tensor send = rig.tensor(DType::f32, size, 1), received = rig.tensor(DType::f32, size, 1);
    const auto value = [](int rank, std::int64_t i) { return static_cast<double>((i * 7 + rank) % 100003); };
    rig.fill(send, [&](std::int64_t i) { return value(rig.rank(), i); });
    rig.group->wait(rig.group->start_shift(*rig.device, send, received, 1));
    const std::vector<double> found = rig.values(received);
    const int from = (rig.rank() + rig.size() - 1) % rig.size();
    for (std::int64_t i = 0; i < size; ++i)
        MAESTRO_CHECK(found[static_cast<std::size_t>(i)] == value(from, i), "{} of a long message", i);
    rig.group->reset_traffic();
    rig.memory.clear();
}

/// Ranks that do not mean the same: noticed where it arrives. NCCL does not look at sizes.
void unlike_sizes_are_noticed(const comm::Communicator& world) {
    Rig rig(world);
    if (rig.size() == 1 || rig.group->transport().starts_with("NCCL")) return;
    const Tensor shard = rig.tensor(DType::f32, 2, 2), ahead = rig.tensor(DType::f32, 5, 2);
    const auto wrong = rig.group->start_shift(*rig.device, shard, ahead, 1);
    test::expect_error(ExitCode::broken_invariant, "expected", [&] { rig.group->wait(wrong); });
}

/// Numbers whose sum depends on the order: the same bits on every rank, and those of the sum in rank order.
void sums_have_the_same_bits(const comm::Communicator& world, Rig& rig, DType dtype) {
    constexpr std::int64_t kSize = 1003;
    const auto number = [](int rank, std::int64_t i) {
        return std::sin(static_cast<double>(i * 17 + rank * 29)) * std::pow(10.0, (i + rank) % 7);
    };
    const Tensor values = rig.tensor(dtype, kSize, 1);
    rig.fill(values, [&](std::int64_t i) { return number(rig.rank(), i); });
    rig.group->all_reduce(*rig.device, values, ops::Reduction::sum, rig.scratch, collective::Sums::ordered);
    rig.counting->all_reduce(*rig.meta, values, ops::Reduction::sum, rig.counted);
    std::vector<double> first = rig.values(values);
    for (std::int64_t i = 0; i < kSize; ++i) {
        double memory = 0;
        const Tensor one(&memory, dtype, {1, 1});
        double due = 0;
        for (int r = 0; r < rig.size(); ++r) {
            set_element(one, 0, number(r, i));
            const double next = element_of(one, 0);
            due = dtype == DType::f64
                      ? due + next
                      : static_cast<double>(static_cast<float>(due) + static_cast<float>(next));
        }
        set_element(one, 0, due);
        MAESTRO_CHECK(first[static_cast<std::size_t>(i)] == element_of(one, 0), "{} of a sum", i);
    }
    const std::vector<double> mine = first;
    world.broadcast(first);
    MAESTRO_CHECK(first == mine, "not the bits of rank 0");
    // A ring's two ways round, uneven parts: all but its own, and its own to all others.
    const std::int64_t shard = (kSize + rig.size() - 1 - rig.rank()) / rig.size();
    const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
    rig.check_traffic(rig.size() == 1 ? 0 : (kSize - shard + (rig.size() - 1) * shard) * bytes, "all-reduce");
}

/// Longer than what is reduced at a time, on some ranks.
void large_sums_take_little_scratch(Rig& rig) {
    constexpr std::int64_t kPiece = 1 << 20;
    Rows rows;
    for (int r = 0; r < rig.size(); ++r) rows.push_back(kPiece / 2 + r * kPiece + r);
    const std::int64_t all = sum(rows, rig.size()), first = sum(rows, rig.rank());
    const Tensor whole = rig.tensor(DType::f32, all, 1),
                 shard = rig.tensor(DType::f32, rows[static_cast<std::size_t>(rig.rank())], 1);
    rig.fill(whole, [&](std::int64_t i) { return static_cast<double>((i + rig.rank()) % 1009); });
    backend::Arena scratch(*rig.device,
                           static_cast<std::size_t>(2 * (rig.size() - 1) * kPiece) * sizeof(float)),
        counted;
    rig.group
        ->launch_reduce_scatter(*rig.device, whole, shard, rows, ops::Reduction::sum, scratch,
                                collective::Sums::ordered)
        .wait();
    rig.counting->reduce_scatter(*rig.meta, whole, shard, rows, ops::Reduction::sum, counted);
    MAESTRO_CHECK(scratch.peak() == counted.peak(), "{} bytes of scratch, {} of a meta group", scratch.peak(),
                  counted.peak());
    const std::vector<double> found = rig.values(shard);
    for (std::int64_t i = 0; i < shard.size(); ++i) {
        std::int64_t due = 0;
        for (int r = 0; r < rig.size(); ++r) due += (first + i + r) % 1009;
        MAESTRO_CHECK(found[static_cast<std::size_t>(i)] == static_cast<double>(due), "{} of a large sum", i);
    }
    rig.check_traffic((all - shard.size()) * 4, "large reduce-scatter");
    rig.memory.clear();
}

/// Groups that know of nodes, with ranks distributed over them in any way: sums are taken on each node in the
/// order of ranks and then in the order of nodes, and all ranks together send as much as without nodes.
void nodes_sum_first(const comm::Communicator& world, Rig& rig, std::mt19937& random) {
    const auto size = static_cast<std::size_t>(rig.size());
    std::vector<int> node_of;
    for (std::size_t r = 0; r < size; ++r) node_of.push_back(std::uniform_int_distribution(0, 2)(random));
    const collective::Nodes nodes(node_of);
    const auto group = collective::make_process_group(world.split(0, world.rank(), "nodes"), *rig.device,
                                                      collective::Sums::automatic, nodes);
    const auto counting = collective::make_meta_group(rig.rank(), nodes, {}, {});
    // Some parts have several segments, some none.
    Rows rows;
    for (std::size_t r = 0; r < size; ++r)
        rows.push_back(std::uniform_int_distribution<std::int64_t>(0, 3)(random) * 40000 +
                       (r % 2 == 0 ? 7 : 0));
    const std::int64_t all = sum(rows, rig.size()), first = sum(rows, rig.rank());
    const std::int64_t mine = rows[static_cast<std::size_t>(rig.rank())];
    const auto number = [](int rank, std::int64_t i) {
        return static_cast<float>(std::sin(static_cast<double>(i * 17 + rank * 29)) *
                                  std::pow(10.0, (i + rank) % 7));
    };
    const Tensor whole = rig.tensor(DType::f32, all, 1);
    const Tensor shard = whole.slice(first, first + mine);  // in place
    rig.fill(whole, [&](std::int64_t i) { return number(rig.rank(), i); });
    const std::size_t planned =
        collective::reduce_scratch(rig.size(), *std::max_element(rows.begin(), rows.end()), DType::f32);
    backend::Arena scratch(*rig.device, planned), counted;
    group
        ->launch_reduce_scatter(*rig.device, whole, shard, rows, ops::Reduction::sum, scratch,
                                collective::Sums::ordered)
        .wait();
    counting->reduce_scatter(*rig.meta, whole, shard, rows, ops::Reduction::sum, counted);
    MAESTRO_CHECK(scratch.peak() == counted.peak() && counted.peak() <= planned,
                  "{} bytes of scratch, planned {}", counted.peak(), planned);
    const std::vector<double> found = rig.values(shard);
    for (std::int64_t i = 0; i < mine; ++i) {
        float due = 0;
        for (int node = 0; node < nodes.count(); ++node) {
            float partial = 0;
            for (const int r : nodes.on(node))
                partial = r == nodes.on(node)[0] ? number(r, first + i) : partial + number(r, first + i);
            due = node == 0 ? partial : due + partial;
        }
        MAESTRO_CHECK(found[static_cast<std::size_t>(i)] == static_cast<double>(due), "{} of a sum by nodes",
                      i);
    }
    const auto check_traffic = [&](const char* what) {
        MAESTRO_CHECK(group->traffic().bytes == counting->traffic().bytes &&
                          group->traffic().messages == counting->traffic().messages,
                      "{}: {} bytes, a meta group {}", what, group->traffic().bytes,
                      counting->traffic().bytes);
        const std::int64_t bytes = world.sum(group->traffic().bytes), due = (rig.size() - 1) * all * 4;
        MAESTRO_CHECK(bytes == due, "{}: {} bytes of all ranks, expected {}", what, bytes, due);
        group->reset_traffic();
        counting->reset_traffic();
    };
    check_traffic("reduce-scatter by nodes");

    rig.fill(whole,
             [&](std::int64_t i) { return i >= first && i < first + mine ? number(rig.rank(), i) : -1.0; });
    collective::Operation gather = group->launch_all_gather(whole, rows);
    while (!gather.advance()) world.waiter().poll_heartbeats();
    counting->launch_all_gather(whole, rows).wait();
    const std::vector<double> gathered = rig.values(whole);
    for (int r = 0; r < rig.size(); ++r)
        for (std::int64_t i = sum(rows, r); i < sum(rows, r + 1); ++i)
            MAESTRO_CHECK(gathered[static_cast<std::size_t>(i)] == static_cast<double>(number(r, i)),
                          "{} of rank {} in a gather by nodes", i, r);
    check_traffic("all-gather by nodes");
    rig.memory.clear();
}

/// On N nodes of L ranks with arrays of P bytes, a rank sends P (N - 1) / (N L) bytes to other nodes and
/// P (L - 1) / L within its own, in either operation, and both at the same time.
void nodes_take_time() {
    constexpr int kNodes = 3, kEach = 4;
    constexpr std::int64_t kShard = std::int64_t{1} << 22;
    const auto meta = backend::make_meta();
    std::vector<int> node_of;
    for (int r = 0; r < kNodes * kEach; ++r) node_of.push_back(r / kEach);
    const Rows rows(node_of.size(), kShard);
    const double whole_bytes = 4.0 * kNodes * kEach * kShard;
    const Tensor whole(nullptr, DType::f32, {kNodes * kEach * kShard, 1}),
        shard(nullptr, DType::f32, {kShard, 1});
    const double across = whole_bytes * (kNodes - 1) / (kNodes * kEach),
                 within = whole_bytes * (kEach - 1) / kEach;
    for (const auto& [node_bandwidth, network] :
         {std::pair{0.0, 1.0}, std::pair{1.0, 0.0}, std::pair{9.0, 2.0}}) {
        const auto group =
            collective::make_meta_group(5, collective::Nodes(node_of), {0, node_bandwidth}, {0, network});
        backend::Arena counted;
        const double slower =
            std::max(node_bandwidth > 0 ? within / node_bandwidth : 0, network > 0 ? across / network : 0);
        const auto check = [&](const char* what) {
            // Segments leave one of them without a partner at each end.
            const double ratio = group->traffic().seconds / slower;
            MAESTRO_CHECK(ratio > 0.999 && ratio < (node_bandwidth > 0 && network > 0 ? 1.15 : 1.001),
                          "{}: {} of the time of the slower link", what, ratio);
            group->reset_traffic();
        };
        group->reduce_scatter(*meta, whole, shard, rows, ops::Reduction::sum, counted);
        check("reduce-scatter");
        group->launch_all_gather(whole, rows).wait();
        check("all-gather");
    }
}

/// What a rank needs for a sum does not grow with the number of ranks, and is what the memory plan counts.
void scratch_is_bounded() {
    constexpr std::size_t kBound = std::size_t{64} << 20;
    const auto meta = backend::make_meta();
    for (const DType dtype : kTypes)
        for (const int ranks : {2, 17, 18, 1000, 1024}) {
            constexpr std::int64_t kElements = (std::int64_t{1} << 21) + 1;
            const auto group = collective::make_meta_group(ranks / 2, ranks);
            const Rows rows(static_cast<std::size_t>(ranks), kElements);
            backend::Arena counted;
            group->reduce_scatter(*meta, Tensor(nullptr, dtype, {ranks * kElements, 1}),
                                  Tensor(nullptr, dtype, {kElements, 1}), rows, ops::Reduction::sum, counted);
            MAESTRO_CHECK(counted.peak() <= kBound, "{} bytes of scratch on {} ranks", counted.peak(), ranks);
            const std::size_t planned = collective::reduce_scratch(ranks, kElements, dtype);
            MAESTRO_CHECK(counted.peak() == planned, "{} bytes of scratch, planned {}", counted.peak(),
                          planned);
            const auto bytes =
                static_cast<std::int64_t>(ranks - 1) * kElements * static_cast<std::int64_t>(size_of(dtype));
            MAESTRO_CHECK(group->traffic().bytes == bytes, "{} bytes, expected {}", group->traffic().bytes,
                          bytes);
        }
}

void meta_groups_take_time() {
    const auto counting = collective::make_meta_group(1, 4, {1e-3, 1e6});
    const auto meta = backend::make_meta();
    const Tensor shard(nullptr, DType::f32, {250, 1}), whole(nullptr, DType::f32, {1000, 1});
    const Rows rows(4, 250);
    counting->all_gather(*meta, shard, whole, rows);
    MAESTRO_CHECK(counting->traffic().messages == 3 && counting->traffic().bytes == 3000,
                  "three messages of 1000 bytes");
    MAESTRO_CHECK(std::abs(counting->traffic().seconds - (1e-3 + 3e-3)) < 1e-12, "{} s",
                  counting->traffic().seconds);
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        Rig rig(world);
        std::mt19937 random(1);  // the same draws on every rank
        for (int trial = 0; trial < 20; ++trial)
            for (const DType dtype : kTypes) {
                gathers_and_scatters(rig, dtype, random);
                exchanges(rig, dtype, random);
                rig.memory.clear();
            }
        overlaps(rig);
        long_messages_come_whole(rig);
        for (const DType dtype : kTypes) sums_have_the_same_bits(world, rig, dtype);
        large_sums_take_little_scratch(rig);
        for (int trial = 0; trial < 6; ++trial) nodes_sum_first(world, rig, random);
        unlike_sizes_are_noticed(world);
        scratch_is_bounded();
        meta_groups_take_time();
        nodes_take_time();
    });
}
