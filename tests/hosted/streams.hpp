// The queues of the devices and what runs of them when: operations of one stream in order, of several in a
// random order that only events restrict. A stream's owner is Streams; one that is destroyed still runs what
// it holds. Callers hold the runtime's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.hpp"
#include "random.hpp"

namespace hosted {

/// A place in a stream, for those that wait until it is reached. Shared: they may outlive the stream and the
/// event.
struct Mark {
    bool reached = false;
    std::chrono::steady_clock::time_point when;
};

/// `attempt` is called until it returns true, which it does without waiting.
struct Operation {
    std::function<bool()> attempt;
    const char* what;
    bool touches_device = true;
};

/// The runtime's lock, and the news that work outside the streams has ended.
struct Gate {
    std::recursive_mutex mutex;
    std::condition_variable_any changed;
};

}  // namespace hosted

struct CUstream_st {
    int device = 0;
    bool blocking = false;  ///< with respect to the legacy default stream
    bool destroyed = false;
    std::uint64_t rank = 0;  ///< the lowest of those that can run, runs
    std::deque<hosted::Operation> operations;
};

namespace hosted {

class Streams {
public:
    Streams(Memory& memory, Random& random, Gate& gate) : memory_(memory), random_(random), gate_(gate) {}

    cudaStream_t create(int device, bool blocking);
    bool alive(cudaStream_t stream) const;
    void destroy(cudaStream_t stream);

    /// The caller has checked the stream. Some of what is queued may run, never this operation at once.
    void push(cudaStream_t stream, Operation operation);
    std::shared_ptr<Mark> push_mark(cudaStream_t stream);
    bool idle(cudaStream_t stream) const { return stream->operations.empty(); }
    bool idle() const;

    void run_some();
    void run_until(const std::vector<std::shared_ptr<Mark>>& marks);
    /// Marks in all streams of a device, in the blocking ones alone if asked.
    std::vector<std::shared_ptr<Mark>> push_marks(int device, bool only_blocking);

private:
    void shuffle_ranks();
    bool step();
    bool attempt(CUstream_st& stream);
    void open();
    void close();

    Memory& memory_;
    Random& random_;
    Gate& gate_;
    std::vector<std::unique_ptr<CUstream_st>> streams_;
    bool running_ = false, open_ = false, steady_ = false;
};

}  // namespace hosted
