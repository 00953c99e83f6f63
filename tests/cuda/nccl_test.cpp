// Failures of groups by NCCL: a rank that is missing, a rank that is lost, ranks that share a GPU.
// Also that the simulated NCCL rejects what NCCL rejects. Two ranks with a GPU each.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cuda/stream.hpp"
#include "base/check.hpp"
#include "collective/implementations.hpp"
#include "collective/process_group.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/device.hpp"

namespace {

using namespace maestro;

/// A group and a GPU; the host waits for both with a short deadline.
struct Rig {
    explicit Rig(int gpu) : device(backend::make_cuda(gpu)) {
        device->set_wait([this](const auto& ready, const std::string& what) {
            waiter.wait_until(ready, [&] { return what; });
        });
        group = collective::make_process_group(world.split(0, world.rank(), "tensor ranks"), *device);
        memory = backend::Buffer(*device, 64);
    }
    Tensor half(int which) const {
        return Tensor(static_cast<char*>(memory.data()) + 32 * which, DType::f32, {2, 2});
    }
    comm::Waiter waiter{2};
    comm::Communicator world = comm::Communicator::world(waiter);
    std::unique_ptr<backend::Backend> device;
    std::unique_ptr<collective::ProcessGroup> group;
    backend::Buffer memory;
};

/// Rank 0 has sent and waits for its device. The host's wait ends at the deadline, and the error names the
/// group.
void a_missing_rank_is_reported(const comm::Communicator& world) {
    Rig rig(world.rank());
    MAESTRO_CHECK(rig.group->transport().starts_with("NCCL "), "{}", rig.group->transport());
    if (world.rank() == 0) {
        rig.group->wait(rig.group->start_shift(*rig.device, rig.half(0), rig.half(1), 1));
        std::vector<float> values(4);
        test::expect_error(ExitCode::peer_lost, "the other 1 ranks of tensor ranks, by NCCL",
                           [&] { rig.device->download(rig.half(1), values.data()); });
        rig.group.reset();
    }
    world.barrier();
}

/// The same with a destroyed communicator: NCCL's error is reported long before the deadline.
void a_lost_rank_is_reported_by_nccl(const comm::Communicator& world) {
    Rig rig(world.rank());
    rig.waiter.set_timeout(60);
    if (world.rank() == 1) rig.group.reset();
    world.barrier();
    if (world.rank() == 0) {
        std::vector<float> values(4);
        test::expect_error(ExitCode::peer_lost, "rank 1 is gone", [&] {
            rig.group->wait(rig.group->start_shift(*rig.device, rig.half(0), rig.half(1), 1));
            rig.device->download(rig.half(1), values.data());
        });
        rig.group.reset();
    }
    world.barrier();
}

/// make_process_group() does not use NCCL in this case.
void shared_gpus_are_rejected(const comm::Communicator& world) {
    Rig rig(0);
    MAESTRO_CHECK(rig.group->transport().ends_with("pinned memory: 2 ranks share 1 GPU"), "{}",
                  rig.group->transport());
    test::expect_error(ExitCode::broken_invariant, "Duplicate GPU detected", [&] {
        collective::make_nccl_group(world.split(0, world.rank(), "tensor ranks"),
                                    collective::Nodes(world.size()), *rig.device, collective::Sums::automatic,
                                    "");
    });
}

void an_older_library_is_refused(const comm::Communicator& world) {
    setenv("MAESTRO_HOSTED_NCCL", "22005", 1);
    test::expect_error(ExitCode::bad_deck, "NCCL 2.20.5 is loaded, and this program was compiled for NCCL 2.",
                       [&] { Rig rig(world.rank()); });
    unsetenv("MAESTRO_HOSTED_NCCL");
}

ncclResult_t completed(ncclComm_t communicator, ncclResult_t found) {
    while (found == ncclInProgress) ncclCommGetAsyncError(communicator, &found);
    return found;
}

void invalid_calls_are_rejected(const comm::Communicator& world) {
    const auto device = backend::make_cuda(world.rank());
    const backend::CudaStream stream;
    const backend::Buffer memory(*device, 64);
    ncclUniqueId id{};
    if (world.rank() == 0) ncclGetUniqueId(&id);
    world.broadcast(std::span(&id, 1));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t communicator = nullptr;
    const auto send = [&](const void* data, std::size_t bytes, int peer) {
        return ncclSend(data, bytes, ncclUint8, peer, communicator, stream);
    };
    const int other = 1 - world.rank();
    const ncclResult_t init_result = ncclCommInitRankConfig(&communicator, 2, id, world.rank(), &config);
    if (init_result == ncclInProgress)
        MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument,
                      "a call while another one is in progress");
    MAESTRO_CHECK(completed(communicator, init_result) == ncclSuccess, "{}", ncclGetLastError(communicator));
    const int on_host = 0;
    MAESTRO_CHECK(send(&on_host, 4, other) == ncclInvalidArgument, "host memory");
    MAESTRO_CHECK(send(memory.data(), 65, other) == ncclInvalidArgument, "more than the allocation");
    MAESTRO_CHECK(send(memory.data(), 8, 2) == ncclInvalidArgument, "an invalid rank");
    MAESTRO_CHECK(ncclGroupEnd() == ncclInvalidUsage, "ncclGroupEnd without a group");
    MAESTRO_CHECK(completed(communicator, ncclCommFinalize(communicator)) == ncclSuccess, "the end");
    MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument, "a finalized communicator");
    MAESTRO_CHECK(ncclCommDestroy(communicator) == ncclSuccess, "the end");
    MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument, "a destroyed communicator");
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        invalid_calls_are_rejected(world);
        an_older_library_is_refused(world);
        shared_gpus_are_rejected(world);
        a_lost_rank_is_reported_by_nccl(world);
        a_missing_rank_is_reported(world);
    });
}
