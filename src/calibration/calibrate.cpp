#include "calibration/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "backend/device.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/text_file.hpp"
#include "calibration/collective_probes.hpp"
#include "calibration/layer_probes.hpp"
#include "calibration/quantiles.hpp"
#include "collective/process_group.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "comm/memory.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/tables.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/swiglu.hpp"
#include "parallel/expert_dispatch.hpp"
#include "workload/corrected_work.hpp"
#include "workload/data_order.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"
#include "workload/task_factors.hpp"
#include "workload/training_samples.hpp"

namespace maestro::calibration {

namespace {

constexpr double kAtLeastS = 0.03;       ///< of one measurement
constexpr double kShapeAtLeastS = 0.01;  ///< of one of many shapes
constexpr int kRepeats = 5;

/// What a device is measured with. A GPU needs larger operations before it is busy.
struct Sizes {
    std::vector<int> sides = {8, 16, 32, 64, 128, 256, 512, 1024};
    std::int64_t other_side = 512;  ///< of GEMMs, at least
    std::int64_t elements = 1 << 24;
    std::vector<int> expert_rows = {8, 64, 512};  ///< of each expert, in grouped GEMMs
    std::vector<int> head_dims = {32, 128};       ///< of attention
    std::vector<int> lengths = {64, 512};
    std::int64_t attention_rows = 512, attention_heads = 2;
    std::size_t memory = std::size_t{512} << 20;
    std::vector<std::int64_t> collectives = {1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24};  ///< bytes
};
Sizes sizes_for(const backend::Backend& backend) {
    if (backend.shares_memory()) return {};
    return {.sides = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192},
            .other_side = 4096,
            .elements = 1 << 27,
            .expert_rows = {16, 64, 256, 1024, 4096},
            .head_dims = {64, 128},
            .lengths = {256, 1024, 4096, 16384},
            .attention_rows = 16384,
            .attention_heads = 8,
            .memory = std::size_t{2} << 30,
            .collectives = {1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 27}};
}

/// Returns the seconds of one call: the best of several series. wait() waits for the device.
double time_of(
    const std::function<void()>& call, const std::function<void()>& wait = [] {},
    double at_least_s = kAtLeastS) {
    call();
    wait();
    double best = 1e300;
    std::int64_t calls = 1;
    for (int repeat = 0; repeat < kRepeats;) {
        const double start = comm::now_s();
        for (std::int64_t i = 0; i < calls; ++i) call();
        wait();
        const double elapsed = comm::now_s() - start;
        if (elapsed < at_least_s) {
            calls *= 2;
            continue;
        }
        best = std::min(best, elapsed / static_cast<double>(calls));
        ++repeat;
    }
    return best;
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
    /// `device_memory`: bytes that are free for this rank.
    Calibration(const comm::Communicator& world, const comm::Topology& topology, backend::Backend& backend,
                double device_memory)
        : world_(world),
          topology_(topology),
          backend_(&backend),
          device_memory_(device_memory),
          sizes_(sizes_for(backend)),
          arena_(backend, sizes_.memory) {}

    config::Cluster run() {
        config::Cluster cluster;
        cluster.name = fmt::format("{}, {} ranks of {} threads", topology_.host, topology_.ranks_on_node,
                                   topology_.threads);
        cluster.ranks_per_node = topology_.ranks_on_node;
        cluster.device.memory = device_memory_;
        if (backend_->shares_memory()) {
            cluster.device.kind = "cpu";
            cluster.device.threads = topology_.threads;
        } else {
            cluster.device.kind = "gpu";
            cluster.device.memory += cluster.device.context_memory;
            if (const int architecture = backend_->attention_support().architecture; architecture > 0)
                cluster.device.architecture = architecture;
        }
        cluster.device.operation_s = agreed([&] { return operation(); });
        cluster.device.expert_row_s = agreed(expert_row);
        cluster.device.expert_choice_s = agreed(expert_choice);
        cluster.device.element_flops = agreed([&] { return elements(); });
        cluster.device.memory_bandwidth = agreed([&] { return bandwidth(); });
        for (const int side : sizes_.sides)
            cluster.device.gemm_rates.push_back({static_cast<double>(side),
                                                 agreed([&] { return gemm_rate(side, DType::f32); }),
                                                 agreed([&] { return gemm_rate(side, DType::bf16); })});
        for (const int rows : sizes_.expert_rows)
            cluster.device.grouped_rates.push_back({static_cast<double>(rows),
                                                    agreed([&] { return grouped_rate(rows, DType::f32); }),
                                                    agreed([&] { return grouped_rate(rows, DType::bf16); })});
        for (const int dim : sizes_.head_dims)
            for (const int length : sizes_.lengths)
                cluster.device.attention_rates.push_back(attention_rates(dim, length));
        if (!backend_->shares_memory()) {
            cluster.device.launch_s = agreed([&] { return queued_s().first; });
            cluster.device.operation_s = agreed([&] { return queued_s().second; });
        }
        links(cluster);
        const backend::ArenaScope scope(arena_);
        cluster.collectives = collective::CollectiveTimes(
            measure_collectives(world_, topology_.nodes, *backend_, arena_, sizes_.collectives));
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

    /// `result`: what the calls write.
    double time(const std::function<void()>& call, const Tensor& result, double at_least_s = kAtLeastS) {
        return time_of(
            call, [&] { wait(result); }, at_least_s);
    }
    /// A download waits for all operations before it.
    void wait(const Tensor& result) {
        std::array<std::byte, 64> begin{};
        if (!backend_->shares_memory())
            backend_->download(Tensor(result.data, DType::u8, {std::ssize(begin)}), begin.data());
    }

    /// Of a GPU: the host's seconds to launch an operation, and the device's for one that was launched in
    /// time. Small operations are launched behind large ones.
    std::pair<double, double> queued_s() {
        constexpr int kQueued = 64, kLarge = 8;
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {64}), y = tensor(DType::f32, {64}),
                     large = tensor(DType::f32, {sizes_.elements / 2}),
                     sum = tensor(DType::f32, {sizes_.elements / 2});
        const auto run = [&](int small) {
            wait(sum);
            const double start_s = comm::now_s();
            for (int i = 0; i < kLarge; ++i) ops::add(*backend_, large, sum);
            const double queued_s = comm::now_s();
            for (int i = 0; i < small; ++i) ops::add(*backend_, x, y);
            const double host_s = comm::now_s() - queued_s;
            wait(sum);
            return std::pair(host_s, comm::now_s() - start_s);
        };
        run(kQueued);
        std::vector<double> host, device;
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
            const double without_s = run(0).second;
            const auto [host_s, all_s] = run(kQueued);
            host.push_back(host_s / kQueued);
            device.push_back(std::max(all_s - without_s, 0.0) / kQueued);
        }
        return {median(host), median(device)};
    }

    /// FLOP/s of the GEMMs of eight experts of 512 x 512 channels with so many rows each.
    double grouped_rate(std::int64_t rows, DType type) {
        constexpr std::int64_t kGroups = 8, kSide = 512;
        backend::ArenaScope scope(arena_);
        const Tensor a = tensor(type, {kGroups * rows, kSide}), b = tensor(type, {kGroups * kSide, kSide}),
                     y = tensor(type, {kGroups * rows, kSide});
        std::vector<std::int64_t> begin;
        for (std::int64_t e = 0; e <= kGroups; ++e) begin.push_back(e * rows);
        const auto multiply = [&] { ops::grouped_linear(*backend_, a, b, begin, y); };
        backend_->reset_counts();
        multiply();
        const double flops = backend_->counts().flops;
        return flops / time(multiply, y, kShapeAtLeastS);
    }

    /// FLOP/s of causal attention over as many sequences of `length` as there are rows for.
    config::AttentionRate attention_rates(std::int64_t dim, std::int64_t length) {
        const auto rate = [&](DType type, bool backward) {
            return agreed([&] { return attention_rate(dim, length, type, backward); });
        };
        return {.head_dim = static_cast<double>(dim),
                .length = static_cast<double>(length),
                .fp32_flops = rate(DType::f32, false),
                .bf16_flops = rate(DType::bf16, false),
                .backward_fp32_flops = rate(DType::f32, true),
                .backward_bf16_flops = rate(DType::bf16, true)};
    }
    double attention_rate(std::int64_t dim, std::int64_t length, DType type, bool backward) {
        backend::ArenaScope scope(arena_);
        const std::int64_t rows = sizes_.attention_rows, heads = sizes_.attention_heads;
        const auto matrix = [&] { return tensor(type, {rows, heads * dim}); };
        const Tensor q = matrix(), k = matrix(), v = matrix(), out = matrix(), d_out = matrix(),
                     dq = matrix(), dk = matrix(), dv = matrix(),
                     lse = tensor(ops::accumulate_type(type), {rows, heads});
        std::vector<std::int32_t> offsets;
        for (std::int64_t row = 0; row <= rows; row += length)
            offsets.push_back(static_cast<std::int32_t>(row));
        const ops::VarlenMask mask = ops::causal_mask(offsets);
        /// A forward pass, as its results are read, and the backward pass where it is what is measured.
        const auto prepare = [&](backend::Backend& b, backend::Arena& memory, ops::AttentionTables& tables) {
            tables.reserve(b, 1, {rows, rows, std::ssize(offsets) - 1}, backward, memory);
            ops::attention(b, q, k, v, mask, out, lse, memory, &tables);
        };
        const auto run = [&](backend::Backend& b, backend::Arena& memory, ops::AttentionTables& tables) {
            if (backward)
                ops::attention_backward(b, d_out, out, q, k, v, lse, mask, dq, dk, dv, memory, &tables);
            else
                ops::attention(b, q, k, v, mask, out, lse, memory, &tables);
        };
        backend::Arena measured;
        {
            const auto meta = backend::make_meta(
                {}, {backend_->threads(), backend_->shares_memory(), backend_->attention_support()});
            ops::AttentionTables tables;
            prepare(*meta, measured, tables);
            run(*meta, measured, tables);
        }
        backend::Arena memory(*backend_, measured.peak());
        ops::AttentionTables tables;
        prepare(*backend_, memory, tables);
        backend_->reset_counts();
        run(*backend_, memory, tables);
        const double flops = backend_->counts().flops;
        return flops / time([&] { run(*backend_, memory, tables); }, backward ? dq : out, kShapeAtLeastS);
    }

    double operation() {
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {64}), y = tensor(DType::f32, {64});
        return time([&] { ops::add(*backend_, x, y); }, y);
    }

    double elements() {
        backend::ArenaScope scope(arena_);
        const std::int64_t rows = sizes_.elements >> 18;
        const Tensor x = tensor(DType::f32, {rows, 512}), y = tensor(DType::f32, {rows, 256});
        backend_->reset_counts();
        ops::swiglu(*backend_, x, y);
        const double flops = backend_->counts().flops;
        return flops / time([&] { ops::swiglu(*backend_, x, y); }, y);
    }

    double bandwidth() {
        backend::ArenaScope scope(arena_);
        const Tensor x = tensor(DType::f32, {sizes_.elements}), y = tensor(DType::f32, {sizes_.elements});
        backend_->reset_counts();
        ops::add(*backend_, x, y);
        const double bytes = backend_->counts().bytes;
        return bytes / time([&] { ops::add(*backend_, x, y); }, y);
    }

    /// FLOP/s of a GEMM whose smallest dimension is `side`.
    double gemm_rate(std::int64_t side, DType type) {
        backend::ArenaScope scope(arena_);
        const std::int64_t other = std::max<std::int64_t>(sizes_.other_side, side);
        const Tensor a = tensor(type, {other, other}), b = tensor(type, {side, other}),
                     y = tensor(type, {other, side});
        const auto multiply = [&] {
            backend_->gemm({a.data, b.data, y.data, other, side, other, other, other, side, false, true,
                            false, type, type});
        };
        const double seconds = time(multiply, y);
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
                    wait(whole);
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
    backend::Backend* backend_;
    double device_memory_;
    Sizes sizes_;
    backend::Arena arena_;
};

/// The bytes that are free for each rank of this node.
double cpu_memory(const comm::Topology& topology) {
    return static_cast<double>(comm::available_memory()) / topology.ranks_on_node;
}

}  // namespace

config::Cluster measure_machine(const comm::Communicator& world, const comm::Topology& topology) {
    const auto backend = backend::make_cpu(topology.threads);
    return Calibration(world, topology, *backend, cpu_memory(topology)).run();
}

std::string to_toml(const config::Cluster& c, const std::string& comment) {
    std::string text = fmt::format(
        "# {}\n\n[cluster]\nname = \"{}\"\nranks_per_node = {}\n\n[device]\nkind = \"{}\"\n"
        "memory = {:.4g}\nmemory_bandwidth = {:.4g}\n"
        "element_flops = {:.4g}\noperation_s = {:.4g}\nexpert_row_s = {:.4g}\nexpert_choice_s = {:.4g}\n",
        comment, c.name, c.ranks_per_node, c.device.kind, c.device.memory, c.device.memory_bandwidth,
        c.device.element_flops, c.device.operation_s, c.device.expert_row_s, c.device.expert_choice_s);
    text += c.device.kind == "gpu" ? fmt::format("architecture = {}\n", c.device.architecture)
                                   : fmt::format("threads = {}\n", c.device.threads);
    if (c.device.launch_s > 0) text += fmt::format("launch_s = {:.4g}\n", c.device.launch_s);
    for (const auto& [name, rates] :
         {std::pair{"product", &c.device.gemm_rates}, std::pair{"grouped_product", &c.device.grouped_rates}})
        for (const config::GemmRate& p : *rates)
            text += fmt::format("\n[[{}]]\nside = {}\nfp32_flops = {:.4g}\nbf16_flops = {:.4g}\n", name,
                                p.side, p.fp32_flops, p.bf16_flops);
    for (const config::AttentionRate& p : c.device.attention_rates)
        text += fmt::format(
            "\n[[attention]]\nhead_dim = {}\nlength = {}\nfp32_flops = {:.4g}\nbf16_flops = {:.4g}\n"
            "backward_fp32_flops = {:.4g}\nbackward_bf16_flops = {:.4g}\n",
            p.head_dim, p.length, p.fp32_flops, p.bf16_flops, p.backward_fp32_flops, p.backward_bf16_flops);
    for (const auto& [name, link] : {std::pair{"node", c.node}, std::pair{"network", c.network}}) {
        text += fmt::format("\n[{}]\nlatency_s = {:.4g}\nbandwidth = {:.4g}\n", name, link.latency_s,
                            link.bandwidth);
        if (link.collective_bandwidth > 0)
            text += fmt::format("collective_latency_s = {:.4g}\ncollective_bandwidth = {:.4g}\n",
                                link.collective_latency_s, link.collective_bandwidth);
    }
    for (const collective::CollectiveRow& row : c.collectives.rows())
        text += fmt::format(
            "\n[[collective]]\nkind = \"{}\"\nranks = {}\nnodes = {}\nbytes = {:.0f}\nseconds = {:.4g}\n",
            collective::kCollectiveNames[static_cast<std::size_t>(row.kind)], row.ranks, row.nodes, row.bytes,
            row.seconds);
    for (const config::Correction& of : c.corrections) {
        text +=
            fmt::format("\n[[correction]]\nsection = \"{}\"\nprecision = \"{}\"\nwidth = {}\npart = \"{}\"\n",
                        of.section, of.precision, of.width, of.part);
        if (of.part == "layer") text += fmt::format("layer = {}\n", of.layer);
        text += fmt::format(
            "rows = {:.6g}\nlength = {:.6g}\ntp = {}\ncp = {}\nep = {}\nforward_s = {:.4g}\n"
            "backward_s = {:.4g}\nforward = {:.4g}\nbackward = {:.4g}\n",
            of.rows, of.length, of.tp, of.cp, of.ep, of.forward_s, of.backward_s, of.forward, of.backward);
    }
    return text;
}

namespace {

/// Logs the bandwidth of each kind of collective in the largest groups, as nccl-tests define it (busbw): of
/// the bytes that a rank exchanges.
void log_collectives(const config::Cluster& cluster) {
    const collective::CollectiveRow* last = nullptr;
    const auto log = [&] {
        if (!last) return;
        const double twice = last->kind == collective::CollectiveKind::all_reduce ? 2 : 1,
                     exchanged = twice * last->bytes * (last->ranks - 1) / last->ranks;
        log::info("{} of {} ranks on {}: {:.3g} bytes/s of {:.3g} bytes",
                  collective::kCollectiveNames[static_cast<std::size_t>(last->kind)], last->ranks,
                  last->nodes == 1 ? "a node" : fmt::format("{} nodes", last->nodes),
                  exchanged / last->seconds, last->bytes);
    };
    for (const collective::CollectiveRow& row : cluster.collectives.rows()) {
        if (last && (last->kind != row.kind || last->nodes != row.nodes)) log();
        last = &row;
    }
    log();
}

/// Logs the factors of each section's whole model, by shape.
void log_corrections(const workload::Scenario& scenario) {
    const config::Cluster& cluster = *scenario.cluster;
    const config::Correction* last = nullptr;
    for (const config::Correction& of : cluster.corrections) {
        const bool same =
            last && last->section == of.section && last->rows == of.rows && last->length == of.length;
        last = &of;
        if (same) continue;
        const auto& sections = scenario.graph.sections;
        const auto s = static_cast<std::size_t>(
            std::find_if(sections.begin(), sections.end(),
                         [&](const graph::Section& section) { return section.name == of.section; }) -
            sections.begin());
        model::Role role = workload::role_of(scenario, static_cast<int>(s), model::Stage{});
        const workload::TaskFactors factors = workload::task_factors(
            cluster, scenario.models[s], role, {of.rows, of.length, of.tp, of.cp, of.ep});
        log::info(
            "section {}, {:.0f} rows in sequences of {:.0f}, tp {}, cp {}, ep {}: measured over predicted "
            "time {:.3f} forward, {:.3f} backward",
            of.section, of.rows, of.length, of.tp, of.cp, of.ep, factors.phases[0], factors.phases[1]);
    }
}

/// Adds what the parts of the deck's models take on the device, in the micro-batches of its first step.
void add_corrections(const comm::Communicator& world, backend::Backend& backend, const config::Deck& deck,
                     workload::Scenario scenario, config::Cluster& cluster) {
    std::unique_ptr<data::Samples> samples;
    std::unique_ptr<workload::SampleTable> table;
    comm::agree(world, [&] {
        samples = workload::training_samples(deck, scenario);
        scenario.markers = samples->markers();
        workload::check_samples(scenario, *samples);
        scenario = workload::on_cluster(std::move(scenario), cluster);
        table = std::make_unique<workload::SampleTable>(workload::table_of(scenario, *samples));
        workload::check_lengths(scenario, *table, samples->name());
        workload::balance_stages(scenario, *table);
    });
    workload::DataOrder order(scenario.seed, table->size(), scenario.global_batch);
    const std::span<const std::int64_t> ids = order.batch(0);
    cluster.corrections = measure_layers(world, backend, scenario, *table, ids);
    if (world.rank() != 0) return;
    scenario.cluster = cluster;
    log_corrections(scenario);
    workload::Probes probes;
    const workload::CorrectedWork work = workload::corrected_work(scenario, *table, probes, ids);
    log::info(
        "the tasks of step 1: {:.4g} s by the rates alone, {:.4g} s as measured; {:.0f}% of the time is of "
        "shapes that were measured",
        work.predicted_s, work.corrected_s, 100 * work.measured_share);
}

void refuse_unless_measurable(const config::Deck& deck) {
    const auto refuse = [&](const char* key, const std::string& what) {
        throw Error(ExitCode::bad_deck, deck.places.message(key, what), Scope::all_ranks);
    };
    if (deck.run.device == "emulated")
        refuse("run.device", "emulated, which computes nothing; add --set run.device=auto, cpu or cuda");
    if (deck.run.precision == "fp64")
        refuse("run.precision",
               "fp64, for which cluster files have no rates; add --set run.precision=fp32 or bf16");
}

}  // namespace

void run_calibration(const comm::Communicator& world, const comm::Topology& topology, const std::string& path,
                     const std::optional<MeasuredDeck>& measured) {
    config::Cluster cluster;
    if (measured) {
        refuse_unless_measurable(measured->deck);
        const backend::Device& device = measured->device;
        if (device.gpu) backend::open_context(device);
        const double memory =
            device.gpu ? static_cast<double>(backend::free_memory(device)) : cpu_memory(topology);
        const auto backend = backend::open_device(device, topology.threads);
        log::info("measuring {}", backend->describe());
        cluster = Calibration(world, topology, *backend, memory).run();
        add_corrections(world, *backend, measured->deck, measured->scenario, cluster);
    } else {
        cluster = measure_machine(world, topology);
    }
    comm::agree(world, [&] {
        if (world.rank() == 0)
            write_text_file(path, to_toml(cluster, fmt::format("Measured by maestro calibrate on {} ranks.",
                                                               world.size())));
    });
    if (world.rank() != 0) return;
    log_collectives(cluster);
    log::info(
        "{}: {}; fp32 {:.3g} FLOP/s, bf16 {:.3g} FLOP/s, memory {:.3g} bytes/s, link {:.3g} s and {:.3g} "
        "bytes/s",
        path, cluster.name, cluster.device.gemm_rates.back().fp32_flops,
        cluster.device.gemm_rates.back().bf16_flops, cluster.device.memory_bandwidth, cluster.node.latency_s,
        cluster.node.bandwidth);
}

}  // namespace maestro::calibration
