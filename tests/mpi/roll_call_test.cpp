// An error of a wait names the ranks that do not answer, and no others.
#include "comm/roll_call.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "comm/environment.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"

using namespace maestro;

namespace {

constexpr double kTimeoutS = 1;  ///< of rank 0's waits: its roll calls last 0.25 s
constexpr double kSilentS = 1.6;

void be_silent(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

const auto never = [] { return false; };
const auto what = [] { return "what never comes"; };

/// A wait of rank 0 that reaches its deadline. `answers`: the end of its error.
template <class Ready>
void give_up(const comm::Communicator& world, Ready&& ready, const std::string& answers) {
    world.waiter().set_timeout(kTimeoutS);
    test::expect_error(ExitCode::peer_lost, "no answer for 1 s; waiting for what never comes" + answers + "$",
                       [&] {
                           try {
                               world.waiter().wait_until(ready, what);
                           } catch (const Error& error) {
                               throw Error(error.code(), std::string(error.what()) + "$");
                           }
                       });
    world.waiter().set_timeout(test::kHangS);
}

void all_others_wait(const comm::Communicator& world) {
    if (world.rank() == 0) give_up(world, never, "; all other ranks answer");
    world.barrier();
}

/// Rank 1 is silent, and others wait or compute. All answered the roll call before, which does not count.
void one_is_silent(const comm::Communicator& world) {
    const int computes = 2;
    if (world.rank() == 0) give_up(world, never, "; no answer from rank 1 (host 1)");
    if (world.rank() == 1) be_silent(kSilentS);
    if (world.rank() == computes)
        for (const double end = comm::now_s() + kSilentS; comm::now_s() < end;) {
            be_silent(0.02);
            world.waiter().poll_heartbeats();  // as between two tasks
        }
    world.barrier();
}

/// What is waited for comes during the roll call.
void the_wait_ends_in_time(const comm::Communicator& world) {
    if (world.rank() == 0) {
        world.waiter().set_timeout(kTimeoutS);
        const double begin = comm::now_s();
        world.waiter().wait_until([&] { return comm::now_s() > begin + 1.1 * kTimeoutS; }, what);
        world.waiter().set_timeout(test::kHangS);
    } else {
        be_silent(kSilentS);
    }
    world.barrier();
}

/// A heartbeat during the roll call, in which rank 1 is silent, restarts the deadline of the wait. After the
/// next deadline it is the last rank that is silent.
void a_heartbeat_ends_a_roll_call(const comm::Communicator& world) {
    const double swapped_s = 1.6;  // between the roll calls
    const double begin = comm::now_s();
    const int last = world.size() - 1;
    if (world.rank() == 0) {
        world.waiter().set_heartbeat_poll(
            [&, beats = 1]() mutable { return comm::now_s() > begin + 1.1 * kTimeoutS && beats-- > 0; });
        const std::string rank = std::to_string(last);
        give_up(world, never, "; no answer from rank " + rank + " (host " + rank + ")");
        world.waiter().set_heartbeat_poll({});
    } else if (world.rank() == 1) {
        be_silent(swapped_s);
    } else if (world.rank() == last) {
        const auto swapped = [&] { return comm::now_s() > begin + swapped_s; };
        world.waiter().wait_until(swapped, [] { return "its turn to be silent"; });
        be_silent(kSilentS);
    }
    world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        {
            const comm::RollCall roll_call(world, "host " + std::to_string(world.rank()));
            all_others_wait(world);
            one_is_silent(world);
            the_wait_ends_in_time(world);
            if (world.size() > 2) a_heartbeat_ends_a_roll_call(world);
        }
        if (world.rank() == 0) give_up(world, never, "");
    });
}
