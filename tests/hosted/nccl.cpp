// A stand-in for the calls of NCCL that the backend makes, between processes of one host. Arguments are
// checked as the library documents them; what is asked for enters its stream late, as with a communicator
// that does not block, and moves when the stream gets to it and the other rank is there.
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

/// A send or a receive, and how far it is. What travels first says what follows.
struct Transfer {
    struct Head {
        std::uint64_t bytes = 0;
        int type = 0;
    };
    bool sends;
    int peer;
    char* data;
    Head head;
    Head came = {};
    std::size_t heads_at = 0, at = 0;
    bool done() const { return heads_at == sizeof(Head) && at == head.bytes; }
};

struct GroupCall {
    cudaStream_t stream;
    std::vector<Transfer> transfers;
};

}  // namespace

struct ncclComm {
    ncclComm(const std::string& name, const hosted::Hello& own, int device_, bool blocking_)
        : rank(own.rank),
          size(own.size),
          device(device_),
          blocking(blocking_),
          links(std::make_unique<hosted::Links>(name, own)) {}
    const int rank, size, device;
    const bool blocking;
    std::recursive_mutex mutex;            ///< of what follows
    std::unique_ptr<hosted::Links> links;  ///< until it is closed
    bool connected = false, finalizing = false, closed = false, aborted = false;
    ncclResult_t error = ncclSuccess;
    std::string said;
    cudaStream_t stream = nullptr;
    std::deque<GroupCall> waiting;  ///< group calls that are in no stream yet
    int looks_left = 0;             ///< before they are
    int queued = 0;                 ///< group calls that are in a stream
};

namespace {

using Communicator = std::shared_ptr<ncclComm>;
using Lock = std::lock_guard<std::recursive_mutex>;

/// All communicators that ever were: a dead one's address is not given again.
struct Registry {
    ~Registry() {
        for (const auto& [handle, communicator] : all)
            if (!communicator->closed) hosted::stop("a communicator of NCCL was never destroyed");
    }
    std::recursive_mutex mutex;
    std::map<ncclComm_t, Communicator> all;
    std::minstd_rand random;
    int made = 0;
    std::string said;
};
Registry& registry() {
    static Registry instance;
    return instance;
}

struct Asked {
    Communicator communicator;
    cudaStream_t stream;
    Transfer transfer;
};
thread_local int depth = 0;
thread_local std::vector<Asked> asked;
thread_local ncclResult_t wrong_in_group = ncclSuccess;

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
    const Lock lock(registry().mutex);
    registry().said = why;
    std::fprintf(stderr, "hosted NCCL: %s\n", why.c_str());
    return result;
}

/// Null and refused if it is none, or none any more.
Communicator find(ncclComm_t handle) {
    const Lock lock(registry().mutex);
    const auto at = registry().all.find(handle);
    if (at != registry().all.end() && !at->second->closed) return at->second;
    refuse(ncclInvalidArgument, "a communicator that was destroyed, or never made");
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
    c.said = why;
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

/// Moves what can be moved now.
void move(ncclComm& c, Transfer& t) {
    char* const head = reinterpret_cast<char*>(t.sends ? &t.head : &t.came);
    const auto some = [&](char* data, std::size_t bytes) {
        return t.sends ? c.links->send(t.peer, data, bytes) : c.links->receive(t.peer, data, bytes);
    };
    if (t.heads_at < sizeof t.head) {
        t.heads_at += some(head + t.heads_at, sizeof t.head - t.heads_at);
        if (t.heads_at < sizeof t.head) return;
        if (!t.sends && (t.came.bytes != t.head.bytes || t.came.type != t.head.type))
            hosted::stop(
                fmt::format("NCCL: rank {} receives {} bytes of type {} where rank {} sends {} of {}", c.rank,
                            t.head.bytes, t.head.type, t.peer, t.came.bytes, t.came.type));
    }
    if (t.at < t.head.bytes) t.at += some(t.data + t.at, t.head.bytes - t.at);
}

/// One turn of a group call; true when it is through. After an error it never is, until the communicator is
/// aborted, like the kernel that waits for a rank which does not come.
bool turn(ncclComm& c, GroupCall& call) {
    const Lock lock(c.mutex);
    if (c.aborted) return true;
    if (c.error != ncclSuccess) return false;
    std::vector<std::pair<int, bool>> busy;  // peers and directions; what comes later has to wait
    for (Transfer& t : call.transfers) {
        const std::pair way(t.peer, t.sends);
        if (t.done() || std::find(busy.begin(), busy.end(), way) != busy.end()) continue;
        if (!hosted::is_device(t.data, t.head.bytes)) hosted::stop("memory was freed before NCCL came to it");
        try {
            move(c, t);
        } catch (const hosted::Gone& gone) {
            fail(c, ncclRemoteError, gone.what());
            return false;
        }
        if (!t.done()) busy.push_back(way);
    }
    if (!busy.empty()) return false;
    --c.queued;
    return true;
}

void into_streams(const Communicator& c) {
    for (; !c->waiting.empty(); c->waiting.pop_front()) {
        const cudaStream_t stream = c->waiting.front().stream;
        const auto call = std::make_shared<GroupCall>(std::move(c->waiting.front()));
        ++c->queued;
        if (hosted::enqueue_until(
                stream, [c, call] { return turn(*c, *call); }, "NCCL's sends and receives") != cudaSuccess)
            fail(*c, ncclInvalidArgument, "a stream that is none");
    }
}

/// Goes on with what was begun, and says how that stands.
ncclResult_t state(const Communicator& c) {
    {
        const Lock lock(c->mutex);
        if (c->error != ncclSuccess) return c->error;
        if (!c->connected) {
            c->connected = c->links->connect();
            return c->connected && !same_gpu_twice(*c) ? ncclSuccess
                   : c->connected                      ? c->error
                                                       : ncclInProgress;
        }
        if (!c->waiting.empty() && c->looks_left-- > 0) return ncclInProgress;
    }
    into_streams(c);  // takes the runtime's lock, which a turn holds when it takes the communicator's
    const Lock lock(c->mutex);
    if (c->finalizing && c->queued > 0) return ncclInProgress;
    return c->error;
}

ncclResult_t begun(const Communicator& c) {
    if (!c->blocking) return ncclInProgress;
    ncclResult_t found = ncclSuccess;
    while ((found = state(c)) == ncclInProgress) usleep(50);
    return found;
}

ncclResult_t check(ncclComm& c, const Transfer& t, cudaStream_t stream) {
    // Before the communicator's lock, which a turn takes under the runtime's.
    const bool on_device = t.head.bytes == 0 || hosted::is_device(t.data, t.head.bytes);
    cudaPointerAttributes where{};
    if (t.head.bytes > 0) cudaPointerGetAttributes(&where, t.data);
    const Lock lock(c.mutex);
    if (!c.connected || !c.waiting.empty())
        return refuse(ncclInvalidArgument, "the communicator's last call is still in progress");
    if (c.error != ncclSuccess) return c.error;
    if (c.finalizing) return refuse(ncclInvalidArgument, "the communicator was finalized");
    if (t.peer < 0 || t.peer >= c.size)
        return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", t.peer, c.size));
    if (t.peer == c.rank) return refuse(ncclInvalidUsage, "a rank that sends to itself: not known here");
    if (stream == nullptr || (c.stream != nullptr && c.stream != stream))
        return refuse(ncclInvalidUsage, "the default stream, or a second one: not known here");
    if (!on_device)
        return refuse(ncclInvalidArgument, fmt::format("{} bytes at {} that are not the device's",
                                                       t.head.bytes, static_cast<const void*>(t.data)));
    if (t.head.bytes > 0 && where.device != c.device)
        return refuse(ncclInvalidArgument, "memory of another device than the communicator's");
    c.stream = stream;
    return ncclSuccess;
}

ncclResult_t ask(bool sends, void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                 cudaStream_t stream) {
    ncclGroupStart();
    const Communicator c = find(handle);
    ncclResult_t found = c ? ncclSuccess : ncclInvalidArgument;
    Transfer transfer{.sends = sends,
                      .peer = peer,
                      .data = static_cast<char*>(data),
                      .head = {count * size_of(type), type}};
    if (found == ncclSuccess && size_of(type) == 0)
        found = refuse(ncclInvalidArgument, "a data type that is not known here");
    if (found == ncclSuccess) found = check(*c, transfer, stream);
    if (found == ncclSuccess)
        asked.push_back({c, stream, transfer});
    else
        wrong_in_group = found;
    const ncclResult_t ended = ncclGroupEnd();
    return found != ncclSuccess ? found : ended;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return refuse(ncclInvalidArgument, "no place for the version");
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
            return "an error (hosted NCCL)";
    }
}
const char* ncclGetLastError(ncclComm_t handle) {
    const Lock lock(registry().mutex);
    const auto at = registry().all.find(handle);
    return at != registry().all.end() && !at->second->said.empty() ? at->second->said.c_str()
                                                                   : registry().said.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (id == nullptr) return refuse(ncclInvalidArgument, "no place for the id");
    const Lock lock(registry().mutex);
    *id = {};
    const std::string name = fmt::format("maestro-hosted-nccl-{}-{}", getpid(), registry().made++);
    std::copy(name.begin(), name.end(), id->internal);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (made == nullptr || config == nullptr) return refuse(ncclInvalidArgument, "no place, or no config");
    if (config->magic != fresh.magic || config->size != fresh.size)
        return refuse(ncclInvalidArgument, "a config that NCCL_CONFIG_INITIALIZER has not made");
    if (size < 1 || rank < 0 || rank >= size)
        return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
    if (std::strncmp(id.internal, "maestro-hosted-nccl-", 20) != 0)
        return refuse(ncclInvalidArgument, "an id that is not rank 0's");
    hosted::Hello own{.rank = rank, .size = size};
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(own.bus.data(), static_cast<int>(own.bus.size()), device) != cudaSuccess)
        return refuse(ncclUnhandledCudaError, "no device");
    const auto c = std::make_shared<ncclComm>(id.internal, own, device, config->blocking != 0);
    {
        const Lock lock(registry().mutex);
        registry().all.emplace(c.get(), c);
    }
    *made = c.get();
    return begun(c);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* found) {
    const Communicator c = find(handle);
    if (!c || found == nullptr) return ncclInvalidArgument;
    *found = state(c);
    return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
    return ask(true, const_cast<void*>(data), count, type, peer, handle, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
    return ask(false, data, count, type, peer, handle, stream);
}

ncclResult_t ncclGroupStart() {
    ++depth;
    return ncclSuccess;
}

/// What one group has asked of a communicator goes together.
ncclResult_t ncclGroupEnd() {
    if (depth == 0) return refuse(ncclInvalidUsage, "the end of a group that was not begun");
    if (--depth > 0) return ncclSuccess;
    const std::vector<Asked> all = std::exchange(asked, {});
    if (const ncclResult_t wrong = std::exchange(wrong_in_group, ncclSuccess); wrong != ncclSuccess)
        return wrong;
    ncclResult_t found = ncclSuccess;
    std::vector<Communicator> touched;
    for (const Asked& a : all) {
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
            c->looks_left = static_cast<int>(registry().random() % 3);
        }
        if (const ncclResult_t now = begun(c); now != ncclSuccess) found = now;
    }
    return found;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    const Communicator c = find(handle);
    if (!c) return ncclInvalidArgument;
    {
        const Lock lock(c->mutex);
        if (c->finalizing) return refuse(ncclInvalidArgument, "the communicator was finalized before");
        c->finalizing = true;
    }
    return begun(c);
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    const Communicator c = find(handle);
    if (!c) return ncclInvalidArgument;
    const Lock lock(c->mutex);
    if (c->queued > 0 || !c->waiting.empty())
        return refuse(ncclInvalidUsage, "the communicator's work is not done");
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
