#include "comm/heartbeat.hpp"

#include <algorithm>

#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr int kTag = 1;
constexpr double kIntervalS = 1.0;
}  // namespace

Heartbeat::Heartbeat(const Communicator& world, Watchdog& watchdog)
    : watchdog_(watchdog),
      world_(world.split(0, world.rank(), "heartbeat")),
      interval_s_(std::min(kIntervalS, world.waiter().timeout_s() / 4)) {
    world.waiter().listen_to([this] { return heard(); });
}

Heartbeat::~Heartbeat() {
    world_.waiter().listen_to({});
}

void Heartbeat::doing(const std::string& what) noexcept {
    try {
        watchdog_.doing(what);
    } catch (...) {  // no memory for a text: the last one stands
    }
    beat();
}

// What fails here is not told: if the others hear nothing for too long, they say so themselves.
void Heartbeat::beat() noexcept {
    watchdog_.progress();
    const double now = now_s();
    // One rank's word is enough for all, so of many that are at work one speaks in each interval.
    if (world_.size() < 2 || now - last_s_ < interval_s_ || heard()) return;
    last_s_ = now;
    for (int rank = 0; rank < world_.size(); ++rank) {
        if (rank == world_.rank()) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, kTag, world_.handle(), &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

bool Heartbeat::heard() noexcept {
    bool any = false;
    for (;;) {
        int there = 0;
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, world_.handle(), &there, &status) != MPI_SUCCESS || there == 0)
            return any;
        if (MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kTag, world_.handle(), MPI_STATUS_IGNORE) !=
            MPI_SUCCESS)
            return any;
        any = true;
        last_s_ = now_s();
    }
}

}  // namespace maestro::comm
