// Groups and edges by NCCL where something is wrong: a rank that does not come, one that goes, ranks that
// share a GPU; and that the stand-in refuses what NCCL would. Two ranks with a GPU each.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cuda/stream.hpp"
#include "base/check.hpp"
#include "channel/open.hpp"
#include "collective/implementations.hpp"
#include "collective/process_group.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/device.hpp"
#include "support/edges.hpp"

namespace {

using namespace maestro;

/// A group with a short deadline, on a GPU for which the host waits with that deadline.
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

/// Rank 0 has sent and waits for its device. The host's wait ends by the deadline and names the group.
void a_rank_that_does_not_come_is_named(const comm::Communicator& world) {
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

/// The same, but its communicator is gone: NCCL's own words, long before the deadline.
void a_rank_that_goes_is_told_by_nccl(const comm::Communicator& world) {
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

/// What make_process_group() does not ask for.
void ranks_that_share_a_gpu_are_refused(const comm::Communicator& world) {
    Rig rig(0);
    MAESTRO_CHECK(rig.group->transport().ends_with("pinned memory: 2 ranks share 1 GPU"), "{}",
                  rig.group->transport());
    test::expect_error(ExitCode::broken_invariant, "Duplicate GPU detected", [&] {
        collective::make_nccl_group(world.split(0, world.rank(), "tensor ranks"), *rig.device, "");
    });
}

/// The producer sends rows to a rank whose end of the edge is gone.
void an_edge_whose_rank_goes_is_told_by_nccl(const comm::Communicator& world) {
    Rig rig(world.rank());
    rig.waiter.set_timeout(60);
    channel::ChannelSpec spec;
    spec.name = "up-down";
    spec.producers = {{0}};
    spec.consumers = {{1}};
    spec.width = 2;
    spec.max_sent = spec.max_received = 2;
    spec.max_samples = 1;
    const transport::Backends ends{rig.device.get(), rig.device.get()};
    auto [channels, description] = channel::open_channels(rig.world, std::span(&spec, 1),
                                                          channel::Request::automatic, std::span(&ends, 1));
    MAESTRO_CHECK(description[0].find("edge up-down: by NCCL ") == 0, "{}", description[0]);
    const channel::Route route = testing_support::route(7, 0, 0, 0, 0, 2);
    channels[0]->begin_step(0, std::span(&route, 1));
    if (world.rank() == 1)
        test::expect_error(ExitCode::io_error, "alone", [&] {
            const auto edge = std::move(channels[0]);  // goes as the error comes
            throw Error(ExitCode::io_error, "alone");
        });
    world.barrier();
    if (world.rank() == 0)
        test::expect_error(ExitCode::peer_lost, "rank 1 is gone", [&] {
            const auto edge = std::move(channels[0]);
            edge->put(0, rig.half(0));
            edge->wait_drained(0);
        });
    world.barrier();
}

ncclResult_t settled(ncclComm_t communicator, ncclResult_t found) {
    while (found == ncclInProgress) ncclCommGetAsyncError(communicator, &found);
    return found;
}

void wrong_calls_are_refused(const comm::Communicator& world) {
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
    const ncclResult_t begun = ncclCommInitRankConfig(&communicator, 2, id, world.rank(), &config);
    if (begun == ncclInProgress)
        MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument,
                      "a call before the end of another");
    MAESTRO_CHECK(settled(communicator, begun) == ncclSuccess, "{}", ncclGetLastError(communicator));
    const int on_host = 0;
    MAESTRO_CHECK(send(&on_host, 4, other) == ncclInvalidArgument, "memory of the host");
    MAESTRO_CHECK(send(memory.data(), 65, other) == ncclInvalidArgument, "more than there is");
    MAESTRO_CHECK(send(memory.data(), 8, 2) == ncclInvalidArgument, "a rank that is none");
    MAESTRO_CHECK(ncclGroupEnd() == ncclInvalidUsage, "the end of no group");
    MAESTRO_CHECK(settled(communicator, ncclCommFinalize(communicator)) == ncclSuccess, "the end");
    MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument, "a finalized communicator");
    MAESTRO_CHECK(ncclCommDestroy(communicator) == ncclSuccess, "the end");
    MAESTRO_CHECK(send(memory.data(), 8, other) == ncclInvalidArgument, "a destroyed communicator");
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        wrong_calls_are_refused(world);
        ranks_that_share_a_gpu_are_refused(world);
        a_rank_that_goes_is_told_by_nccl(world);
        a_rank_that_does_not_come_is_named(world);
        an_edge_whose_rank_goes_is_told_by_nccl(world);
    });
}
