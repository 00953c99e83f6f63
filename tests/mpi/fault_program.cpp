// What faults.sh runs: rank 1 sends rows of its device to two others, and does what the argument says.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "backend/arena.hpp"
#include "channel/open.hpp"
#include "comm/check.hpp"
#include "comm/environment.hpp"
#include "comm/roll_call.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "support/device.hpp"

namespace {

using namespace maestro;

void misbehave(const std::string& how) {
    if (how == "kill") std::raise(SIGKILL);
    if (how == "stop") std::raise(SIGSTOP);
    if (how == "sleep")
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    if (how == "blocked") {  // inside MPI, where no deadline of ours reaches
        int none = 0;
        MAESTRO_MPI(MPI_Recv(&none, 1, MPI_INT, 0, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    if (how == "throw") throw Error(ExitCode::io_error, "rank 1 alone cannot write");
}

void run(const comm::Communicator& world, comm::Watchdog& watchdog, const std::string& how) {
    const comm::RollCall roll_call(world, "here");
    channel::ChannelSpec spec;
    spec.name = "vision-language";
    spec.producers = {{1}};
    spec.consumers = {{0}, {2}};
    spec.width = 4;
    spec.max_sent = 4;
    spec.max_received = 2;
    spec.max_samples = 8;
    spec.carries_gradient = false;
    const auto device = testing_support::make_device(1, world.rank());
    const transport::Backends ends{device.get(), device.get()};
    const auto [channels, description] = channel::open_channels(
        world, std::span(&spec, 1), channel::TransportRequest::automatic, std::span(&ends, 1));
    channel::Channel& channel = *channels[0];
    const backend::Buffer memory(*device, 64);
    const Tensor rows(memory.data(), DType::f32, {4, 4});
    testing_support::write_elements(*device, rows, std::vector<double>(16, 1.0));
    for (int step = 0;; ++step) {
        const std::vector<channel::Route> routes = {{10, 0, 0, 0, {{0, 0, 0, 0, 2}}},
                                                    {11, 0, 0, 1, {{0, 0, 2, 0, 2}}}};
        channel.begin_step(step, routes);
        if (world.rank() == 1) {
            watchdog.doing("section vision, forward of micro-batch 0 of step " + std::to_string(step));
            if (step == 3) misbehave(how);
            channel.wait_credit();
            channel.put(0, rows);
        } else {
            watchdog.doing("section language, forward of micro-batch 0 of step " + std::to_string(step));
            const std::int64_t sample = world.rank() == 0 ? 10 : 11;
            channel.wait_arrived(sample);
            channel.release(std::span(&sample, 1));
        }
        channel.end_step();
    }
}

}  // namespace

int main(int argc, char** argv) {
    comm::Environment environment(argc, argv);
    if (const char* path = std::getenv("MAESTRO_STARTED")) std::ofstream(path) << "started\n";
    try {
        comm::Waiter waiter(3);
        const comm::Communicator world = comm::Communicator::world(waiter);
        comm::Watchdog watchdog({3, "rank " + std::to_string(world.rank()), {}, {}});
        waiter.report_to(&watchdog);
        comm::check_same_build(world);
        if (argc > 1 && std::strcmp(argv[1], "build") != 0) run(world, watchdog, argv[1]);
        return 0;
    } catch (const Error& e) {
        std::fprintf(stderr, "error: %s\n", e.what());
        if (e.scope() == Scope::all_ranks) return static_cast<int>(e.code());
        comm::abort_world(static_cast<int>(e.code()));
    }
}
