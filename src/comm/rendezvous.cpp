#include "comm/rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/check.hpp"
#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr double kLong = 0.5;    ///< seconds; nobody asks for the missing ranks of a shorter wait
constexpr int kFirstTag = 1024;  ///< of as many tags, by which a notice of an earlier rendezvous is known
}  // namespace

int Rendezvous::tag() const {
    return kFirstTag + static_cast<int>(number_ % kFirstTag);
}

void Rendezvous::begin() {
    ++number_;
    began_s_ = now_s();
    notified_ = false;
    waiting_.clear();
    MAESTRO_MPI(MPI_Ibarrier(members_->handle(), &barrier_));
}

bool Rendezvous::test() {
    int done = 0;
    MAESTRO_MPI(MPI_Test(&barrier_, &done, MPI_STATUS_IGNORE));
    if (done == 0 && now_s() < began_s_ + kLong) return false;
    for (int rank = 0; rank < members_->size() && done == 0 && !notified_; ++rank) {
        if (rank == members_->rank()) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        MAESTRO_MPI(MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag(), members_->handle(), &request));
        MAESTRO_MPI(MPI_Request_free(&request));  // an empty message has no buffer to wait for
    }
    notified_ = true;
    take_notices();
    return done != 0;
}

void Rendezvous::take_notices() {
    for (int there = 1; there != 0;) {
        MPI_Status status;
        MAESTRO_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, members_->handle(), &there, &status));
        if (there == 0) continue;
        MAESTRO_MPI(MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, members_->handle(),
                             MPI_STATUS_IGNORE));
        if (status.MPI_TAG == tag()) waiting_.insert(status.MPI_SOURCE);
    }
}

std::string Rendezvous::missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < members_->size(); ++rank)
        if (rank != members_->rank() && !waiting_.contains(rank))
            ranks.push_back(members_->world_rank_of(rank));
    return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                       members_->name());
}

}  // namespace maestro::comm
