// Collectives, splits, groups and placement against values computed by hand, on any number of ranks.
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "comm/rendezvous.hpp"
#include "comm/topology.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"

namespace {

using namespace maestro;
using comm::Communicator;

void check_reductions(const Communicator& c) {
    const int n = c.size();
    const int r = c.rank();
    const double ranks = n * (n - 1) / 2.0;
    MAESTRO_CHECK(c.sum(r + 0.5) == ranks + 0.5 * n, "sum of doubles");
    MAESTRO_CHECK(c.sum(std::int64_t{r}) == static_cast<std::int64_t>(ranks), "sum of integers");
    MAESTRO_CHECK(c.max(-r) == 0, "maximum");

    constexpr std::size_t kLong = 1'000'003;
    std::vector<double> values(kLong);
    for (std::size_t i = 0; i < kLong; ++i) values[i] = static_cast<double>(i % 97) + r;
    c.allreduce_sum(std::span<double>(values));
    for (std::size_t i = 0; i < kLong; ++i)
        MAESTRO_CHECK(values[i] == static_cast<double>(i % 97) * n + ranks, "element {}", i);
    c.allreduce_sum(std::span<double>());
}

void check_messages(const Communicator& c) {
    const int last = c.size() - 1;
    std::vector<int> list;
    if (c.rank() == last) list = {4, 5, 6};
    c.broadcast(list, last);
    MAESTRO_CHECK((list == std::vector<int>{4, 5, 6}), "broadcast of a list");
    std::string text = c.rank() == 0 ? "a plan" : "";
    c.broadcast(text);
    MAESTRO_CHECK(text == "a plan", "broadcast of a text");
    const std::vector<int> part(static_cast<std::size_t>(c.rank()), c.rank());
    const auto all = c.gather(std::span<const int>(part));
    MAESTRO_CHECK(all.size() == (c.rank() == 0 ? static_cast<std::size_t>(c.size()) : 0u),
                  "gather on the root only");
    for (std::size_t i = 0; i < all.size(); ++i)
        MAESTRO_CHECK(all[i] == std::vector<int>(i, static_cast<int>(i)), "gather of rank {}", i);
    const auto names = c.gather("rank " + std::to_string(c.rank()), last);
    for (std::size_t i = 0; i < names.size(); ++i)
        MAESTRO_CHECK(names[i] == "rank " + std::to_string(i), "{}", names[i]);
    const std::vector<double> values = c.allgather(c.rank() * 2.0);
    for (std::size_t i = 0; i < values.size(); ++i)
        MAESTRO_CHECK(values[i] == 2.0 * static_cast<double>(i), "allgather");
    c.barrier();
}

void check_parts(const Communicator& world) {
    const Communicator parity = world.split(world.rank() % 2, -world.rank());
    MAESTRO_CHECK(parity.size() == (world.size() + 1 - world.rank() % 2) / 2, "{} ranks", parity.size());
    check_reductions(parity);
    const Communicator one = world.split(world.rank() == 0 ? 0 : -1, 0);
    MAESTRO_CHECK(static_cast<bool>(one) == (world.rank() == 0), "a member without a colour");

    std::vector<int> backwards(static_cast<std::size_t>(world.size()));
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    const Communicator turned = world.group(backwards, 7);
    MAESTRO_CHECK(turned.rank() == world.size() - 1 - world.rank(), "rank {} in the group", turned.rank());
    check_messages(turned);
    backwards.pop_back();  // rank 0 takes no part and must not be needed
    if (!backwards.empty()) {
        const Communicator others = world.group(backwards, 8);
        MAESTRO_CHECK(static_cast<bool>(others) == (world.rank() != 0), "membership");
        if (others) check_messages(others);
    }
}

void check_notices(const Communicator& world) {
    MAESTRO_CHECK(!world.notified(), "a notice from nowhere");
    world.barrier();  // a fast rank's notice may otherwise be there before a slow one has looked
    if (world.rank() != 0) world.notify(0);
    world.barrier();
    if (world.rank() == 0 && world.size() > 1)
        world.waiter().wait_until([&] { return world.notified(); }, [] { return std::string("a notice"); });
    world.barrier();
    MAESTRO_CHECK(world.rank() == 0 || !world.notified(), "rank {} has a notice of rank 0's", world.rank());
}

/// Twice, so that notices of the first rendezvous are there in the second.
void check_rendezvous(const Communicator& world) {
    const Communicator members = world.split(0, world.rank(), "a group");
    comm::Rendezvous rendezvous(members);
    for (const int late : {world.size() - 1, 0}) {
        if (world.rank() == late) world.barrier();
        rendezvous.begin();
        if (world.rank() != late) {
            const auto named = [&] {
                MAESTRO_CHECK(!rendezvous.test(), "rank {} was not waited for", late);
                return rendezvous.missing() == "rank " + std::to_string(late) + " of a group";
            };
            world.waiter().wait_until(named, [&] { return rendezvous.missing(); });
            world.barrier();
        }
        world.waiter().wait_until([&] { return rendezvous.test(); }, [&] { return rendezvous.missing(); });
    }
}

/// What the last rank throws is thrown by all, with the exit code for it.
void check_agreement(const Communicator& world) {
    const auto on_last = [&](auto&& thrown) {
        comm::agree(world, [&] {
            if (world.rank() == world.size() - 1) throw thrown;
        });
    };
    test::expect_error(ExitCode::io_error, "a disk", [&] { on_last(Error(ExitCode::io_error, "a disk")); });
    test::expect_error(ExitCode::device_memory, "memory", [&] { on_last(std::bad_alloc()); });
    test::expect_error(ExitCode::broken_invariant, "else", [&] { on_last(std::runtime_error("else")); });
}

void check_placement(const Communicator& world) {
    const comm::Topology t = comm::place_rank(world);
    MAESTRO_CHECK(t.ranks_on_node >= 1 && t.ranks_on_node <= world.size() && t.threads >= 1, "{}",
                  t.describe());
    MAESTRO_CHECK(t.ranks_on_node < world.size() || t.ranks_per_node == world.size(), "{} of {} ranks a node",
                  t.ranks_per_node, world.size());
    MAESTRO_CHECK(t.threads == 1 || t.threads * t.ranks_on_node <= t.cores, "{}", t.describe());
    MAESTRO_CHECK(!t.processors.empty() && !t.host.empty(), "{}", t.describe());
    comm::check_same_build(world);
    for (const auto& line : world.gather(t.describe())) std::printf("%s\n", line.c_str());
    if (world.rank() == 0) std::printf("%s\n", comm::library_versions().c_str());
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const Communicator& world) {
        check_reductions(world);
        check_messages(world);
        check_parts(world);
        check_notices(world);
        check_rendezvous(world);
        check_agreement(world);
        check_placement(world);
    });
}
