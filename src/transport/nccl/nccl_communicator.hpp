// A communicator of NCCL as a value. It is non-blocking: whatever takes other ranks, is waited for in a
// Waiter or looked at in turns.
#pragma once

#include <nccl.h>

#include <exception>
#include <string>

#include "comm/communicator.hpp"

namespace maestro::transport {

/// Owns the communicator. Calls of one at a time, by any thread whose GPU is the communicator's.
class NcclCommunicator {
public:
    static ncclUniqueId make_id();
    /// Begins to make it, as rank `rank` of `size`; settle() says when it is there. All its ranks have the
    /// `id` that one has made. `name` is for messages; `blocks`: how much of a GPU a call may take, at most
    /// (0: as NCCL likes it). The waiter outlives it.
    NcclCommunicator(std::string name, comm::Waiter& waiter, const ncclUniqueId& id, int rank, int size,
                     int blocks = 0);
    /// With the other ranks, unless an exception flies. What is in streams ends first.
    ~NcclCommunicator();
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;
    operator ncclComm_t() const { return handle_; }

    /// For what a call returns: throws where it has failed. It may still be in progress.
    void begun(ncclResult_t found, const char* expression) const;
    /// Whether what was begun is through, without waiting. Throws what NCCL has found since.
    bool settled() const;
    /// Returns once it is, which may take the other ranks. Error(peer_lost) after the deadline.
    void settle(const char* expression) const;
    void settle(ncclResult_t found, const char* expression) const {
        begun(found, expression);
        if (found == ncclInProgress) settle(expression);
    }
    std::string others() const;  ///< "the other 3 ranks of tp, by NCCL"

private:
    ncclResult_t state() const;
    void abort();

    std::string name_;
    comm::Waiter& waiter_;
    int size_;
    int exceptions_ = std::uncaught_exceptions();
    ncclComm_t handle_ = nullptr;
};

}  // namespace maestro::transport
