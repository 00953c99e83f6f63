// Collectives of a meta group whose times were measured: they take these times, and count all else as before.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "collective/process_group.hpp"
#include "support/collective_rows.hpp"

namespace maestro::collective {
namespace {

using testing_support::rows_of_link;
constexpr LinkCost kLink{.latency_s = 1e-5, .bandwidth = 1e12}, kAcross{.latency_s = 3e-5, .bandwidth = 1e11},
    kEndless{.latency_s = 1e3, .bandwidth = 1};
constexpr std::int64_t kRows = std::int64_t{1} << 20;  ///< of each rank
using Rows = std::vector<std::int64_t>;

Tensor rows_of(std::int64_t rows) {
    return Tensor(nullptr, DType::f32, {rows, 1});
}

/// What one rank of a group does, on a device that computes in no time unless it is given rates.
struct Work {
    ProcessGroup& group;
    backend::Backend& meta;
    backend::Arena scratch = {};
    int n = group.size();
    Rows equal = Rows(static_cast<std::size_t>(n), kRows);
    Tensor whole = rows_of(n * kRows), local = rows_of(kRows);

    void gather() { group.launch_all_gather(whole, equal).wait(); }
    void gather_at_once() { group.all_gather(meta, local, whole, equal); }
    void reduce_scatter() { group.reduce_scatter(meta, whole, local, equal, ops::Reduction::sum, scratch); }
    void all_reduce() { group.all_reduce(meta, whole, ops::Reduction::sum, scratch); }
    void all_to_all() { group.all_to_all(meta, whole, equal, whole, equal); }
    void two_gathers() {
        const auto first = group.start_all_gather_in_place(whole, equal),
                   second = group.start_all_gather_in_place(whole, equal);
        group.wait(first);
        group.wait(second);
    }
    /// A sum begins while a gather is under way.
    void gather_beside_a_sum() {
        const auto gathered = group.start_all_gather_in_place(whole, equal);
        Operation sum = group.launch_reduce_scatter(meta, whole, local, equal, ops::Reduction::sum, scratch);
        group.wait(gathered);
        sum.wait();
    }
    void unequal_parts() {
        Rows rows(static_cast<std::size_t>(n), 1000);
        rows[1] = 5000;
        rows[2] = 0;
        const std::int64_t all = 1000 * (n - 2) + 5000;
        group.launch_all_gather(rows_of(all), rows).wait();
        group.reduce_scatter(meta, rows_of(all), rows_of(rows[group.rank()]), rows, ops::Reduction::sum,
                             scratch);
        const std::int64_t mine = rows[static_cast<std::size_t>(group.rank())];
        group.all_to_all(meta, rows_of(all), rows, rows_of(mine * n), Rows(rows.size(), mine));
    }
    void shift() { group.wait(group.start_shift(meta, local, local, 1)); }
};
using Call = void (Work::*)();
constexpr Call kCalls[] = {&Work::gather,        &Work::gather_at_once,     &Work::reduce_scatter,
                           &Work::all_reduce,    &Work::all_to_all,         &Work::two_gathers,
                           &Work::unequal_parts, &Work::gather_beside_a_sum};

struct Done {
    Traffic traffic;
    std::size_t scratch;
};
Done run(std::unique_ptr<ProcessGroup> group, Call call, const backend::DeviceRates& rates = {}) {
    const auto meta = backend::make_meta(rates);
    Work work{*group, *meta};
    (work.*call)();
    Done done{group->traffic(), work.scratch.peak()};
    done.traffic.seconds += meta->counts().seconds;
    return done;
}

void expect_same_but_for_time(const Done& found, const Done& due) {
    EXPECT_EQ(found.traffic.messages, due.traffic.messages);
    EXPECT_EQ(found.traffic.bytes, due.traffic.bytes);
    EXPECT_EQ(found.scratch, due.scratch);
}

TEST(MeasuredMetaGroup, WithTheTimesOfItsLinkTakesAsLong) {
    const CollectiveTimes times(rows_of_link(4, 1, kLink));
    int number = 0;
    for (const Call call : kCalls)
        for (const int rank : {0, 1, 2}) {
            SCOPED_TRACE(testing::Message() << "call " << number++ / 3 << ", rank " << rank);
            const Done by_link = run(make_meta_group(rank, 4, kLink), call),
                       measured = run(make_meta_group(rank, 4, kEndless, {.times = times}), call);
            EXPECT_NEAR(measured.traffic.seconds, by_link.traffic.seconds, 1e-6 * by_link.traffic.seconds);
            expect_same_but_for_time(measured, by_link);
        }
}

TEST(MeasuredMetaGroup, AllReducesByItsPartsWhereOnlyTheyWereMeasured) {
    std::vector<CollectiveRow> rows = rows_of_link(CollectiveKind::all_gather, 4, 1, kLink);
    for (const CollectiveRow& row : rows_of_link(CollectiveKind::reduce_scatter, 4, 1, kLink))
        rows.push_back(row);
    const double due = run(make_meta_group(0, 4, kLink), &Work::all_reduce).traffic.seconds;
    EXPECT_NEAR(run(make_meta_group(0, 4, kEndless, {.times = CollectiveTimes(rows)}), &Work::all_reduce)
                    .traffic.seconds,
                due, 1e-6 * due);
}

TEST(MeasuredMetaGroup, LeavesToItsLinkWhatWasNotMeasured) {
    const CollectiveTimes times(rows_of_link(CollectiveKind::all_to_all, 4, 1, kEndless)),
        all(rows_of_link(4, 1, kEndless)), across(rows_of_link(4, 2, kEndless));
    const auto expect_link = [](Call call, const CollectiveTimes& measured) {
        EXPECT_EQ(run(make_meta_group(0, 4, kLink, {.times = measured}), call).traffic.seconds,
                  run(make_meta_group(0, 4, kLink), call).traffic.seconds);
    };
    for (const Call call : {&Work::gather, &Work::reduce_scatter, &Work::all_reduce})
        expect_link(call, times);
    for (const Call call : kCalls) expect_link(call, across);
    expect_link(&Work::shift, all);
}

/// On several nodes, where operations take several exchanges, within nodes and across them.
TEST(MeasuredMetaGroup, TakesTheWholeTimeOfAnOperationByNodes) {
    const Nodes nodes(std::vector<int>{0, 0, 1, 1});
    const CollectiveTimes times(rows_of_link(4, 2, kAcross));
    for (const Call call : {&Work::gather, &Work::reduce_scatter, &Work::all_reduce, &Work::unequal_parts}) {
        const Done by_nodes = run(make_meta_group(1, nodes, kLink, kLink), call),
                   measured = run(make_meta_group(1, nodes, kLink, kEndless, {.times = times}), call),
                   due = run(make_meta_group(1, 4, kAcross), call);
        // The all-to-all of unequal parts sends other shares to other nodes than that of equal ones.
        if (call != &Work::unequal_parts) {
            EXPECT_NEAR(measured.traffic.seconds, due.traffic.seconds, 1e-6 * due.traffic.seconds);
        }
        expect_same_but_for_time(measured, by_nodes);
    }
}

/// Ranks of a group that does not know its nodes are told of them.
TEST(MeasuredMetaGroup, IsOnTheNodesThatItIsTold) {
    const CollectiveTimes times(rows_of_link(4, 2, kAcross));
    for (const Call call : kCalls) {
        const double due = run(make_meta_group(0, 4, kAcross), call).traffic.seconds,
                     found = run(make_meta_group(0, 4, kEndless, {.times = times, .nodes = 2}), call)
                                 .traffic.seconds;
        EXPECT_NEAR(found, due, 1e-6 * due);
    }
}

/// Where a plan has no places yet, those that suit the collective best.
TEST(MeasuredMetaGroup, TakesTheLeastTimeOnAnyOfSomeNodes) {
    const auto seconds = [](const MeasuredGroup& measured) {
        return run(make_meta_group(0, 4, kEndless, measured), &Work::gather).traffic.seconds;
    };
    const double bytes = 4.0 * 4 * kRows;
    const CollectiveTimes times({{CollectiveKind::all_gather, 4, 1, bytes, 1},
                                 {CollectiveKind::all_gather, 4, 2, bytes, 7},
                                 {CollectiveKind::all_gather, 4, 4, bytes, 5}});
    EXPECT_EQ(seconds({.times = times}), 1);
    EXPECT_EQ(seconds({.times = times, .nodes = 2}), 7);
    EXPECT_EQ(seconds({.times = times, .nodes = 2, .most_nodes = 4}), 5);
}

/// What is computed within a collective is a part of its time.
TEST(MeasuredMetaGroup, SumsWithinTheMeasuredTime) {
    backend::DeviceRates rates;
    rates.bytes = 1e11;
    const double sums_s = run(make_meta_group(0, 4), &Work::reduce_scatter, rates).traffic.seconds;
    EXPECT_GT(sums_s, 0);
    for (const double seconds : {3 * sums_s, sums_s / 2}) {
        const CollectiveTimes times({{CollectiveKind::reduce_scatter, 4, 1, 4.0 * 4 * kRows, seconds}});
        const double found =
            run(make_meta_group(0, 4, {}, {.times = times}), &Work::reduce_scatter, rates).traffic.seconds;
        EXPECT_NEAR(found, std::max(seconds, sums_s), 1e-12);
    }
}

/// A planner's estimate of the operations of a reduce-scatter, of which the fixed costs add up among many
/// nodes.
TEST(MetaGroup, ComputesAsManySumsAmongNodesAsAreEstimated) {
    struct Case {
        int nodes, ranks;
        std::int64_t rows;
    };
    backend::DeviceRates rates;
    rates.operation_s = 1;
    for (const auto& [nodes, ranks, rows] : {Case{64, 4, 1000}, Case{64, 4, 30000}, Case{300, 2, 20000},
                                             Case{4, 8, kRows}, Case{8, 1, 1000}, Case{1, 8, 1000}}) {
        SCOPED_TRACE(testing::Message() << nodes << " nodes with " << ranks << " ranks, " << rows << " rows");
        std::vector<int> node_of;
        for (int rank = 0; rank < nodes * ranks; ++rank) node_of.push_back(rank / ranks);
        const auto group = make_meta_group(0, Nodes(node_of), {}, {}, {});
        const auto meta = backend::make_meta(rates);
        backend::Arena scratch;
        const Rows equal(node_of.size(), rows);
        group->reduce_scatter(*meta, rows_of(static_cast<std::int64_t>(node_of.size()) * rows), rows_of(rows),
                              equal, ops::Reduction::sum, scratch);
        const double found = meta->counts().seconds,
                     due = sums_by_nodes(nodes, ranks, static_cast<double>(rows), DType::f32);
        EXPECT_LT(std::max(found, due), 1.3 * std::min(found, due)) << found << " where " << due;
    }
}

/// Half of what an all-to-all sends in all crosses to the other of two nodes. What stays within a node is an
/// all-to-all of two ranks, and both go on at once.
TEST(MeasuredMetaGroup, ExchangesWithinNodesAndAcrossThemAtOnce) {
    const Nodes nodes(std::vector<int>{0, 0, 1, 1});
    const auto kind = CollectiveKind::all_to_all;
    const double bytes = 4.0 * 4 * kRows;
    const auto seconds = [&](double across_s, double within_s) {
        const CollectiveTimes times({{kind, 4, 2, bytes, across_s}, {kind, 2, 1, bytes / 2, within_s}});
        return run(make_meta_group(0, nodes, kEndless, kEndless, {.times = times}), &Work::all_to_all)
            .traffic.seconds;
    };
    EXPECT_NEAR(seconds(7, 2), 7, 1e-9);
    EXPECT_NEAR(seconds(2, 7), 7, 1e-9);
}

/// Where one rank of a group exchanges more than its tensors tell.
TEST(MeasuredMetaGroup, TakesTheTimeOfItsLoad) {
    const CollectiveTimes times(rows_of_link(4, 1, kLink));
    const double bytes = 4.0 * 4 * kRows;
    EXPECT_NEAR(run(make_meta_group(0, 4, kEndless, {.times = times, .load = 1.5}), &Work::all_to_all)
                    .traffic.seconds,
                *times.seconds(CollectiveKind::all_to_all, 4, 1, 1.5 * bytes), 1e-15);
}

}  // namespace
}  // namespace maestro::collective
