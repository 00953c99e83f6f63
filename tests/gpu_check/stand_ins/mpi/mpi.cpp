#include <mpi.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/error.hpp"
#include "shared_world.hpp"

namespace maestro::gpu_check {

namespace {
constexpr std::size_t kSlot = std::size_t{1} << 16;  ///< bytes that a rank passes to others at a time
}

struct SharedWorld {
    int size;
    double timeout_s;
    std::atomic<int> arrived = 0;
    std::atomic<unsigned> barriers = 0;  ///< that have ended
    char slots[kMostRanks][kSlot] = {};
};

void UnmapWorld::operator()(SharedWorld* world) const {
    munmap(world, sizeof *world);
}

std::unique_ptr<SharedWorld, UnmapWorld> make_shared_world(int size, double timeout_s) {
    void* const memory =
        mmap(nullptr, sizeof(SharedWorld), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || size < 1 || size > kMostRanks)
        throw Error(ExitCode::broken_invariant, "no memory for ranks to share");
    return std::unique_ptr<SharedWorld, UnmapWorld>(new (memory)
                                                        SharedWorld{.size = size, .timeout_s = timeout_s});
}

}  // namespace maestro::gpu_check

using maestro::gpu_check::SharedWorld;

/// The ranks of `shared`; without it this process alone.
struct MpiCommunicator {
    SharedWorld* shared = nullptr;
    int rank = 0;
    int size() const { return shared ? shared->size : 1; }
};
MpiCommunicator mpi_world, mpi_self;

void maestro::gpu_check::join_world(SharedWorld& world, int rank) {
    mpi_world = {&world, rank};
}

namespace {

std::size_t size_of(MPI_Datatype type) {
    return type == MPI_BYTE ? 1 : type == MPI_INT32_T ? 4 : 8;
}

/// Returns whether all ranks have come within the deadline.
bool meet(const MpiCommunicator& c) {
    if (!c.shared) return true;
    SharedWorld& world = *c.shared;
    const unsigned number = world.barriers;
    if (++world.arrived == world.size) {
        world.arrived = 0;
        ++world.barriers;
        return true;
    }
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(world.timeout_s);
    while (world.barriers == number) {
        if (Clock::now() > end) return false;
        sched_yield();
    }
    return true;
}

/// Calls read(rank, begin, bytes, slot) for what each rank has in its `data`, in the order of ranks, in
/// pieces.
template <class Read>
int share(const MpiCommunicator& c, const void* data, std::size_t bytes, Read&& read) {
    for (std::size_t begin = 0; begin < bytes; begin += maestro::gpu_check::kSlot) {
        const std::size_t piece = std::min(maestro::gpu_check::kSlot, bytes - begin);
        std::memcpy(c.shared->slots[c.rank], static_cast<const char*>(data) + begin, piece);
        if (!meet(c)) return MPI_ERR_OTHER;
        for (int rank = 0; rank < c.size(); ++rank) read(rank, begin, piece, c.shared->slots[rank]);
        if (!meet(c)) return MPI_ERR_OTHER;
    }
    return MPI_SUCCESS;
}

/// data[i] = data[i] + more[i], or the greater one, for the elements of `bytes` bytes.
template <class T>
void combine(void* data, const char* more, std::size_t bytes, MPI_Op op) {
    for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
        T a, b;
        std::memcpy(&a, static_cast<char*>(data) + at, sizeof a);
        std::memcpy(&b, more + at, sizeof b);
        a = op == MPI_SUM ? static_cast<T>(a + b) : std::max(a, b);
        std::memcpy(static_cast<char*>(data) + at, &a, sizeof a);
    }
}

int done(MPI_Request* request, int result) {
    *request = MPI_REQUEST_NULL;
    return result;
}

}  // namespace

int MPI_Init_thread(int*, char***, int, int* provided) {
    *provided = MPI_THREAD_MULTIPLE;
    return MPI_SUCCESS;
}
int MPI_Initialized(int* flag) {
    *flag = 1;
    return MPI_SUCCESS;
}
int MPI_Finalized(int* flag) {
    *flag = 0;
    return MPI_SUCCESS;
}
int MPI_Finalize() {
    return MPI_SUCCESS;
}
int MPI_Abort(MPI_Comm, int code) {
    _exit(code);
}
int MPI_Error_class(int code, int* error_class) {
    *error_class = code;
    return MPI_SUCCESS;
}
int MPI_Error_string(int code, char* text, int* length) {
    const char* const message = code == MPI_ERR_OTHER                   ? "a rank does not come"
                                : code == MPI_ERR_UNSUPPORTED_OPERATION ? "MPI's stand-in does not have this"
                                                                        : "an error";
    std::strncpy(text, message, MPI_MAX_ERROR_STRING - 1);
    *length = static_cast<int>(std::strlen(message));
    return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm communicator, int* rank) {
    *rank = communicator->rank;
    return MPI_SUCCESS;
}
int MPI_Comm_size(MPI_Comm communicator, int* size) {
    *size = communicator->size();
    return MPI_SUCCESS;
}
int MPI_Comm_dup(MPI_Comm communicator, MPI_Comm* created) {
    *created = communicator;
    return MPI_SUCCESS;
}
int MPI_Comm_split(MPI_Comm communicator, int colour, int, MPI_Comm* created) {
    int same = 1;
    if (communicator->shared) {
        const int found = share(*communicator, &colour, sizeof colour,
                                [&](int, std::size_t, std::size_t bytes, const char* slot) {
                                    if (std::memcmp(slot, &colour, bytes) != 0) same = 0;
                                });
        if (found != MPI_SUCCESS) return found;
    }
    *created = communicator;
    return same == 1 ? MPI_SUCCESS : MPI_ERR_UNSUPPORTED_OPERATION;
}
int MPI_Comm_split_type(MPI_Comm communicator, int, int, MPI_Info, MPI_Comm* created) {
    return MPI_Comm_dup(communicator, created);
}
int MPI_Comm_create_group(MPI_Comm, MPI_Group, int, MPI_Comm*) {
    return MPI_ERR_UNSUPPORTED_OPERATION;
}
int MPI_Comm_free(MPI_Comm* communicator) {
    *communicator = MPI_COMM_NULL;
    return MPI_SUCCESS;
}
int MPI_Comm_group(MPI_Comm, MPI_Group* group) {
    *group = MPI_GROUP_NULL;
    return MPI_SUCCESS;
}
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) {
    return MPI_SUCCESS;
}
int MPI_Comm_set_name(MPI_Comm, const char*) {
    return MPI_SUCCESS;
}
int MPI_Group_incl(MPI_Group, int, const int*, MPI_Group*) {
    return MPI_ERR_UNSUPPORTED_OPERATION;
}
int MPI_Group_free(MPI_Group*) {
    return MPI_SUCCESS;
}
/// Every communicator has the ranks of the world.
int MPI_Group_translate_ranks(MPI_Group, int count, const int* ranks, MPI_Group, int* translated) {
    std::copy(ranks, ranks + count, translated);
    return MPI_SUCCESS;
}

int MPI_Ibarrier(MPI_Comm communicator, MPI_Request* request) {
    return done(request, meet(*communicator) ? MPI_SUCCESS : MPI_ERR_OTHER);
}
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm communicator,
               MPI_Request* request) {
    if (!communicator->shared) return done(request, MPI_SUCCESS);
    const auto take = [&](int rank, std::size_t begin, std::size_t bytes, const char* slot) {
        if (rank == root) std::memcpy(static_cast<char*>(data) + begin, slot, bytes);
    };
    return done(request, share(*communicator, data, static_cast<std::size_t>(count) * size_of(type), take));
}
int MPI_Iallgather(const void* data, int count, MPI_Datatype type, void* all, int, MPI_Datatype,
                   MPI_Comm communicator, MPI_Request* request) {
    const std::size_t each = static_cast<std::size_t>(count) * size_of(type);
    if (!communicator->shared) {
        std::memcpy(all, data, each);
        return done(request, MPI_SUCCESS);
    }
    const auto take = [&](int rank, std::size_t begin, std::size_t bytes, const char* slot) {
        std::memcpy(static_cast<char*>(all) + static_cast<std::size_t>(rank) * each + begin, slot, bytes);
    };
    return done(request, share(*communicator, data, each, take));
}
int MPI_Iallreduce(const void*, void* data, int count, MPI_Datatype type, MPI_Op op, MPI_Comm communicator,
                   MPI_Request* request) {
    if (!communicator->shared) return done(request, MPI_SUCCESS);
    const auto take = [&](int rank, std::size_t begin, std::size_t bytes, const char* slot) {
        void* const target = static_cast<char*>(data) + begin;
        if (rank == 0)
            std::memcpy(target, slot, bytes);
        else if (type == MPI_DOUBLE)
            combine<double>(target, slot, bytes, op);
        else if (type == MPI_INT32_T)
            combine<std::int32_t>(target, slot, bytes, op);
        else
            combine<std::int64_t>(target, slot, bytes, op);
    };
    return done(request, share(*communicator, data, static_cast<std::size_t>(count) * size_of(type), take));
}

int MPI_Isend(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request* request) {
    return done(request, MPI_ERR_UNSUPPORTED_OPERATION);
}
int MPI_Irecv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request* request) {
    return done(request, MPI_ERR_UNSUPPORTED_OPERATION);
}
int MPI_Recv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status*) {
    return MPI_ERR_UNSUPPORTED_OPERATION;
}
/// No message ever arrives.
int MPI_Iprobe(int, int, MPI_Comm, int* flag, MPI_Status*) {
    *flag = 0;
    return MPI_SUCCESS;
}
int MPI_Get_count(const MPI_Status*, MPI_Datatype, int* count) {
    *count = 0;
    return MPI_SUCCESS;
}
int MPI_Test(MPI_Request*, int* flag, MPI_Status*) {
    *flag = 1;
    return MPI_SUCCESS;
}
int MPI_Testall(int, MPI_Request*, int* flag, MPI_Status*) {
    *flag = 1;
    return MPI_SUCCESS;
}
int MPI_Request_get_status(MPI_Request, int* flag, MPI_Status*) {
    *flag = 1;
    return MPI_SUCCESS;
}
int MPI_Request_free(MPI_Request* request) {
    return done(request, MPI_SUCCESS);
}
