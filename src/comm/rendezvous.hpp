// A barrier that is polled and names the ranks that it waits for.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "comm/communicator.hpp"

namespace maestro::comm {

/// A barrier alone does not tell a rank which others have not come. A rank that has waited for half a second
/// therefore says to all others that it waits, and those that have said nothing are missing. Nothing else
/// travels on the communicator meanwhile. One rendezvous at a time.
class Rendezvous {
public:
    /// `members` outlives it.
    explicit Rendezvous(const Communicator& members) : members_(&members) {}
    /// This rank has come.
    void begin();
    bool begun() const { return barrier_ != MPI_REQUEST_NULL; }
    /// Whether all ranks have come; does not wait. Then the next one may begin.
    bool test();
    /// The ranks that have not come, as far as is known: "rank 3 of tensor ranks".
    std::string missing() const;

private:
    int tag() const;

    const Communicator* members_;
    MPI_Request barrier_ = MPI_REQUEST_NULL;
    std::int64_t number_ = 0;
    double began_s_ = 0;
    bool notified_ = false;
    std::set<int> waiting_;  ///< other ranks that have said so
};

}  // namespace maestro::comm
