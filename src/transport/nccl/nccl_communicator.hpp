// An NCCL communicator as a value. It is a blocking one, whose calls only enqueue work once all ranks are
// connected: each group of calls of a non-blocking communicator starts a thread, for which the host would
// have to wait. What waits for other ranks within NCCL, at the start and at the end, runs in a helper thread,
// so that the main thread can wait with a deadline.
#pragma once

#include <nccl.h>

#include <exception>
#include <functional>
#include <string>

#include "base/stream.hpp"
#include "comm/communicator.hpp"

namespace maestro::transport {

/// Owns the communicator. Called by one thread at a time, whose current GPU is the communicator's.
class NcclCommunicator {
public:
    static ncclUniqueId make_id();
    /// Initializes it as rank `rank` of `size`, and connects all pairs of ranks, for which NCCL allocates
    /// memory. Collective; throws Error(peer_lost) after the deadline. All ranks pass the `id` that one of
    /// them has made. `name` is used in messages; `stream` is that of all operations. The stream and the
    /// waiter must outlive it.
    NcclCommunicator(std::string name, comm::Waiter& waiter, const ncclUniqueId& id, int rank, int size,
                     Stream stream);
    /// Collective, unless an exception is being handled. Operations in streams end first.
    ~NcclCommunicator();
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;
    operator ncclComm_t() const { return handle_; }

    /// Throws if a call has failed.
    void check(ncclResult_t found, const char* expression) const;
    /// Throws NCCL's asynchronous error, that of a connection to another rank for example.
    void check() const;
    std::string others() const;  ///< "the other 3 ranks of tp, by NCCL"

private:
    /// Runs `body`, which must not refer to this object, in another thread, and waits for it. Throws its
    /// error, and Error(peer_lost) after the deadline; then the thread is left to itself.
    void run_beside(const char* what, std::function<void()> body);
    void abort();

    std::string name_;
    comm::Waiter& waiter_;
    int size_;
    int exceptions_ = std::uncaught_exceptions();
    ncclComm_t handle_ = nullptr;
};

}  // namespace maestro::transport
