// A rank that is busy keeps the deadlines of the others from passing, one that is silent does not; and the
// number of messages for it stays small.
#include "comm/heartbeat.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>
#include <thread>

#include "base/check.hpp"
#include "mpi/mpi_main.hpp"

using namespace maestro;

namespace {

std::map<int, int> empty_messages;  ///< that this rank has sent, by receiver

}  // namespace

/// MPI's profiling interface: the program's MPI_Isend comes before the library's.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm communicator, MPI_Request* request) {
    if (count == 0) ++empty_messages[to];
    return PMPI_Isend(data, count, type, to, tag, communicator, request);
}

namespace {

constexpr double kTimeoutS = 1;
constexpr double kIntervalS = kTimeoutS / 4;
constexpr double kWaitS = 2.5;  ///< deadline of the waits for a rank at work
/// Longer than any deadline. The longest is the watchdog's, which leaves a rank that waits 8 s more than the
/// others: its clock runs three times as fast.
constexpr double kWorkS = 3.5;
double fast_clock() {
    return 3 * comm::now_s();
}

/// All ranks are busy at once and for several intervals.
void messages_are_few(const comm::Communicator& world, Pulse& pulse) {
    world.barrier();
    empty_messages.clear();
    const double begin = comm::now_s();
    while (comm::now_s() < begin + 4 * kIntervalS) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        pulse.beat();
    }
    const double intervals = (comm::now_s() - begin) / kIntervalS;
    const int branches = std::bit_width(static_cast<unsigned>(world.size() - 1));
    int most = 0;
    for (const auto& [to, count] : empty_messages) most = std::max(most, count);
    MAESTRO_CHECK(static_cast<int>(empty_messages.size()) <= branches && most <= 2 * intervals + 1,
                  "rank {} told {} ranks, one of them {} times in {:.1f} intervals", world.rank(),
                  empty_messages.size(), most, intervals);
    MAESTRO_CHECK(world.sum(static_cast<std::int64_t>(empty_messages.size())) > 0, "nobody told anybody");
}

/// Calls between() after each piece of work, for longer than any deadline.
template <class Between>
void work(const Between& between) {
    for (const double end = comm::now_s() + kWorkS; comm::now_s() < end;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        between();
    }
}

/// Rank 1 is busy with a file while rank 3, through which rank 4 hears of it, computes without a wait.
void one_rank_is_busy(const comm::Communicator& world, Pulse& pulse, comm::Watchdog& watchdog) {
    if (world.rank() == 1) {
        pulse.doing("writing something large");
        work([&] { pulse.beat(); });
    } else if (world.rank() == 3) {
        watchdog.doing("computing");
        work([&] {
            watchdog.progress();
            world.waiter().poll_heartbeats();
        });
    }
    world.barrier();
}

void all_ranks_but_0_are_busy(const comm::Communicator& world, Pulse& pulse) {
    if (world.rank() != 0) {
        pulse.doing("writing something large");
        work([&] { pulse.beat(); });
    }
    world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        comm::Waiter& waiter = world.waiter();
        const double usual_s = waiter.timeout_s();
        waiter.set_timeout(kTimeoutS);
        comm::Watchdog watchdog(
            {.timeout_s = kTimeoutS, .who = "a rank", .on_hang = {}, .abort = {}, .clock = fast_clock});
        waiter.report_to(&watchdog);
        {
            comm::Heartbeat heartbeat(world, watchdog);
            messages_are_few(world, heartbeat);
            waiter.set_timeout(kWaitS);
            one_rank_is_busy(world, heartbeat, watchdog);
            all_ranks_but_0_are_busy(world, heartbeat);
            waiter.set_timeout(kTimeoutS);
            watchdog.doing("waiting for a silent rank");
            bool gave_up = false;
            if (world.rank() != 1) {
                try {
                    waiter.wait_until([] { return false; }, [] { return "what never comes"; });
                } catch (const Error& error) {
                    gave_up = error.code() == ExitCode::peer_lost;
                }
                MAESTRO_CHECK(gave_up, "rank {} waited for ever", world.rank());
            } else {
                for (int i = 0; i < 20; ++i) {  // at work for itself, and silent
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    watchdog.progress();
                }
            }
            watchdog.pause();
        }
        waiter.report_to(nullptr);
        waiter.set_timeout(usual_s);
    });
}
