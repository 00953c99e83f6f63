// The state of the simulated CUDA runtime. A process has one, which the first call creates from the
// environment:
//   MAESTRO_HOSTED_SEED          of the random numbers (1)
//   MAESTRO_HOSTED_DEVICES       GPUs of the host (1)
//   CUDA_VISIBLE_DEVICES         the GPUs that this process uses (all)
//   MAESTRO_HOSTED_MEMORY        bytes of memory of a GPU (16 GiB)
//   MAESTRO_HOSTED_CONTEXT       bytes that a context of a process takes (0)
//   MAESTRO_HOSTED_ARCHITECTURE  90 for compute capability 9.0 (90)
//   MAESTRO_HOSTED_LEDGER        file that processes share to count used memory (none), see Ledger
//   MAESTRO_HOSTED_ISLAND        number of adjacent GPUs that have peer access to each other (all)
//   MAESTRO_HOSTED_NCCL          version that ncclGetVersion() returns (that of the headers)
//   MAESTRO_HOSTED_COUNTS        folder for counts of calls (none), see counts.hpp
//   MAESTRO_HOSTED_TAKEN         bytes that another program allocates after the first cudaMemGetInfo() (0)
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "grid.hpp"
#include "host_thread.hpp"
#include "ledger.hpp"
#include "memory.hpp"
#include "pinned.hpp"
#include "random.hpp"
#include "streams.hpp"

/// An event. Its mark is null until it is recorded.
struct CUevent_st {
    int device = 0;
    bool timed = true;
    std::shared_ptr<hosted::Mark> mark;
};

namespace hosted {

struct Runtime {
    Runtime();

    RuntimeLock lock;
    Random random;
    std::vector<int> gpus;  ///< the host's GPU number of each device of this process
    int devices, island, architecture;
    std::uint64_t external_later, used = 0;  ///< bytes used by programs outside the ledger
    std::uint64_t context;                   ///< bytes that a context takes
    std::set<int> contexts;                  ///< devices with a context
    Ledger ledger;
    Memory memory;
    Pinned pinned;
    Grid grid{random};
    Streams streams{memory, random, lock};
    std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
    /// Dynamic shared memory that a kernel may request, where cudaFuncSetAttribute() raised it.
    std::map<const void*, int> shared_bytes;
    std::uint64_t launches = 0;
    HostThread host_thread{lock, streams};
};

Runtime& runtime();

/// The device of the calling thread, as cudaSetDevice set it.
int current_device();
void set_current_device(int device);

/// Creates the current device's context if there is none. Most calls do this first. It takes memory once.
cudaError_t make_context(Runtime& r);
/// Free bytes of the current device's memory.
std::size_t free_bytes(const Runtime& r);

/// Records an error for cudaGetLastError() of the calling thread, and returns it.
cudaError_t keep_error(cudaError_t error);

/// Implements a call: runs body(runtime) under the lock and records its error.
template <class Body>
cudaError_t call(Body&& body);

/// Ends the program if the calling thread runs a host function, which must not call the CUDA runtime.
void refuse_host_functions();

template <class Body>
cudaError_t call(Body&& body) {
    refuse_host_functions();
    Runtime& r = runtime();
    const std::lock_guard guard(r.lock.mutex);
    r.host_thread.note_call();
    return keep_error(body(r));
}

}  // namespace hosted
