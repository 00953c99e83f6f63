#include "calibration/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/arena.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/text_file.hpp"
#include "collective/process_group.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "comm/memory.hpp"
#include "ops/elementwise.hpp"
#include "ops/swiglu.hpp"
#include "parallel/expert_dispatch.hpp"

namespace maestro::calibration {

namespace {

constexpr double kAtLeastS = 0.03;  ///< of one measurement
constexpr int kRepeats = 5;
constexpr std::array kSides{8, 16, 32, 64, 128, 256, 512, 1024};

/// Returns the seconds of one call: the best of several series.
double time_of(const std::function<void()>& call) {
    call();
    double best = 1e300;
    std::int64_t calls = 1;
    for (int repeat = 0; repeat < kRepeats;) {
        const double start = comm::now_s();
        for (std::int64_t i = 0; i < calls; ++i) call();
        const double elapsed = comm::now_s() - start;
        if (elapsed < kAtLeastS) {
            calls *= 2;
            continue;
        }
        best = std::min(best, elapsed / static_cast<double>(calls));
        ++repeat;
    }
    return best;
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

/// Host planning is measured with rows of 8 ranks, each of which chooses 8 of 64 experts.
constexpr int kExperts = 64, kChosen = 8, kExpertRanks = 8;
constexpr std::int64_t kExpertRows = 8192;

/// [kExpertRows, kChosen]
std::vector<std::int32_t> expert_choices() {
    std::vector<std::int32_t> choices;
    for (std::int64_t row = 0; row < kExpertRows; ++row) {
        const auto experts = Random(1, fmt::format("row {}", row)).permutation(kExperts);
        for (std::size_t i = 0; i < kChosen; ++i) choices.push_back(static_cast<std::int32_t>(experts[i]));
    }
    return choices;
}

double expert_row() {
    const std::vector<std::int32_t> choices = expert_choices();
    const std::vector<std::int64_t> rows(kExpertRanks, kExpertRows / kExpertRanks);
    const parallel::ExpertGroup group{
        .degrees = {.ep = kExpertRanks, .etp = 1}, .experts = kExperts, .choices = kChosen};
    const parallel::ExpertLimits limits = parallel::expert_limits(group, rows);
    return time_of([&] { parallel::plan_expert_rounds(group, rows, choices, limits); }) /
           static_cast<double>(kExpertRows);
}

double expert_choice() {
    const std::vector<std::int32_t> choices = expert_choices();
    return time_of([&] {
               parallel::order_by_expert(choices, kChosen, {0, kExperts});
           }) /
           static_cast<double>(choices.size());
}

class Calibration {
public:
    Calibration(const comm::Communicator& world, const comm::Topology& topology)
        : world_(world),
          topology_(topology),
          backend_(backend::make_cpu(topology.threads)),
          arena_(*backend_, std::size_t{512} << 20) {}

    config::Cluster run() {
        config::Cluster cluster;
        cluster.name = fmt::format("{}, {} ranks of {} threads", topology_.host, topology_.ranks_on_node,
                                   topology_.threads);
        cluster.ranks_per_node = topology_.ranks_on_node;
        cluster.device.memory = static_cast<double>(comm::available_memory()) / topology_.ranks_on_node;
        cluster.device.kind = "cpu";
        cluster.device.threads = topology_.threads;
        cluster.device.operation_s = agreed([&] { return operation(); });
        cluster.device.expert_row_s = agreed(expert_row);
        cluster.device.expert_choice_s = agreed(expert_choice);
        cluster.device.element_flops = agreed([&] { return elements(); });
        cluster.device.memory_bandwidth = agreed([&] { return bandwidth(); });
        for (const int side : kSides)
            cluster.device.gemm_rates.push_back({static_cast<double>(side),
                                                 agreed([&] { return gemm_rate(side, DType::f32); }),
                                                 agreed([&] { return gemm_rate(side, DType::bf16); })});
        links(cluster);
        return cluster;
    }

private:
    /// All ranks measure at the same time; returns the median.
    double agreed(const std::function<double()>& measure) {
        world_.barrier();
        return median(world_.allgather(measure()));
    }

    Tensor tensor(DType type, std::initializer_list<std::int64_t> shape) {
        const Tensor t = arena_.allocate(type, shape);
        ops::zero(*backend_, t);
        return t;
    }

    double operation() {
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {64}), y = tensor(DType::f32, {64});
        return time_of([&] { ops::add(*backend_, x, y); });
    }

    double elements() {
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {64, 512}), y = tensor(DType::f32, {64, 256});
        backend_->reset_counts();
        ops::swiglu(*backend_, x, y);
        const double flops = backend_->counts().flops;
        return flops / time_of([&] { ops::swiglu(*backend_, x, y); });
    }

    double bandwidth() {
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {1 << 24}), y = tensor(DType::f32, {1 << 24});
        backend_->reset_counts();
        ops::add(*backend_, x, y);
        const double bytes = backend_->counts().bytes;
        return bytes / time_of([&] { ops::add(*backend_, x, y); });
    }

    /// FLOP/s of a GEMM whose smallest dimension is `side`.
    double gemm_rate(std::int64_t side, DType type) {
        backend::ArenaScope scope(arena_);
        const std::int64_t other = std::max<std::int64_t>(512, side);
        const Tensor a = tensor(type, {other, other}), b = tensor(type, {side, other}),
                     y = tensor(type, {other, side});
        const double seconds = time_of([&] {
            backend_->gemm({a.data, b.data, y.data, other, side, other, other, other, side, false, true,
                            false, type, type});
        });
        return 2.0 * static_cast<double>(other * other * side) / seconds;
    }

    void links(config::Cluster& cluster) {
        const std::vector<std::array<char, 64>> hosts = world_.allgather([&] {
            std::array<char, 64> name{};
            topology_.host.copy(name.data(), name.size() - 1);
            return name;
        }());
        const auto other = [&](bool same) {
            for (int r = 1; r < world_.size(); ++r)
                if ((hosts[r] == hosts.front()) == same) return r;
            return -1;
        };
        cluster.node = other(true) > 0 ? between(other(true))
                                       : config::Link{0, cluster.device.memory_bandwidth / 2, 0, 0};
        cluster.network = other(false) > 0 ? between(other(false)) : cluster.node;
        collectives(world_.same_node(), cluster.node);
        const int node = static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[world_.rank()]) -
                                          hosts.begin());  // its first rank
        const bool first = node == world_.rank();
        if (other(false) > 0)
            collectives(world_.split(first ? 0 : -1, world_.rank(), "a rank of each node"), cluster.network);
        else
            cluster.network = cluster.node;
    }

    /// All-gathers among these ranks, which include rank 0 of the world, of few and of many bytes.
    void collectives(comm::Communicator ranks, config::Link& link) {
        std::vector<double> values{0, 0};
        if (ranks && ranks.size() > 1) {
            const backend::ArenaScope scope(arena_);
            const auto group = collective::make_process_group(std::move(ranks), *backend_);
            const auto gather = [&](std::int64_t elements) {
                const Tensor whole = tensor(DType::f32, {group->size() * elements, 1});
                const std::vector<std::int64_t> rows(static_cast<std::size_t>(group->size()), elements);
                double best = 1e300;
                for (int i = 0; i < 50; ++i) {
                    const double start = comm::now_s();
                    group->wait(group->start_all_gather_in_place(whole, rows));
                    best = std::min(best, comm::now_s() - start);
                }
                return best;
            };
            constexpr std::int64_t kLarge = std::int64_t{1} << 20;
            values[0] = gather(2);
            const double bytes = static_cast<double>((group->size() - 1) * kLarge) * sizeof(float);
            values[1] = bytes / std::max(gather(kLarge) - values[0], 1e-9);
        }
        world_.broadcast(values);
        link.collective_latency_s = values[0];
        link.collective_bandwidth = values[1];
    }

    /// Measures messages from rank 0 to `rank` and back.
    config::Link between(int rank) {
        config::Link link;
        if (world_.rank() == 0 || world_.rank() == rank) {
            const comm::Communicator pair = world_.group({0, rank}, 7, "calibration");
            const auto there_and_back = [&](std::size_t bytes) {
                std::vector<char> data(bytes);
                double best = 1e300;
                for (int i = 0; i < 50; ++i) {
                    const double start = comm::now_s();
                    pair.broadcast(std::span<char>(data), 0);
                    pair.broadcast(std::span<char>(data), 1);
                    best = std::min(best, (comm::now_s() - start) / 2);
                }
                return best;
            };
            constexpr std::size_t kLarge = std::size_t{8} << 20;
            link.latency_s = there_and_back(8);
            link.bandwidth =
                static_cast<double>(kLarge) / std::max(there_and_back(kLarge) - link.latency_s, 1e-9);
        }
        std::vector<double> values{link.latency_s, link.bandwidth};
        world_.broadcast(values);
        return {values[0], values[1], 0, 0};
    }

    const comm::Communicator& world_;
    const comm::Topology& topology_;
    std::unique_ptr<backend::Backend> backend_;
    backend::Arena arena_;
};

}  // namespace

config::Cluster measure_machine(const comm::Communicator& world, const comm::Topology& topology) {
    return Calibration(world, topology).run();
}

std::string to_toml(const config::Cluster& c, const std::string& comment) {
    std::string text = fmt::format(
        "# {}\n\n[cluster]\nname = \"{}\"\nranks_per_node = {}\n\n[device]\nkind = \"{}\"\nthreads = {}\n"
        "memory = {:.4g}\nmemory_bandwidth = {:.4g}\n"
        "element_flops = {:.4g}\noperation_s = {:.4g}\nexpert_row_s = {:.4g}\nexpert_choice_s = {:.4g}\n",
        comment, c.name, c.ranks_per_node, c.device.kind, c.device.threads, c.device.memory,
        c.device.memory_bandwidth, c.device.element_flops, c.device.operation_s, c.device.expert_row_s,
        c.device.expert_choice_s);
    for (const config::GemmRate& p : c.device.gemm_rates)
        text += fmt::format("\n[[product]]\nside = {}\nfp32_flops = {:.4g}\nbf16_flops = {:.4g}\n", p.side,
                            p.fp32_flops, p.bf16_flops);
    for (const auto& [name, link] : {std::pair{"node", c.node}, std::pair{"network", c.network}}) {
        text += fmt::format("\n[{}]\nlatency_s = {:.4g}\nbandwidth = {:.4g}\n", name, link.latency_s,
                            link.bandwidth);
        if (link.collective_bandwidth > 0)
            text += fmt::format("collective_latency_s = {:.4g}\ncollective_bandwidth = {:.4g}\n",
                                link.collective_latency_s, link.collective_bandwidth);
    }
    return text;
}

void run_calibration(const comm::Communicator& world, const comm::Topology& topology,
                     const std::string& path) {
    const config::Cluster cluster = measure_machine(world, topology);
    comm::agree(world, [&] {
        if (world.rank() == 0)
            write_text_file(path, to_toml(cluster, fmt::format("Measured by maestro calibrate on {} ranks.",
                                                               world.size())));
    });
    if (world.rank() != 0) return;
    log::info(
        "{}: {}; fp32 {:.3g} FLOP/s, bf16 {:.3g} FLOP/s, memory {:.3g} bytes/s, link {:.3g} s and {:.3g} "
        "bytes/s",
        path, cluster.name, cluster.device.gemm_rates.back().fp32_flops,
        cluster.device.gemm_rates.back().bf16_flops, cluster.device.memory_bandwidth, cluster.node.latency_s,
        cluster.node.bandwidth);
}

}  // namespace maestro::calibration
