// The main function of an MPI test: returns 0 if `body` returns on every rank, otherwise prints the error and
// aborts all ranks.
#pragma once

#include <cstdio>
#include <exception>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/environment.hpp"

namespace maestro::test {

/// Only a hang lasts longer, also where other work keeps the processors and the disk busy.
inline constexpr double kHangS = 90;

template <class Body>
int run(int argc, char** argv, Body&& body) {
    comm::Environment environment(argc, argv);
    try {
        comm::Waiter waiter(kHangS);
        const comm::Communicator world = comm::Communicator::world(waiter);
        body(world);
        world.barrier();
        return 0;
    } catch (const Error& e) {
        std::fprintf(stderr, "%s\n", e.what());
        comm::abort_world(static_cast<int>(e.code()));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        comm::abort_world(1);
    }
}

}  // namespace maestro::test
