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
    if (done == 0 && !notified_ && now_s() >= began_s_ + kLong) {
        notified_ = true;
        for (int rank = 0; rank < members_->size(); ++rank)
            if (rank != members_->rank()) members_->notify(rank, tag());
    }
    // At the end also those of others that have waited longer, so that none is left there.
    if (done != 0 || notified_)
        while (const std::optional<Communicator::Notice> notice = members_->next_notice(MPI_ANY_TAG))
            if (notice->tag == tag()) waiting_.insert(notice->rank);
    return done != 0;
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
