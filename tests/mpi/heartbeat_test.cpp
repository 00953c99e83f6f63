// A rank that is at work keeps the others' deadline from passing, one that is silent does not.
#include "comm/heartbeat.hpp"

#include <chrono>
#include <thread>

#include "base/check.hpp"
#include "comm/agree.hpp"
#include "mpi/mpi_main.hpp"

using namespace maestro;

namespace {

constexpr double kTimeoutS = 2;

/// Every rank but 0 works at something for longer than any deadline, in turn and then all at once.
void work(const comm::Communicator& world, Pulse& pulse, bool all) {
    comm::agree(world, [&] {
        if (world.rank() == 0 || (!all && world.rank() != 1)) return;
        pulse.doing("writing something large");
        for (const double end = comm::now_s() + 3 * kTimeoutS + 4; comm::now_s() < end;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            pulse.beat();
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        comm::Waiter& waiter = world.waiter();
        const double usual_s = waiter.timeout_s();
        waiter.set_timeout(kTimeoutS);
        comm::Watchdog watchdog({.timeout_s = kTimeoutS, .who = "a rank", .on_hang = {}, .abort = {}});
        waiter.report_to(&watchdog);
        {
            comm::Heartbeat heartbeat(world, watchdog);
            work(world, heartbeat, false);
            work(world, heartbeat, true);
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
                for (int i = 0; i < 30; ++i) {  // at work for itself, and silent
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
