#include "train/run/environment_report.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/utsname.h>

#include "backend/gpus.hpp"
#include "graph/grid.hpp"
#include "transport/choice.hpp"

#if defined(__clang__)
#define MAESTRO_COMPILER "clang " __clang_version__
#else
#define MAESTRO_COMPILER "g++ " __VERSION__
#endif

namespace maestro::train {

namespace {

std::string describe_gpu_of(const backend::Device& device) {
    return fmt::format("{}: {}", device.reason, backend::describe_gpu(device.number));
}

/// What this rank's GPU exchanges by; "" on the CPU.
std::string exchange_of(const backend::Device& device) {
    if (!device.gpu) return {};
    const std::string version = transport::nccl_version();
    return version.empty() ? ", built without NCCL" : ", " + version;
}

/// The first rank of a host with GPUs reports them.
std::string peers_of(const RunContext& context) {
    if (!context.device.gpu || context.topology.rank_on_node != 0) return {};
    return fmt::format("\nGPUs of {} as peers: {}", context.topology.host, backend::describe_peers());
}

}  // namespace

std::string environment_report(const RunContext& context, const std::string& backend) {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    utsname system{};
    uname(&system);
    const int rank = context.world.rank();
    const backend::Device& device = context.device;
    const auto ranks =
        context.world.gather(fmt::format("rank {}: {}; {}{}", rank, context.topology.describe(),
                                         graph::describe_place(context.scenario.graph, rank),
                                         device.gpu ? "; " + describe_gpu_of(device) : "") +
                             peers_of(context));
    std::string text =
        fmt::format("maestro {}, compiled by " MAESTRO_COMPILER
                    ", on {} {} {}\n{}\nHDF5 {}.{}.{} (built with {}.{}.{})\n{}{}{}",
                    MAESTRO_VERSION, system.sysname, system.release, system.machine, comm::library_versions(),
                    major, minor, release, H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, backend,
                    exchange_of(device), device.gpu ? "" : "; " + device.reason);
    for (const std::string& line : ranks) text += "\n" + line;
    context.world.broadcast(text);
    return text;
}

}  // namespace maestro::train
