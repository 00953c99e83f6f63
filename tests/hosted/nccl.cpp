// Simulated NCCL: the calls that Maestro uses, between processes of one host. Arguments are checked against
// the library's documentation. A call on a non-blocking communicator enters its stream some time later.
// Data moves when the stream reaches the call and the peer has made the matching one.
#include <fmt/core.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "hosted/counts.hpp"
#include "hosted/hosted.hpp"
#include "hosted/nccl_calls.hpp"
#include "hosted/nccl_links.hpp"
#include "hosted/stop.hpp"

namespace {

struct GroupCall {
    cudaStream_t stream;
    hosted::Call call;
};

}  // namespace

struct ncclComm {
    ncclComm(const std::string& name, const hosted::Hello& local, int device_, bool blocking_)
        : rank(local.rank),
          size(local.size),
          device(device_),
          blocking(blocking_),
          links(std::make_unique<hosted::Links>(name, local)) {}
    const int rank, size, device;
    const bool blocking;
    std::recursive_mutex mutex;            ///< protects the members below
    std::unique_ptr<hosted::Links> links;  ///< null after it is closed
    bool connected = false, finalizing = false, closed = false, aborted = false;
    ncclResult_t error = ncclSuccess;
    std::string last_error;
    cudaStream_t stream = nullptr;
    std::deque<GroupCall> waiting;  ///< group calls that have not entered a stream yet
    int polls_left = 0;             ///< polls until the waiting calls enter their streams
    int queued = 0;                 ///< group calls in a stream
};

namespace {

using Communicator = std::shared_ptr<ncclComm>;
using Lock = std::lock_guard<std::recursive_mutex>;

/// All communicators of the process, including destroyed ones, so that no address is reused and uses after
/// destruction are detected.
struct Registry {
    ~Registry() {
        for (const auto& [handle, communicator] : all)
            if (!communicator->closed) hosted::stop("an NCCL communicator was never destroyed");
    }
    std::recursive_mutex mutex;
    std::map<ncclComm_t, Communicator> all;
    std::minstd_rand random;
    int created = 0;
    std::string last_error;
};
Registry& registry() {
    static Registry instance;
    return instance;
}

struct PendingCall {
    Communicator communicator;
    cudaStream_t stream;
    hosted::Call call;
};
thread_local int depth = 0;
thread_local std::vector<PendingCall> pending;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t reject(ncclResult_t result, const std::string& why) {
    const Lock lock(registry().mutex);
    registry().last_error = why;
    std::fprintf(stderr, "simulated NCCL: %s\n", why.c_str());
    return result;
}

/// Returns null, and reports an error, for a handle that is invalid or destroyed.
Communicator find(ncclComm_t handle) {
    const Lock lock(registry().mutex);
    const auto entry = registry().all.find(handle);
    if (entry != registry().all.end() && !entry->second->closed) return entry->second;
    reject(ncclInvalidArgument, "a communicator that was destroyed or never created");
    return nullptr;
}

void fail(ncclComm& c, ncclResult_t error, const std::string& why) {
    c.error = error;
    c.last_error = why;
}

bool same_gpu_twice(ncclComm& c) {
    for (int a = 0; a < c.size; ++a)
        for (int b = 0; b < a; ++b)
            if (std::strcmp(c.links->hello(a).bus.data(), c.links->hello(b).bus.data()) == 0) {
                fail(c, ncclInvalidUsage,
                     fmt::format("Duplicate GPU detected: ranks {} and {} both on {}", b, a,
                                 c.links->hello(a).bus.data()));
                return true;
            }
    return false;
}

/// Makes progress with a group call. Returns true when it is complete. After an error it never completes
/// until the communicator is aborted, like NCCL's kernel that waits for a failed peer.
bool progress(ncclComm& c, GroupCall& call) {
    const Lock lock(c.mutex);
    if (c.aborted) return true;
    if (c.error != ncclSuccess) return false;
    try {
        if (!call.call.advance(*c.links, c.rank)) return false;
    } catch (const hosted::PeerGone& gone) {
        fail(c, ncclRemoteError, gone.what());
        return false;
    }
    --c.queued;
    return true;
}

void enqueue_calls(const Communicator& c) {
    for (; !c->waiting.empty(); c->waiting.pop_front()) {
        const cudaStream_t stream = c->waiting.front().stream;
        const auto call = std::make_shared<GroupCall>(std::move(c->waiting.front()));
        ++c->queued;
        if (hosted::enqueue_until(
                stream, [c, call] { return progress(*c, *call); }, "NCCL's calls") != cudaSuccess)
            fail(*c, ncclInvalidArgument, "an invalid stream");
    }
}

/// Makes progress with the communicator's asynchronous operations and returns their state.
ncclResult_t poll(const Communicator& c) {
    {
        const Lock lock(c->mutex);
        if (c->error != ncclSuccess) return c->error;
        if (c->aborted) return ncclInternalError;
        if (!c->connected) {
            c->connected = c->links->connect();
            return c->connected && !same_gpu_twice(*c) ? ncclSuccess
                   : c->connected                      ? c->error
                                                       : ncclInProgress;
        }
        if (!c->waiting.empty() && c->polls_left-- > 0) return ncclInProgress;
    }
    enqueue_calls(c);  // not under the communicator's lock: progress() takes it under the runtime's lock
    const Lock lock(c->mutex);
    if (c->finalizing && c->queued > 0) return ncclInProgress;
    return c->error;
}

/// Counts the group call that waits last: the bytes that this rank sends.
void count_group(ncclComm& c) {
    const Lock lock(c.mutex);
    std::size_t bytes = 0;
    for (const hosted::Phase& phase : c.waiting.back().call.phases)
        for (const hosted::Transfer& t : phase.transfers)
            if (t.is_send) bytes += t.head.bytes;
    hosted::count("an NCCL group", bytes);
    if (!c.blocking) hosted::count("an NCCL group that a thread starts");
}

ncclResult_t wait_if_blocking(const Communicator& c) {
    if (!c->blocking) return ncclInProgress;
    ncclResult_t found = ncclSuccess;
    while ((found = poll(c)) == ncclInProgress) usleep(50);
    return found;
}

/// Memory that a call reads or writes.
struct Memory {
    const void* data;
    std::size_t bytes;
};

ncclResult_t check(ncclComm& c, std::initializer_list<Memory> all, cudaStream_t stream) {
    // Before the communicator's lock is taken, because progress() takes it under the runtime's lock.
    for (const auto& [data, bytes] : all) {
        cudaPointerAttributes where{};
        if (bytes == 0) continue;
        if (!hosted::is_device(data, bytes))
            return reject(ncclInvalidArgument,
                          fmt::format("{} bytes at {} that are not device memory", bytes, data));
        cudaPointerGetAttributes(&where, data);
        if (where.device != c.device)
            return reject(ncclInvalidArgument, "memory of another device than the communicator's");
    }
    const Lock lock(c.mutex);
    if (!c.connected || !c.waiting.empty())
        return reject(ncclInvalidArgument, "the communicator's last call is still in progress");
    if (c.error != ncclSuccess) return c.error;
    if (c.finalizing) return reject(ncclInvalidArgument, "the communicator was finalized");
    if (stream == nullptr || (c.stream != nullptr && c.stream != stream))
        return reject(ncclInvalidUsage,
                      "the default stream, or a second stream of a communicator, is not simulated");
    c.stream = stream;
    return ncclSuccess;
}

/// Adds the call that make(communicator) returns to the group, or makes it at once outside of one.
/// `memory(communicator)`: what it reads and writes.
template <class Reads, class Make>
ncclResult_t issue(ncclDataType_t type, ncclComm_t handle, cudaStream_t stream, Reads&& memory, Make&& make) {
    ncclGroupStart();
    const Communicator c = find(handle);
    ncclResult_t found = c ? ncclSuccess : ncclInvalidArgument;
    if (found == ncclSuccess && hosted::size_of(type) == 0)
        found = reject(ncclInvalidArgument, "a data type that is not simulated");
    if (found == ncclSuccess) found = memory(*c);
    if (found == ncclSuccess)
        pending.push_back({c, stream, make(*c)});
    else
        group_error = found;
    const ncclResult_t ended = ncclGroupEnd();
    return found != ncclSuccess ? found : ended;
}

ncclResult_t send_or_receive(bool is_send, void* data, std::size_t count, ncclDataType_t type, int peer,
                             ncclComm_t handle, cudaStream_t stream) {
    const std::size_t bytes = count * hosted::size_of(type);
    return issue(
        type, handle, stream,
        [&](ncclComm& c) {
            if (peer < 0 || peer >= c.size)
                return reject(ncclInvalidArgument, fmt::format("rank {} of {}", peer, c.size));
            if (peer == c.rank) return reject(ncclInvalidUsage, "a send to the rank itself is not simulated");
            return check(c, {{data, bytes}}, stream);
        },
        [&](const ncclComm&) { return hosted::message(is_send, data, bytes, type, peer); });
}

/// A collective between a block of each rank and the whole of `size` blocks, which must not overlap unless
/// the block is the rank's part of the whole.
ncclResult_t check_blocks(ncclComm& c, const void* block, const void* whole, std::size_t bytes,
                          cudaStream_t stream) {
    const std::size_t all = bytes * static_cast<std::size_t>(c.size);
    const auto* const b = static_cast<const char*>(block);
    const auto* const w = static_cast<const char*>(whole);
    if (b < w + all && w < b + bytes && b != w + bytes * static_cast<std::size_t>(c.rank))
        return reject(ncclInvalidArgument, "buffers that overlap and are not in place");
    return check(c, {{block, bytes}, {whole, all}}, stream);
}

ncclResult_t check_sum(ncclDataType_t type, ncclRedOp_t operation) {
    const bool simulated =
        operation == ncclSum && (type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16);
    return simulated ? ncclSuccess : reject(ncclInvalidArgument, "a reduction that is not simulated");
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return reject(ncclInvalidArgument, "version is null");
    const char* const other = std::getenv("MAESTRO_HOSTED_NCCL");
    *version = other ? std::atoi(other) : NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        default:
            return "an error (simulated NCCL)";
    }
}
const char* ncclGetLastError(ncclComm_t handle) {
    const Lock lock(registry().mutex);
    const auto entry = registry().all.find(handle);
    return entry != registry().all.end() && !entry->second->last_error.empty()
               ? entry->second->last_error.c_str()
               : registry().last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (id == nullptr) return reject(ncclInvalidArgument, "id is null");
    const Lock lock(registry().mutex);
    *id = {};
    const std::string name = fmt::format("maestro-hosted-nccl-{}-{}", getpid(), registry().created++);
    std::copy(name.begin(), name.end(), id->internal);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* created, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    const ncclConfig_t default_config = NCCL_CONFIG_INITIALIZER;
    if (created == nullptr || config == nullptr) return reject(ncclInvalidArgument, "comm or config is null");
    if (config->magic != default_config.magic || config->size != default_config.size)
        return reject(ncclInvalidArgument, "a config without NCCL_CONFIG_INITIALIZER");
    if (size < 1 || rank < 0 || rank >= size)
        return reject(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
    if (std::strncmp(id.internal, "maestro-hosted-nccl-", 20) != 0)
        return reject(ncclInvalidArgument, "an id that ncclGetUniqueId has not returned");
    hosted::Hello local{.rank = rank, .size = size};
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(local.bus.data(), static_cast<int>(local.bus.size()), device) != cudaSuccess)
        return reject(ncclUnhandledCudaError, "no device");
    const auto c = std::make_shared<ncclComm>(id.internal, local, device, config->blocking != 0);
    {
        const Lock lock(registry().mutex);
        registry().all.emplace(c.get(), c);
    }
    *created = c.get();
    return wait_if_blocking(c);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* found) {
    const Communicator c = find(handle);
    if (!c || found == nullptr) return ncclInvalidArgument;
    *found = poll(c);
    return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
    return send_or_receive(true, const_cast<void*>(data), count, type, peer, handle, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
    return send_or_receive(false, data, count, type, peer, handle, stream);
}

ncclResult_t ncclReduceScatter(const void* whole, void* block, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
    return issue(
        type, handle, stream,
        [&](ncclComm& c) {
            const ncclResult_t found = check_sum(type, operation);
            return found != ncclSuccess
                       ? found
                       : check_blocks(c, block, whole, count * hosted::size_of(type), stream);
        },
        [&](const ncclComm& c) { return hosted::reduce_scatter(whole, block, count, type, c.rank, c.size); });
}
ncclResult_t ncclReduce(const void* values, void* result, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t handle, cudaStream_t stream) {
    const std::size_t bytes = count * hosted::size_of(type);
    return issue(
        type, handle, stream,
        [&](ncclComm& c) {
            if (root < 0 || root >= c.size)
                return reject(ncclInvalidArgument, fmt::format("root {} of {}", root, c.size));
            const ncclResult_t found = check_sum(type, operation);
            if (found != ncclSuccess) return found;
            return check(c, {{values, bytes}, {result, c.rank == root ? bytes : 0}}, stream);
        },
        [&](const ncclComm& c) { return hosted::reduce(values, result, count, type, root, c.rank, c.size); });
}
ncclResult_t ncclAllGather(const void* block, void* whole, std::size_t count, ncclDataType_t type,
                           ncclComm_t handle, cudaStream_t stream) {
    return issue(
        type, handle, stream,
        [&](ncclComm& c) { return check_blocks(c, block, whole, count * hosted::size_of(type), stream); },
        [&](const ncclComm& c) { return hosted::all_gather(block, whole, count, type, c.rank, c.size); });
}
ncclResult_t ncclAllReduce(const void* values, void* result, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
    const std::size_t bytes = count * hosted::size_of(type);
    return issue(
        type, handle, stream,
        [&](ncclComm& c) {
            const ncclResult_t found = check_sum(type, operation);
            if (found != ncclSuccess) return found;
            if (values != result)
                return reject(ncclInvalidUsage, "an all-reduce that is not in place is not simulated");
            return check(c, {{values, bytes}}, stream);
        },
        [&](const ncclComm& c) { return hosted::all_reduce(values, result, count, type, c.rank, c.size); });
}

ncclResult_t ncclGroupStart() {
    ++depth;
    return ncclSuccess;
}

/// The calls of one group on one communicator form one operation.
ncclResult_t ncclGroupEnd() {
    if (depth == 0) return reject(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--depth > 0) return ncclSuccess;
    const std::vector<PendingCall> all = std::exchange(pending, {});
    if (const ncclResult_t error = std::exchange(group_error, ncclSuccess); error != ncclSuccess)
        return error;
    ncclResult_t found = ncclSuccess;
    std::vector<Communicator> touched;
    for (const PendingCall& a : all) {
        const Lock lock(a.communicator->mutex);
        if (std::find(touched.begin(), touched.end(), a.communicator) == touched.end()) {
            touched.push_back(a.communicator);
            a.communicator->waiting.push_back({a.stream, a.call});
            continue;
        }
        hosted::Call& group = a.communicator->waiting.back().call;
        for (const hosted::Call* call : {&std::as_const(group), &a.call})
            if (call->phases.size() > 1)
                return reject(ncclInvalidUsage, "this collective in a group of several is not simulated");
        hosted::join(group.phases[0], a.call.phases[0]);
    }
    for (const Communicator& c : touched) {
        {
            const Lock lock(registry().mutex);
            c->polls_left = static_cast<int>(registry().random() % 3);
        }
        count_group(*c);
        if (const ncclResult_t now = wait_if_blocking(c); now != ncclSuccess) found = now;
    }
    return found;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    const Communicator c = find(handle);
    if (!c) return ncclInvalidArgument;
    {
        const Lock lock(c->mutex);
        if (c->finalizing) return reject(ncclInvalidArgument, "the communicator was finalized before");
        c->finalizing = true;
    }
    return wait_if_blocking(c);
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    const Communicator c = find(handle);
    if (!c) return ncclInvalidArgument;
    const Lock lock(c->mutex);
    if (c->queued > 0 || !c->waiting.empty())
        return reject(ncclInvalidUsage, "the communicator has unfinished operations");
    c->closed = true;
    c->links.reset();
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
    const Communicator c = find(handle);
    if (!c) return ncclInvalidArgument;
    {
        const Lock lock(c->mutex);
        c->aborted = true;
    }
    // It frees memory of the device, for which all of the device's work has to end.
    int current = 0;
    cudaGetDevice(&current);
    cudaSetDevice(c->device);
    const cudaError_t waited = cudaDeviceSynchronize();
    cudaSetDevice(current);
    const Lock lock(c->mutex);
    c->closed = true;
    c->links.reset();
    return waited == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
