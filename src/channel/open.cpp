// All channels of a run: checked against the machines' shared memory before the first window is made.
#include <fmt/core.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "channel/channel.hpp"

namespace maestro::channel {

namespace {
constexpr double kMiB = 1024.0 * 1024.0;
// Open MPI keeps its own state of a window beside the data.
constexpr std::uint64_t kSpare = std::uint64_t{4} << 20;

/// Where Open MPI puts the memory of windows that ranks of a node share; it fills up without an error, but by
/// SIGBUS.
std::string shared_directory() {
    const char* chosen = std::getenv("OMPI_MCA_osc_sm_backing_directory");
    return chosen ? chosen : "/dev/shm";
}

struct NodeMemory {
    std::uint64_t needed = 0;
    std::uint64_t free = 0;
    char host[64] = {};
};

NodeMemory measure(const comm::Communicator& world, std::span<const ChannelSpec> specs) {
    const comm::Communicator node = world.same_node();
    std::int64_t bytes = 0;
    for (const ChannelSpec& spec : specs)
        bytes += static_cast<std::int64_t>(shared_bytes(spec, world.rank()));
    NodeMemory memory;
    memory.needed = static_cast<std::uint64_t>(node.sum(bytes));
    struct statvfs space = {};
    memory.free = statvfs(shared_directory().c_str(), &space) == 0
                      ? static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize
                      : UINT64_MAX;  // not a file system that can be asked: let MPI try
    gethostname(memory.host, sizeof memory.host - 1);
    return memory;
}

std::string list_edges(std::span<const ChannelSpec> specs) {
    std::string list;
    for (const ChannelSpec& spec : specs) {
        std::size_t bytes = 0;
        for (int rank : spec.producers) bytes += shared_bytes(spec, rank);
        for (int rank : spec.consumers) bytes += shared_bytes(spec, rank);
        list += fmt::format("{}{} {:.0f} MiB (window {} x {} rows x {} {})", list.empty() ? "" : ", ",
                            spec.name, static_cast<double>(bytes) / kMiB, spec.window, spec.max_rows,
                            spec.width, name_of(spec.dtype));
    }
    return list;
}
}  // namespace

std::vector<std::unique_ptr<Channel>> open_channels(const comm::Communicator& world,
                                                    std::span<const ChannelSpec> specs) {
    for (const NodeMemory& memory : world.allgather(measure(world, specs))) {
        if (memory.needed == 0 || memory.needed + kSpare <= memory.free) continue;
        throw Error(
            ExitCode::bad_deck,
            fmt::format(
                "the channels need {:.0f} MiB of shared memory on {}, {} has {:.0f} MiB free: {}; choose "
                "a smaller window or micro_batch for the section that sends, or enlarge it",
                static_cast<double>(memory.needed + kSpare) / kMiB, memory.host, shared_directory(),
                static_cast<double>(memory.free) / kMiB, list_edges(specs)),
            Scope::all_ranks);
    }
    std::vector<std::unique_ptr<Channel>> channels(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto& s = specs[i];
        bool member = false;
        for (int rank : s.producers) member = member || rank == world.rank();
        for (int rank : s.consumers) member = member || rank == world.rank();
        if (member) channels[i] = std::make_unique<Channel>(world, s, static_cast<int>(i));
        // One at a time: Open MPI 4.1 (osc/rdma) names a window's shared file by job and communicator id, and
        // edges without a common rank may have the same id. The file is unlinked before MPI_Win_allocate
        // returns.
        world.barrier();
    }
    return channels;
}

}  // namespace maestro::channel
