// Sums and gathers by NCCL's own collectives, and the rendezvous of the ranks before them. Three ranks or
// more with a GPU each, so that NCCL's order of a sum is not the order of ranks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/backend.hpp"
#include "base/check.hpp"
#include "collective/process_group.hpp"
#include "mpi/mpi_main.hpp"
#include "mpi/shard_grid.hpp"
#include "support/device.hpp"

namespace {

using namespace maestro;
using collective::Sums;

constexpr std::int64_t kRows = 501;  // of each rank

struct Rig {
    explicit Rig(const comm::Communicator& world_, Sums sums)
        : world(world_),
          device(backend::make_cuda(world.rank())),
          group(collective::make_process_group(world.split(0, world.rank(), "data ranks"), *device, sums)),
          rows(static_cast<std::size_t>(world.size()), kRows),
          scratch(*device, std::size_t{1} << 20) {
        MAESTRO_CHECK(group->transport().starts_with("NCCL "), "{}", group->transport());
    }
    Tensor tensor(DType type, std::int64_t size) {
        memory.emplace_back(*device, static_cast<std::size_t>(size) * size_of(type));
        return {memory.back().data(), type, {size, 1}};
    }
    /// Its elements are those of `rank`.
    Tensor filled(DType type, int rank) {
        const Tensor made = tensor(type, kRows * world.size());
        std::vector<double> values;
        for (std::int64_t i = 0; i < made.size(); ++i) values.push_back(number(rank, i));
        testing_support::write_elements(*device, made, values);
        return made;
    }
    std::vector<double> values(const Tensor& t) const { return testing_support::read_elements(*device, t); }
    /// Between 1 and 2 on all ranks, so that a sum has the precision of its terms.
    static double number(int rank, std::int64_t i) {
        return 1.5 + 0.5 * std::sin(static_cast<double>(i * 17 + rank * 29));
    }
    double sum(std::int64_t i) const {
        double due = 0;
        for (int r = 0; r < world.size(); ++r) due += number(r, i);
        return due;
    }
    Tensor part(const Tensor& whole) const {
        return whole.slice(world.rank() * kRows, (world.rank() + 1) * kRows);
    }

    const comm::Communicator& world;
    std::unique_ptr<backend::Backend> device;
    std::unique_ptr<collective::ProcessGroup> group;
    std::vector<std::int64_t> rows;
    backend::Arena scratch;
    std::vector<backend::Buffer> memory;
};

double tolerance(DType type, int terms) {
    const double rounding = type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-53;
    return 2.0 * terms * terms * rounding;
}

void expect_sums(const Rig& rig, const std::vector<double>& found, std::int64_t first, DType type) {
    for (std::size_t i = 0; i < found.size(); ++i) {
        const double due = rig.sum(first + static_cast<std::int64_t>(i));
        MAESTRO_CHECK(std::abs(found[i] - due) <= tolerance(type, rig.world.size()),
                      "element {} of a sum in type {} is {}, not {}", i, static_cast<int>(type), found[i],
                      due);
    }
}

void sums_are_those_of_nccl(Rig& rig, Rig& ordered, DType type) {
    const int me = rig.world.rank();
    const auto reduce = [&](Rig& r, bool in_place) {
        const Tensor whole = r.filled(type, me), local = in_place ? r.part(whole) : r.tensor(type, kRows);
        r.group->reduce_scatter(*r.device, whole, local, r.rows, ops::Reduction::sum, r.scratch);
        return r.values(local);
    };
    const std::vector<double> parts = reduce(rig, false);
    expect_sums(rig, parts, me * kRows, type);
    MAESTRO_CHECK(reduce(rig, true) == parts, "a sum in place has other bits");
    MAESTRO_CHECK(rig.scratch.peak() == 0, "NCCL needs no scratch memory, and {} bytes were allocated",
                  rig.scratch.peak());
    // Other bits: this is not Maestro's sum.
    const std::int64_t others = rig.world.sum(std::int64_t{reduce(ordered, false) != parts});
    MAESTRO_CHECK(others > 0, "all ranks have the bits of the order of ranks");

    const Tensor values = rig.filled(type, me);
    rig.group->all_reduce(*rig.device, values, ops::Reduction::sum, rig.scratch);
    std::vector<double> all = rig.values(values);
    expect_sums(rig, all, 0, type);
    const std::vector<double> mine = all;
    rig.world.broadcast(all);
    MAESTRO_CHECK(all == mine, "an all-reduce does not have the bits of rank 0");

    rig.group->launch_all_gather(values, rig.rows).wait();  // in place
    MAESTRO_CHECK(rig.values(values) == all, "a gather in place changes what is equal on all ranks");
}

void gathers_have_the_parts_in_the_order_of_ranks(Rig& rig) {
    const Tensor whole = rig.filled(DType::f32, rig.world.rank());
    collective::Operation gather = rig.group->launch_all_gather(whole, rig.rows);
    while (!gather.advance()) rig.world.waiter().poll_heartbeats();
    const std::vector<double> found = rig.values(whole);
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        MAESTRO_CHECK(found[i] == static_cast<float>(Rig::number(static_cast<int>(at / kRows), at)),
                      "element {} of a gather", i);
    }
}

/// Rank 1 has no rows, and the others have some more than one another.
void parts_of_unequal_size_are_summed(Rig& rig, DType type) {
    std::vector<std::int64_t> rows;
    for (int r = 0; r < rig.world.size(); ++r) rows.push_back(r == 1 ? 0 : kRows - r);
    const auto me = rows.begin() + rig.world.rank();
    const std::int64_t first = std::accumulate(rows.begin(), me, std::int64_t{0}),
                       end = std::accumulate(me, rows.end(), first);
    for (const bool in_place : {false, true}) {
        const Tensor whole = rig.filled(type, rig.world.rank()).slice(0, end),
                     local = in_place ? whole.slice(first, first + *me) : rig.tensor(type, *me);
        rig.group->reduce_scatter(*rig.device, whole, local, rows, ops::Reduction::sum, rig.scratch);
        expect_sums(rig, rig.values(local), first, type);
        MAESTRO_CHECK(rig.scratch.peak() == 0, "NCCL does not sum parts of unequal size: {} bytes",
                      rig.scratch.peak());
    }
}

/// NCCL ignores NaN in a maximum.
void a_maximum_over_nan_is_nan(Rig& rig) {
    const Tensor values = rig.tensor(DType::f32, 3);
    const double odd = rig.world.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 5;
    testing_support::write_elements(*rig.device, values, {1, odd, 2});
    rig.group->all_reduce(*rig.device, values, ops::Reduction::max, rig.scratch);
    const std::vector<double> found = rig.values(values);
    MAESTRO_CHECK(found[0] == 1 && std::isnan(found[1]) && found[2] == 2, "a maximum is {}", found[1]);
}

/// Until the last rank has come, no device waits within an operation: it computes on. The sum is of what had
/// been issued before the rendezvous.
void ranks_meet_before_an_operation(Rig& rig) {
    const bool last = rig.world.rank() + 1 == rig.world.size();
    const Tensor whole = rig.filled(DType::f32, rig.world.rank());
    if (last) rig.world.barrier();
    collective::Operation meeting = rig.group->launch_rendezvous();
    if (!last) {
        for (int i = 0; i < 100; ++i) MAESTRO_CHECK(!meeting.advance(), "a rank was not waited for");
        MAESTRO_CHECK(meeting.describe().ends_with("of data ranks"), "{}", meeting.describe());
        static_cast<void>(rig.values(whole));  // waits for the device
        rig.world.barrier();
    }
    while (!meeting.advance()) rig.world.waiter().poll_heartbeats();
    collective::Operation sum = rig.group->launch_reduce_scatter(*rig.device, whole, rig.part(whole),
                                                                 rig.rows, ops::Reduction::sum, rig.scratch);
    while (!sum.advance()) rig.world.waiter().poll_heartbeats();
    expect_sums(rig, rig.values(rig.part(whole)), rig.world.rank() * kRows, DType::f32);
}

/// Each tp rank sums its gradients with its own counterparts, at other places of its arrays. Norms and shared
/// KV heads must be equal on all of them.
void copies_have_equal_sums(const comm::Communicator& world, std::int64_t size) {
    const test::Grid grid{.data = world.size() / 2, .tp = 2, .keys = 2};
    const auto device = backend::make_cuda(world.rank());
    const parallel::Mesh mesh = parallel::make_mesh(world, *device, test::shape_of(grid), "language");
    parallel::ParameterStore store(*device, mesh, "language", 1, DType::f32);
    test::declare(store, grid, mesh.tp_rank(), size);
    backend::Arena scratch(*device, std::max(store.copies_scratch(), store.reduce_scratch()));
    std::int64_t compared = 0;
    for (parallel::ParameterGroup& group : store.groups()) {
        if (!group.trainable()) continue;
        std::vector<double> partial;
        for (std::int64_t i = 0; i < group.size(); ++i) partial.push_back(Rig::number(world.rank(), i));
        testing_support::write_elements(*device, group.gradient(), partial);
        group.reduce_gradients(scratch);
        const std::vector<double> gradient = testing_support::read_elements(*device, group.gradient());
        std::vector<double> copies[2];  // by tp rank; each element is in the shard of one rank
        for (const parallel::Parameter* p : group.parameters())
            for (const parallel::Parameter::Replicated& r : p->replicated)
                for (std::int64_t i = p->offset + r.elements.begin; i < p->offset + r.elements.end; ++i)
                    for (int tp = 0; tp < 2; ++tp) {
                        const bool here =
                            tp == mesh.tp_rank() && i >= group.shard().begin && i < group.shard().end;
                        copies[tp].push_back(here ? gradient[static_cast<std::size_t>(i)] : 0);
                    }
        for (std::vector<double>& all : copies) world.allreduce_sum(all);
        MAESTRO_CHECK(copies[0] == copies[1], "two tp ranks have other sums of the same weights");
        compared += std::count_if(copies[0].begin(), copies[0].end(), [](double sum) { return sum > 1; });
    }
    MAESTRO_CHECK(compared > 0, "no weights have copies");
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        Rig rig(world, Sums::automatic), ordered(world, Sums::ordered);
        MAESTRO_CHECK(ordered.group->transport().ends_with(", sums in the order of ranks"), "{}",
                      ordered.group->transport());
        for (const DType type : {DType::f32, DType::f64, DType::bf16})
            sums_are_those_of_nccl(rig, ordered, type);
        for (const DType type : {DType::f32, DType::bf16}) parts_of_unequal_size_are_summed(rig, type);
        gathers_have_the_parts_in_the_order_of_ranks(rig);
        a_maximum_over_nan_is_nan(rig);
        ranks_meet_before_an_operation(rig);
        if (world.size() % 2 != 0) return;
        for (const std::int64_t rows : {1, 13, 45, 77, 109, 141}) copies_have_equal_sums(world, rows);
    });
}
