// Simulated NCCL: the calls that Maestro uses, between processes of one host. Arguments are checked against
// the library's documentation. As with a non-blocking communicator, a call enters its stream some time later.
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

#include "hosted/hosted.hpp"
#include "hosted/nccl_links.hpp"
#include "hosted/stop.hpp"

namespace {

/// A send or a receive, and its progress. A head with size and type precedes the data, so that the receiver
/// can check them.
struct Transfer {
    struct Head {
        std::uint64_t bytes = 0;
        int type = 0;
    };
    bool is_send;
    int peer;
    char* data;
    Head head;
    Head received_head = {};
    std::size_t head_bytes = 0, done_bytes = 0;
    bool done() const { return head_bytes == sizeof(Head) && done_bytes == head.bytes; }
};

struct GroupCall {
    cudaStream_t stream;
    std::vector<Transfer> transfers;
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
    Transfer transfer;
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

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
        default:
            return 0;
    }
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

/// Transfers the bytes that can be transferred now.
void advance(ncclComm& c, Transfer& t) {
    char* const head = reinterpret_cast<char*>(t.is_send ? &t.head : &t.received_head);
    const auto transfer_some = [&](char* data, std::size_t bytes) {
        return t.is_send ? c.links->send(t.peer, data, bytes) : c.links->receive(t.peer, data, bytes);
    };
    if (t.head_bytes < sizeof t.head) {
        t.head_bytes += transfer_some(head + t.head_bytes, sizeof t.head - t.head_bytes);
        if (t.head_bytes < sizeof t.head) return;
        if (!t.is_send && (t.received_head.bytes != t.head.bytes || t.received_head.type != t.head.type))
            hosted::stop(fmt::format(
                "NCCL: rank {} receives {} bytes of type {} where rank {} sends {} of type {}", c.rank,
                t.head.bytes, t.head.type, t.peer, t.received_head.bytes, t.received_head.type));
    }
    if (t.done_bytes < t.head.bytes)
        t.done_bytes += transfer_some(t.data + t.done_bytes, t.head.bytes - t.done_bytes);
}

/// Makes progress with a group call. Returns true when it is complete. After an error it never completes
/// until the communicator is aborted, like NCCL's kernel that waits for a failed peer.
bool progress(ncclComm& c, GroupCall& call) {
    const Lock lock(c.mutex);
    if (c.aborted) return true;
    if (c.error != ncclSuccess) return false;
    std::vector<std::pair<int, bool>> busy;  // peer and direction: transfers of one direction go in order
    for (Transfer& t : call.transfers) {
        const std::pair direction(t.peer, t.is_send);
        if (t.done() || std::find(busy.begin(), busy.end(), direction) != busy.end()) continue;
        if (!hosted::is_device(t.data, t.head.bytes))
            hosted::stop("memory was freed before NCCL accessed it");
        try {
            advance(c, t);
        } catch (const hosted::PeerGone& gone) {
            fail(c, ncclRemoteError, gone.what());
            return false;
        }
        if (!t.done()) busy.push_back(direction);
    }
    if (!busy.empty()) return false;
    --c.queued;
    return true;
}

void enqueue_calls(const Communicator& c) {
    for (; !c->waiting.empty(); c->waiting.pop_front()) {
        const cudaStream_t stream = c->waiting.front().stream;
        const auto call = std::make_shared<GroupCall>(std::move(c->waiting.front()));
        ++c->queued;
        if (hosted::enqueue_until(
                stream, [c, call] { return progress(*c, *call); }, "NCCL's sends and receives") !=
            cudaSuccess)
            fail(*c, ncclInvalidArgument, "an invalid stream");
    }
}

/// Makes progress with the communicator's asynchronous operations and returns their state.
ncclResult_t poll(const Communicator& c) {
    {
        const Lock lock(c->mutex);
        if (c->error != ncclSuccess) return c->error;
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

ncclResult_t wait_if_blocking(const Communicator& c) {
    if (!c->blocking) return ncclInProgress;
    ncclResult_t found = ncclSuccess;
    while ((found = poll(c)) == ncclInProgress) usleep(50);
    return found;
}

ncclResult_t check(ncclComm& c, const Transfer& t, cudaStream_t stream) {
    // Before the communicator's lock is taken, because progress() takes it under the runtime's lock.
    const bool on_device = t.head.bytes == 0 || hosted::is_device(t.data, t.head.bytes);
    cudaPointerAttributes where{};
    if (t.head.bytes > 0) cudaPointerGetAttributes(&where, t.data);
    const Lock lock(c.mutex);
    if (!c.connected || !c.waiting.empty())
        return reject(ncclInvalidArgument, "the communicator's last call is still in progress");
    if (c.error != ncclSuccess) return c.error;
    if (c.finalizing) return reject(ncclInvalidArgument, "the communicator was finalized");
    if (t.peer < 0 || t.peer >= c.size)
        return reject(ncclInvalidArgument, fmt::format("rank {} of {}", t.peer, c.size));
    if (t.peer == c.rank) return reject(ncclInvalidUsage, "a send to the rank itself is not simulated");
    if (stream == nullptr || (c.stream != nullptr && c.stream != stream))
        return reject(ncclInvalidUsage,
                      "the default stream, or a second stream of a communicator, is not simulated");
    if (!on_device)
        return reject(ncclInvalidArgument, fmt::format("{} bytes at {} that are not device memory",
                                                       t.head.bytes, static_cast<const void*>(t.data)));
    if (t.head.bytes > 0 && where.device != c.device)
        return reject(ncclInvalidArgument, "memory of another device than the communicator's");
    c.stream = stream;
    return ncclSuccess;
}

ncclResult_t send_or_receive(bool is_send, void* data, std::size_t count, ncclDataType_t type, int peer,
                             ncclComm_t handle, cudaStream_t stream) {
    ncclGroupStart();
    const Communicator c = find(handle);
    ncclResult_t found = c ? ncclSuccess : ncclInvalidArgument;
    Transfer transfer{.is_send = is_send,
                      .peer = peer,
                      .data = static_cast<char*>(data),
                      .head = {count * size_of(type), type}};
    if (found == ncclSuccess && size_of(type) == 0)
        found = reject(ncclInvalidArgument, "a data type that is not simulated");
    if (found == ncclSuccess) found = check(*c, transfer, stream);
    if (found == ncclSuccess)
        pending.push_back({c, stream, transfer});
    else
        group_error = found;
    const ncclResult_t ended = ncclGroupEnd();
    return found != ncclSuccess ? found : ended;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return reject(ncclInvalidArgument, "version is null");
    *version = NCCL_VERSION_CODE;
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
            a.communicator->waiting.push_back({a.stream, {}});
        }
        a.communicator->waiting.back().transfers.push_back(a.transfer);
    }
    for (const Communicator& c : touched) {
        {
            const Lock lock(registry().mutex);
            c->polls_left = static_cast<int>(registry().random() % 3);
        }
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
    const Lock lock(c->mutex);
    c->aborted = c->closed = true;
    c->links.reset();
    return ncclSuccess;
}

}  // extern "C"
