#include "train/environment_report.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/utsname.h>

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
    std::string sections;
    for (const auto& s : launch.deck.graph.sections)
        if (launch.world.rank() >= s.first_rank && launch.world.rank() < s.first_rank + s.layout.ranks())
            sections += fmt::format("{}{} replica {}", sections.empty() ? "" : ", ", s.name,
                                    launch.world.rank() - s.first_rank);
    const auto ranks = launch.world.gather(
        fmt::format("rank {}: {}; {}", launch.world.rank(), launch.topology.describe(), sections));
    std::string text =
        fmt::format("maestro {}, compiled by " MAESTRO_COMPILER
                    ", on {} {} {}\n{}\nHDF5 {}.{}.{} (built with {}.{}.{})\n{}",
                    MAESTRO_VERSION, system.sysname, system.release, system.machine, comm::library_versions(),
                    major, minor, release, H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, backend);
    for (const std::string& line : ranks) text += "\n" + line;
    launch.world.broadcast(text);
    return text;
}

}  // namespace maestro::train
