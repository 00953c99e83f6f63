// The streams of all devices. Operations of one stream run in order, and operations of different streams in a
// random order that events restrict, and the device's hardware queues. Streams owns the streams; a destroyed
// stream still runs its queued operations. Callers hold the runtime's lock.
//
// Streams take the queues in turn. Only the oldest operation of a queue leaves it to run: one of a
// stream whose earlier operations have ended, or a wait for an event that has been reached. Whatever is
// behind it waits, of other streams as well. There are as many queues as CUDA_DEVICE_MAX_CONNECTIONS says, 8
// by default and 32 at most, or as MAESTRO_HOSTED_QUEUES says, for a device that does as it likes.
//
// A process can have MAESTRO_HOSTED_LAUNCHES operations in its streams, 1024 unless that is set. Where there
// are more, the call that adds one waits until the devices have run some.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.hpp"
#include "random.hpp"

namespace hosted {

/// A point in a stream that others can wait for. It is shared, because it may outlive the stream and the
/// event.
struct Mark {
    bool reached = false;
    bool seen = false;  ///< by the host, which asked for it
    std::chrono::steady_clock::time_point when;
};

/// Queued work. `attempt` is called until it returns true; it must not block.
struct Operation {
    std::function<bool()> attempt;
    const char* what;
    bool touches_device = true;
    bool holds_queue = false;  ///< it leaves its queue when it has ended, as a wait for an event does
    bool left_queue = false;
};

/// The runtime's lock, and the condition that work outside the streams (host functions) has finished.
struct RuntimeLock {
    std::recursive_mutex mutex;
    std::condition_variable_any changed;
};

}  // namespace hosted

struct CUstream_st {
    int device = 0;
    bool blocking = false;  ///< with respect to the legacy default stream
    bool destroyed = false;
    int priority = 0;        ///< 0 to -5, the highest; kept for cudaStreamGetPriority() alone
    std::size_t queue = 0;   ///< of the device
    std::uint64_t rank = 0;  ///< the stream of the lowest rank that can run, runs
    std::deque<hosted::Operation> operations;
};

namespace hosted {

class Streams {
public:
    Streams(Memory& memory, Random& random, RuntimeLock& lock)
        : memory_(memory), random_(random), lock_(lock) {}

    cudaStream_t create(int device, bool blocking);
    bool alive(cudaStream_t stream) const;
    void destroy(cudaStream_t stream);

    /// Queues an operation. The stream must exist. May run operations that were queued before, but not this
    /// one.
    void push(cudaStream_t stream, Operation operation);
    std::shared_ptr<Mark> push_mark(cudaStream_t stream);
    bool idle(cudaStream_t stream) const { return stream->operations.empty(); }
    bool idle() const;

    void run_some();
    void run_until(const std::vector<std::shared_ptr<Mark>>& marks);
    /// Adds marks to all streams of a device, or to its blocking streams only.
    std::vector<std::shared_ptr<Mark>> push_marks(int device, bool only_blocking);

private:
    /// The streams of the operations that a queue holds, in the order of the operations.
    using Queue = std::deque<CUstream_st*>;

    void shuffle_ranks();
    bool step();
    void make_room();
    bool leave_queues();
    bool leave(Queue& queue);
    bool attempt(CUstream_st& stream);
    void open();
    void close();

    Memory& memory_;
    Random& random_;
    RuntimeLock& lock_;
    std::vector<std::unique_ptr<CUstream_st>> streams_;
    std::map<int, std::vector<Queue>> queues_;  ///< by device
    std::map<int, std::size_t> created_;        ///< streams of each device so far
    std::size_t queued_ = 0;                    ///< operations of all streams
    bool running_ = false, open_ = false, steady_ = false;
};

}  // namespace hosted
