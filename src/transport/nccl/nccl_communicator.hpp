// An NCCL communicator as a value. It is non-blocking: operations that need other ranks are waited for with
// the Waiter, or polled.
#pragma once

#include <nccl.h>

#include <exception>
#include <string>

#include "comm/communicator.hpp"

namespace maestro::transport {

/// Owns the communicator. Called by one thread at a time, whose current GPU is the communicator's.
class NcclCommunicator {
public:
    static ncclUniqueId make_id();
    /// Starts to initialize it as rank `rank` of `size`; wait_until_ready() waits for that. All ranks pass
    /// the `id` that one of them has made. `name` is used in messages. The waiter must outlive it.
    NcclCommunicator(std::string name, comm::Waiter& waiter, const ncclUniqueId& id, int rank, int size);
    /// Collective, unless an exception is being handled. Operations in streams end first.
    ~NcclCommunicator();
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;
    operator ncclComm_t() const { return handle_; }

    /// Throws if a call has returned a failure. The operation may still be in progress.
    void check(ncclResult_t found, const char* expression) const;
    /// Whether the last operation has been completed or issued; does not wait. Throws NCCL's asynchronous
    /// error.
    bool ready() const;
    /// Waits until ready(), which may need the other ranks. Error(peer_lost) after the deadline.
    void wait_until_ready(const char* expression) const;
    void wait_until_ready(ncclResult_t found, const char* expression) const {
        check(found, expression);
        if (found == ncclInProgress) wait_until_ready(expression);
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
