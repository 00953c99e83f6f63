#include "comm/topology.hpp"

#include <fmt/core.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <memory>

#include "base/check.hpp"
#include "base/checksum.hpp"
#include "base/error.hpp"
#include "comm/check.hpp"

namespace maestro::comm {

namespace {
struct Machine {  // hwloc's view, freed at the end of the scope
    hwloc_topology_t handle = nullptr;
    Machine() {
        if (hwloc_topology_init(&handle) != 0 || hwloc_topology_load(handle) != 0)
            throw Error(ExitCode::broken_invariant, "hwloc cannot read the processors of this machine");
    }
    ~Machine() { hwloc_topology_destroy(handle); }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
};

struct FreeSet {
    void operator()(hwloc_bitmap_t set) const { hwloc_bitmap_free(set); }
};
using Set = std::unique_ptr<hwloc_bitmap_s, FreeSet>;

Set to_set(const Machine& machine, const cpu_set_t& mask) {
    Set set(hwloc_bitmap_alloc());
    hwloc_cpuset_from_glibc_sched_affinity(machine.handle, set.get(), &mask, sizeof mask);
    return set;
}

/// The processors of each physical core within `set`; each processor is a core where hwloc knows no cores.
std::vector<Set> cores_of(const Machine& machine, hwloc_const_bitmap_t set) {
    std::vector<Set> cores;
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_CORE, HWLOC_OBJ_PU}) {
        for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(machine.handle, type, core));) {
            if (!hwloc_bitmap_intersects(core->cpuset, set)) continue;
            Set part(hwloc_bitmap_alloc());
            hwloc_bitmap_and(part.get(), core->cpuset, set);
            cores.push_back(std::move(part));
        }
        if (!cores.empty()) break;
    }
    return cores;
}

/// Cores' worth of time that a container's quota gives (control groups, version 2 or 1); 0: no limit.
double quota_cores() {
    std::ifstream two("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (two >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
    std::ifstream one("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream one_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    double us = 0;
    if (one >> us && one_period >> period && us > 0 && period > 0) return us / period;
    return 0;
}

std::vector<int> processors_of(hwloc_const_bitmap_t set) {
    std::vector<int> ids;
    for (int id = hwloc_bitmap_first(set); id >= 0; id = hwloc_bitmap_next(set, id)) ids.push_back(id);
    return ids;
}

std::string host_name() {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
    return name.data();
}
}  // namespace

Topology place_rank(const Communicator& world) {
    const Communicator node = world.same_node();
    Topology t;
    t.host = host_name();
    t.ranks_on_node = node.size();
    t.rank_on_node = node.rank();
    t.nodes = lowest_on_nodes(world, node);
    t.ranks_per_node = common_ranks_per_node(t.nodes);

    cpu_set_t affinity;
    CPU_ZERO(&affinity);
    if (sched_getaffinity(0, sizeof affinity, &affinity) != 0)
        throw Error(ExitCode::broken_invariant, "sched_getaffinity failed: more than 1024 processors?");
    cpu_set_t all = affinity;
    int sharing = 0;  // ranks with just this rank's processors, and which of them this one is
    int place = 0;
    const std::vector<cpu_set_t> masks = node.allgather(affinity);
    for (std::size_t i = 0; i < masks.size(); ++i) {
        CPU_OR(&all, &all, &masks[i]);
        if (!CPU_EQUAL(&masks[i], &affinity)) continue;
        if (static_cast<int>(i) < node.rank()) ++place;
        ++sharing;
    }

    const Machine machine;
    const Set affinity_set = to_set(machine, affinity);
    const std::vector<Set> cores = cores_of(machine, affinity_set.get());
    t.cores = std::max<int>(1, static_cast<int>(cores_of(machine, to_set(machine, all).get()).size()));
    t.all_cores = std::max<int>(
        t.cores,
        static_cast<int>(cores_of(machine, hwloc_topology_get_allowed_cpuset(machine.handle)).size()));
    int available = std::max<int>(1, static_cast<int>(cores.size()));
    const double quota = quota_cores();
    const bool limited = quota > 0 && std::ceil(quota) < t.cores;
    if (limited) {  // which cores the quota buys is not ours to say: no binding
        t.cores = t.all_cores = std::max(1, static_cast<int>(std::ceil(quota)));
        available = std::clamp(t.cores * sharing / t.ranks_on_node, 1, available);
    }
    t.threads = std::max(1, available / sharing);
    t.processors = processors_of(affinity_set.get());
    t.node_processors = processors_of(to_set(machine, all).get());
    t.bound = sharing == 1 && !limited;
    if (sharing > 1 && sharing <= available && !limited) {
        Set share(hwloc_bitmap_alloc());
        for (int i = place * t.threads; i < (place + 1) * t.threads; ++i)
            hwloc_bitmap_or(share.get(), share.get(), cores[i].get());
        t.bound = hwloc_set_cpubind(machine.handle, share.get(), HWLOC_CPUBIND_THREAD) == 0;
        if (t.bound) t.processors = processors_of(share.get());
    }
    return t;
}

std::string Topology::note() const {
    if (cores >= all_cores) return "";
    return fmt::format(
        "note: the launcher has bound the ranks on {} to {} of its {} cores; with mpirun --bind-to none, or "
        "srun --cpu-bind=none, they share all",
        host, cores, all_cores);
}

std::string Topology::describe() const {
    std::string list;
    for (std::size_t i = 0; i < processors.size();) {
        std::size_t last = i;
        while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
        if (!list.empty()) list += ",";
        list += last == i ? fmt::format("{}", processors[i])
                          : fmt::format("{}-{}", processors[i], processors[last]);
        i = last + 1;
    }
    return fmt::format(
        "host {}, rank {} of {} there, which may use {} of the host's {} core{}; {} thread{}, {} processors "
        "{}",
        host, rank_on_node, ranks_on_node, cores, all_cores, all_cores == 1 ? "" : "s", threads,
        threads == 1 ? "" : "s", bound ? "bound to" : "not bound, on", list);
}

bool share_a_clock(const Communicator& world) {
    std::array<char, 64> boot{};
    std::ifstream("/proc/sys/kernel/random/boot_id").read(boot.data(), boot.size() - 1);
    const auto all = world.allgather(boot);
    return std::all_of(all.begin(), all.end(), [&](const auto& other) { return other == all.front(); });
}

std::string library_versions() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MAESTRO_MPI(MPI_Get_library_version(text.data(), &length));
    std::string mpi(text.data(), static_cast<std::size_t>(length));
    mpi = mpi.substr(0, mpi.find_first_of(",\n"));
    int version = 0;
    int subversion = 0;
    MAESTRO_MPI(MPI_Get_version(&version, &subversion));
    const unsigned hwloc = hwloc_get_api_version();
    return fmt::format("{} (built with {}.{}.{}, MPI {}.{}), hwloc {}.{}.{}", mpi, OMPI_MAJOR_VERSION,
                       OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION, version, subversion, hwloc >> 16,
                       (hwloc >> 8) & 0xffu, hwloc & 0xffu);
}

std::uint64_t build_identity() {
    Checksum checksum;
    std::ifstream program("/proc/self/exe", std::ios::binary);
    std::vector<char> block(std::size_t{1} << 20);
    do {
        program.read(block.data(), static_cast<std::streamsize>(block.size()));
        checksum.add(block.data(), static_cast<std::size_t>(program.gcount()));
    } while (program);
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MAESTRO_MPI(MPI_Get_library_version(text.data(), &length));
    checksum.add(text.data(), static_cast<std::size_t>(length));
    return checksum.value();
}

void check_same_build(const Communicator& world) {
    const std::vector<std::uint64_t> builds = world.allgather(build_identity());
    std::string others;
    for (int rank = 0; rank < world.size(); ++rank)
        if (builds[rank] != builds[0]) others += fmt::format("{}{}", others.empty() ? "" : ", ", rank);
    if (others.empty()) return;
    throw Error(
        ExitCode::builds_differ,
        fmt::format("other builds of the program or of MPI than rank 0's run on these ranks: {}; install the "
                    "same files on every node",
                    others),
        Scope::all_ranks);
}

}  // namespace maestro::comm
