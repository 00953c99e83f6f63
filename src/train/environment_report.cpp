#include "train/environment_report.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/utsname.h>

#include "graph/grid.hpp"

#if defined(__clang__)
#define MAESTRO_COMPILER "clang " __clang_version__
#else
#define MAESTRO_COMPILER "g++ " __VERSION__
#endif

namespace maestro::train {

std::string environment_report(const Launch& launch, const std::string& backend) {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    utsname system{};
    uname(&system);
    const int rank = launch.world.rank();
    const backend::Device& device = launch.device;
    const auto ranks = launch.world.gather(fmt::format("rank {}: {}; {}{}", rank, launch.topology.describe(),
                                                       graph::describe_place(launch.deck.graph, rank),
                                                       device.gpu ? "; " + device.reason : ""));
    std::string text =
        fmt::format("maestro {}, compiled by " MAESTRO_COMPILER
                    ", on {} {} {}\n{}\nHDF5 {}.{}.{} (built with {}.{}.{})\n{}{}",
                    MAESTRO_VERSION, system.sysname, system.release, system.machine, comm::library_versions(),
                    major, minor, release, H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, backend,
                    device.gpu ? "" : "; " + device.reason);
    for (const std::string& line : ranks) text += "\n" + line;
    launch.world.broadcast(text);
    return text;
}

}  // namespace maestro::train
