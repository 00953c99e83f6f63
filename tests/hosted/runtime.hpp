// What stands behind the calls of the runtime. There is one for the process, made by the first call from
// the environment: MAESTRO_HOSTED_SEED, MAESTRO_HOSTED_DEVICES (of the host), CUDA_VISIBLE_DEVICES (their
// numbers; all), MAESTRO_HOSTED_MEMORY (bytes of a device, and of all that a process takes),
// MAESTRO_HOSTED_CONTEXT (bytes that a process takes of a device before anything else; none),
// MAESTRO_HOSTED_ARCHITECTURE (90 for compute capability 9.0), MAESTRO_HOSTED_LEDGER (see Ledger),
// MAESTRO_HOSTED_ISLAND (neighbouring devices that are peers; all) and MAESTRO_HOSTED_TAKEN (bytes that
// somebody else takes of the memory after the first question how much is free; none).
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "grid.hpp"
#include "ledger.hpp"
#include "memory.hpp"
#include "pinned.hpp"
#include "random.hpp"
#include "service.hpp"
#include "streams.hpp"

/// Its mark is null until it is recorded.
struct CUevent_st {
    int device = 0;
    bool timed = true;
    std::shared_ptr<hosted::Mark> mark;
};

namespace hosted {

struct Runtime {
    Runtime();

    Gate gate;
    Random random;
    std::vector<int> gpus;  ///< of the host, that this process sees: by device
    int devices, island, architecture;
    std::uint64_t taken_later, taken = 0;  ///< of the memory, by somebody who keeps no ledger
    std::uint64_t context;                 ///< bytes of a device's memory that one takes
    std::set<int> contexts;                ///< devices that have one
    Ledger ledger;
    Memory memory;
    Pinned pinned;
    Grid grid{random};
    Streams streams{memory, random, gate};
    std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
    std::map<const void*, int>
        shared_bytes;  // that a kernel may ask for, where it is more than without asking
    std::uint64_t launches = 0;
    Service service{gate, streams};
};

Runtime& runtime();

/// The device of the calling thread, as cudaSetDevice set it.
int current_device();
void set_current_device(int device);

/// What most calls begin with: the current device's context, which takes memory once.
cudaError_t make_context(Runtime& r);
/// Bytes of the current device's memory that nobody has taken.
std::size_t free_bytes(const Runtime& r);

/// Keeps an error for cudaGetLastError of the calling thread, and returns it.
cudaError_t keep(cudaError_t error);

/// The body of a call: `body(runtime)` under the lock, its error kept.
template <class Body>
cudaError_t call(Body&& body);

/// Stops if the calling thread is in a host function, which must not call the runtime.
void refuse_host_functions();

template <class Body>
cudaError_t call(Body&& body) {
    refuse_host_functions();
    Runtime& r = runtime();
    const std::lock_guard lock(r.gate.mutex);
    r.service.note_call();
    return keep(body(r));
}

}  // namespace hosted
