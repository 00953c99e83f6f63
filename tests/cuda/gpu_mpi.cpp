// A CUDA-aware MPI for simulated GPUs: overrides functions of MPI in programs that link it. Messages from and
// to device memory pass through staging buffers on the host.
#include <mpi.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "hosted/hosted.hpp"

namespace {

/// Host memory that MPI uses instead of device memory until the request completes.
struct StagingBuffer {
    std::vector<char> bytes;
    void* device;    ///< destination of a receive; null for a send
    int polls_left;  ///< polls of MPI_Test() before the request may complete
};
std::mutex mutex;  ///< protects the variables below
int requests = 0;
std::map<MPI_Request, StagingBuffer> staging_buffers;

}  // namespace

extern "C" {

int MPIX_Query_cuda_support() {
    return 1;
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm communicator,
              MPI_Request* request) {
    if (count == 0 || !hosted::is_device(data))
        return PMPI_Isend(data, count, type, peer, tag, communicator, request);
    StagingBuffer buffer{std::vector<char>(static_cast<std::size_t>(count)), nullptr, 0};
    {
        const hosted::Unlocked unlocked;
        std::memcpy(buffer.bytes.data(), data, buffer.bytes.size());
    }
    const std::lock_guard lock(mutex);
    buffer.polls_left = ++requests % 4;
    const int found = PMPI_Isend(buffer.bytes.data(), count, type, peer, tag, communicator, request);
    staging_buffers[*request] = std::move(buffer);
    return found;
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm communicator,
              MPI_Request* request) {
    if (count == 0 || !hosted::is_device(data))
        return PMPI_Irecv(data, count, type, peer, tag, communicator, request);
    StagingBuffer buffer{std::vector<char>(static_cast<std::size_t>(count)), data, 0};
    const std::lock_guard lock(mutex);
    buffer.polls_left = ++requests % 4;
    const int found = PMPI_Irecv(buffer.bytes.data(), count, type, peer, tag, communicator, request);
    staging_buffers[*request] = std::move(buffer);
    return found;
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
    const std::lock_guard lock(mutex);
    const auto buffer = staging_buffers.find(*request);
    if (buffer != staging_buffers.end() && buffer->second.polls_left-- > 0) {
        *flag = 0;
        return MPI_SUCCESS;
    }
    const int found = PMPI_Test(request, flag, status);
    if (buffer == staging_buffers.end() || *flag == 0) return found;
    if (buffer->second.device) {
        const hosted::Unlocked unlocked;
        std::memcpy(buffer->second.device, buffer->second.bytes.data(), buffer->second.bytes.size());
    }
    staging_buffers.erase(buffer);
    return found;
}

}  // extern "C"
