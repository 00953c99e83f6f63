#include "channel/open.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "comm/environment.hpp"
#include "transport/choice.hpp"

namespace maestro::channel {

using transport::Method;

namespace {
constexpr double kMiB = 1024.0 * 1024.0;
// Open MPI also keeps the state of a window there, which is not part of rank_bytes().
constexpr std::uint64_t kSpare = std::uint64_t{4} << 20;

/// Where Open MPI puts the memory of shared windows. When it is full, there is no error but a SIGBUS at the
/// first access, so the free space is compared with the needs of all edges before the first window is made.
std::string shared_directory() {
    const char* chosen = std::getenv("OMPI_MCA_osc_sm_backing_directory");
    return chosen ? chosen : "/dev/shm";
}

struct NodeMemory {
    std::uint64_t needed = 0;
    std::uint64_t free = 0;
};

NodeMemory measure(const comm::Communicator& world, std::int64_t bytes) {
    NodeMemory memory;
    // All ranks of a node draw on one file system, so it is their sum that has to fit.
    memory.needed = static_cast<std::uint64_t>(world.same_node().sum(bytes));
    struct statvfs space = {};
    memory.free = statvfs(shared_directory().c_str(), &space) == 0
                      ? static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize
                      : UINT64_MAX;  // unknown free space: let MPI try
    return memory;
}

std::string list_edges(std::span<const ChannelSpec> specs, std::span<const transport::Choice> choices) {
    std::string list;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const ChannelSpec& spec = specs[i];
        if (choices[i].method != Method::shared_memory) continue;
        std::size_t bytes = 0;
        for (const int rank : ranks_of(spec)) bytes += rank_bytes(spec, rank);
        list += fmt::format("{}{} {:.0f} MiB (window {} x {} rows x {} {})", list.empty() ? "" : ", ",
                            spec.name, static_cast<double>(bytes) / kMiB, spec.window, spec.max_received,
                            spec.width, name_of(spec.dtype));
    }
    return list;
}

/// Collective. Every rank judges every node: a rank that threw alone would leave the others waiting in the
/// collective calls that make the windows.
void check_shared_memory(const comm::Communicator& world, std::span<const std::string> host_of,
                         std::span<const ChannelSpec> specs, std::span<const transport::Choice> choices) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < specs.size(); ++i)
        if (choices[i].method == Method::shared_memory)
            bytes += static_cast<std::int64_t>(rank_bytes(specs[i], world.rank()));
    const std::vector<NodeMemory> all = world.allgather(measure(world, bytes));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const NodeMemory& memory = all[rank];
        if (memory.needed == 0 || memory.needed + kSpare <= memory.free) continue;
        throw Error(
            ExitCode::bad_deck,
            fmt::format(
                "the channels need {:.0f} MiB of shared memory on {}, {} has {:.0f} MiB free: {}; choose "
                "a smaller window or micro_batch for the section that sends, enlarge it, or set "
                "run.transport = \"messages\"",
                static_cast<double>(memory.needed + kSpare) / kMiB, host_of[rank], shared_directory(),
                static_cast<double>(memory.free) / kMiB, list_edges(specs, choices)),
            Scope::all_ranks);
    }
}

/// Collective: the host name of every rank. Names are what the log and errors show, but nodes are compared by
/// them too, so nodes with equal names, such as containers, get different ones here.
std::vector<std::string> hosts_of(const comm::Communicator& world) {
    struct Host {
        int leader;     // distinguishes nodes with the same name
        char name[64];  // longer ones are cut, as allgather() takes values of one size
    };
    Host host{world.rank(), {}};
    gethostname(host.name, sizeof host.name - 1);
    world.same_node().broadcast(std::span(&host, 1));
    const std::vector<Host> all = world.allgather(host);
    std::vector<std::string> names;
    for (const Host& node : all) {
        const bool twice = std::any_of(all.begin(), all.end(), [&](const Host& other) {
            return other.leader != node.leader && std::strcmp(other.name, node.name) == 0;
        });
        names.push_back(twice ? fmt::format("{} (node of rank {})", node.name, node.leader) : node.name);
    }
    return names;
}

/// Where the rows of all ranks are.
struct Devices {
    std::vector<transport::Backends> local;  ///< this rank's, by edge; none for rows in host memory
    std::vector<bool> on_gpu;                ///< by rank of the world
    std::vector<std::string> gpu_of;         ///< Backend::gpu() by rank of the world
    bool mpi_reaches = false;                ///< MPI is CUDA-aware on every rank
};

/// Collective: the GPU of every rank of the world; "" for a rank without one.
std::vector<std::string> gpus_of(const comm::Communicator& world, const std::string& gpu) {
    struct Name {
        char text[128];
    };
    Name name{};
    gpu.copy(name.text, sizeof name.text - 1);
    std::vector<std::string> gpus;
    for (const Name& each : world.allgather(name)) gpus.emplace_back(each.text);
    return gpus;
}

/// Collective. What is chosen for an edge has to be the same on all its ranks, so each learns the GPUs of
/// all.
Devices devices_of(const comm::Communicator& world, std::size_t edges,
                   std::span<const transport::Backends> backends) {
    const auto ranks = static_cast<std::size_t>(world.size());
    Devices devices{std::vector<transport::Backends>(edges), std::vector<bool>(ranks, false),
                    std::vector<std::string>(ranks), false};
    if constexpr (backend::kCuda) {
        std::string gpu;
        const auto of_gpu = [](backend::Backend* b) { return b && b->stream() ? b : nullptr; };
        for (std::size_t i = 0; i < backends.size(); ++i) {
            devices.local[i] = {of_gpu(backends[i].producer), of_gpu(backends[i].consumer)};
            if (const backend::Backend* any = devices.local[i].any()) gpu = any->gpu();
        }
        devices.mpi_reaches = !world.any(!comm::reaches_gpus());
        devices.gpu_of = gpus_of(world, gpu);
        for (std::size_t rank = 0; rank < ranks; ++rank) devices.on_gpu[rank] = !devices.gpu_of[rank].empty();
    }
    return devices;
}

std::int64_t count_gpus(const ChannelSpec& spec, const std::vector<bool>& on_gpu) {
    const std::vector<int> ranks = ranks_of(spec);
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](int rank) { return on_gpu[static_cast<std::size_t>(rank)]; });
}

/// Whether rows travel from GPU to GPU.
bool is_direct(Method method) {
    return method == Method::gpu_mpi;
}

/// Whether GPUs can copy into the memory of other ranks. On an emulated link they go through put(), which
/// counts their bytes.
bool reaches_peers(const ChannelSpec& spec, Method method) {
    return method == Method::shared_memory && !is_delayed(spec);
}

/// Collective over the ranks of the edge.
std::unique_ptr<transport::Transport> open_direct(const comm::Communicator& world, const ChannelSpec& spec,
                                                  const transport::Backends& backends, int tag) {
    const std::vector<int> ranks = ranks_of(spec);
    transport::DirectEnd end{.backends = backends,
                             .edge = spec.name,
                             .flag_bytes = flag_bytes(spec),
                             .bytes = rank_bytes(spec, world.rank()),
                             .staging = direct_staging(spec, world.rank())};
    // Both ends of a connection evaluate carries() for it, with the ranks in the same order, so one opens it
    // to send exactly where the other opens it to receive. Otherwise opening it would wait for a partner that
    // never comes.
    for (const int rank : ranks) {
        end.sends.push_back(carries(spec, world.rank(), rank));
        end.receives.push_back(carries(spec, rank, world.rank()));
    }
    return transport::make_direct_transport(world.group(ranks, tag, "edge " + spec.name), std::move(end));
}

/// Puts copies between the rank's GPU and `host` in front of it. Returns CUDA's reason if it does not pin the
/// memory, otherwise "".
std::string add_gpu(std::unique_ptr<transport::Transport>& host, const comm::Communicator& world,
                    const ChannelSpec& spec, const transport::Backends& backends) {
    transport::GpuEnd end{.backends = backends,
                          .waiter = world.waiter(),
                          .edge = spec.name,
                          .flag_bytes = flag_bytes(spec),
                          .bytes = rank_bytes(spec, world.rank()),
                          .staging = host_staging(spec, world.rank())};
    for (const int rank : ranks_of(spec)) end.peers.push_back(rank_bytes(spec, rank));
    std::string refused;
    host = transport::make_gpu_transport(std::move(host), end, refused);
    return refused;
}

/// Collective: the text of the first rank whose text is not empty.
std::string first_text(const comm::Communicator& world, const std::string& mine) {
    const std::vector<std::string> all = world.gather(mine);
    const auto found =
        std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
    std::string text = found == all.end() ? "" : *found;
    world.broadcast(text);
    return text;
}

/// Collective over the ranks of the edge; null elsewhere. Nothing if MPI offers no window.
std::optional<std::unique_ptr<transport::Transport>> make_transport(const comm::Communicator& world,
                                                                    const ChannelSpec& spec, Method method,
                                                                    const transport::Backends& backends,
                                                                    bool on_gpus, int tag) {
    const std::vector<int> ranks = ranks_of(spec);
    const auto self = std::find(ranks.begin(), ranks.end(), world.rank());
    const bool member = self != ranks.end();
    const std::size_t bytes = rank_bytes(spec, world.rank());
    std::unique_ptr<transport::Transport> transport;
    bool refused = false;
    if (member && method == Method::pointer)
        transport = backends.any() ? transport::make_gpu_local(backends, flag_bytes(spec), bytes)
                                   : transport::make_local(bytes);
    if (member && method == Method::messages)
        transport = transport::make_messages(world.group(ranks, tag, "edge " + spec.name), bytes,
                                             message_bytes(spec, world.rank()));
    if (member && is_direct(method)) transport = open_direct(world, spec, backends, tag);
    if (member && method == Method::shared_memory) {
        try {
            transport = transport::make_mpi_window(world.group(ranks, tag, "edge " + spec.name), bytes,
                                                   reaches_peers(spec, method) && on_gpus);
        } catch (const Error& error) {  // on all ranks of the edge
            // Messages can replace a window that MPI refuses, but not a rank that is lost.
            if (error.code() == ExitCode::peer_lost) throw;
            refused = true;
        }
    }
    // All ranks of the world learn of a refusal, because all of them make the second attempt together. This
    // call also keeps edges apart, one at a time: Open MPI 4.1 (osc/rdma) names a window's shared file by job
    // and communicator id, and edges without a common rank may have the same id. The file is unlinked before
    // MPI_Win_allocate returns.
    if (world.max(refused ? 1 : 0) > 0) return std::nullopt;
    // This precedes add_gpu(), so the delay of rows on a GPU begins when they have been copied to the host.
    if (transport && is_delayed(spec))
        transport = transport::make_delayed(
            std::move(transport), {.latency_s = spec.latency_s,
                                   .byte_s = spec.row_s / static_cast<double>(bytes_of_rows(spec, 1)),
                                   .delivery_times = delivery_times_offset(spec),
                                   .self = static_cast<int>(self - ranks.begin())});
    return transport;
}
}  // namespace

transport::Choice choose(const ChannelSpec& spec, std::span<const std::string> host_of,
                         std::span<const std::string> gpu_of, TransportRequest request,
                         bool mpi_reaches_gpus) {
    transport::EdgeRanks ranks{.edge = spec.name,
                               .hosts = {},
                               .gpus = {},
                               .same_rank = spec.pointer,
                               .emulated = is_delayed(spec),
                               .mpi_reaches_gpus = mpi_reaches_gpus};
    for (const int rank : ranks_of(spec)) {
        ranks.hosts.push_back(host_of[rank]);
        ranks.gpus.push_back(gpu_of[rank]);
    }
    return transport::choose_for_edge(ranks, request);
}

std::string describe_gpu_copies(const ChannelSpec& spec, Method method, const std::vector<bool>& on_gpu,
                                const std::string& refused) {
    const std::int64_t gpus = count_gpus(spec, on_gpu);
    const std::size_t ranks = ranks_of(spec).size();
    if (gpus == 0) return "";
    const std::string who = gpus == static_cast<std::int64_t>(ranks)
                                ? "GPUs"
                                : fmt::format("the GPUs of {} of its {} ranks", gpus, ranks);
    if (method == Method::pointer) return who + " keep its rows";
    if (method == Method::gpu_mpi) return who + " send straight from their memory";
    if (reaches_peers(spec, method) && refused.empty()) return who + " copy straight from and to it";
    const std::string reason = refused.empty() ? "what is sent has to be copied" : refused;
    return fmt::format("{} copy through pinned memory, because {}", who, reason);
}

void mark_messages(const comm::Communicator& world, std::span<ChannelSpec> specs, TransportRequest request) {
    std::vector<std::string> hosts = hosts_of(world);
    for (ChannelSpec& spec : specs) {
        const std::vector<int> ranks = ranks_of(spec);
        const auto last = static_cast<std::size_t>(*std::max_element(ranks.begin(), ranks.end()));
        if (last >= hosts.size()) hosts.resize(last + 1, hosts.front());
        const std::vector<std::string> gpus(hosts.size());
        spec.by_messages = choose(spec, hosts, gpus, request).method == Method::messages;
    }
}

OpenChannels open_channels(const comm::Communicator& world, std::span<const ChannelSpec> specs,
                           TransportRequest request, std::span<const transport::Backends> backends) {
    const std::vector<std::string> hosts = hosts_of(world);
    const Devices devices = devices_of(world, specs.size(), backends);
    std::vector<transport::Choice> choices;
    for (const ChannelSpec& spec : specs)
        choices.push_back(choose(spec, hosts, devices.gpu_of, request, devices.mpi_reaches));
    check_shared_memory(world, hosts, specs, choices);
    // Making a transport is collective over the ranks of its edge. All ranks go through the edges in the same
    // order, so no two of them wait for each other on different edges.
    OpenChannels open;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        transport::Choice& choice = choices[i];
        const transport::Backends& local = devices.local[i];
        const bool on_gpus = count_gpus(specs[i], devices.on_gpu) > 0;
        const auto make = [&](int tag) {
            return make_transport(world, specs[i], choice.method, local, on_gpus, tag);
        };
        auto transport = make(static_cast<int>(2 * i));
        if (!transport && request == TransportRequest::shared_memory)
            throw Error(ExitCode::bad_deck,
                        fmt::format("run.transport: MPI offers no window to the ranks of edge {}; set it to "
                                    "\"auto\" or \"messages\"",
                                    specs[i].name),
                        Scope::all_ranks);
        if (!transport) {
            choice = {Method::messages, "MPI offers no window to its ranks"};
            transport = make(static_cast<int>(2 * i + 1));
        }
        std::string refused;
        if (*transport && local.any() && choice.method != Method::pointer && !is_direct(choice.method))
            refused = add_gpu(*transport, world, specs[i], local);
        if (on_gpus) refused = first_text(world, refused);
        const std::string gpus = describe_gpu_copies(specs[i], choice.method, devices.on_gpu, refused);
        open.channels.push_back(*transport ? std::make_unique<Channel>(specs[i], world.rank(), world.waiter(),
                                                                       std::move(*transport))
                                           : nullptr);
        open.description.push_back(fmt::format("edge {}: by {}, because {}{}{}", specs[i].name,
                                               transport::describe(choice.method), choice.reason,
                                               gpus.empty() ? "" : "; ", gpus));
    }
    return open;
}

}  // namespace maestro::channel
