#include "config/cluster.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "config/table_reader.hpp"

namespace maestro::config {

namespace {

constexpr double kMaxRate = 1e21;

const toml::table& table_of(const toml::table& root, const char* name, TableReader& reader) {
    static const toml::table empty;
    const auto* node = root.get(name);
    if (node && !node->is_table())
        reader.fail(node->source(), name, fmt::format("wrong type; allowed: a table, [{}]", name));
    return node && node->is_table() ? *node->as_table() : empty;
}

void read_corrections(const toml::table& root, TableReader& reader, std::vector<Correction>& corrections) {
    const auto* node = root.get("correction");
    if (!node) return;
    const auto* tables = node->as_array();
    if (!tables || !tables->is_array_of_tables())
        return reader.fail(node->source(), "correction", "wrong type; allowed: tables, [[correction]]");
    corrections.resize(tables->size());
    constexpr double kMostRows = 1e12, kMostSeconds = 1e6, kMostFactor = 1e6;
    constexpr int kMostRanks = 1 << 20;
    for (std::size_t i = 0; i < tables->size(); ++i) {
        Correction& of = corrections[i];
        reader.fill(*(*tables)[i].as_table(), fmt::format("correction.#{}.", i + 1),
                    {{"section", &of.section, true},
                     {"precision", &of.precision, true, 0, 0, {"fp32", "bf16"}},
                     {"width", &of.width, true, 1, 1e9},
                     {"part", &of.part, true, 0, 0, {"first", "layer", "last"}},
                     {"layer", &of.layer, false, 0, 1e9},
                     {"rows", &of.rows, true, 1, kMostRows},
                     {"length", &of.length, true, 1, kMostRows},
                     {"tp", &of.tp, false, 1, kMostRanks},
                     {"cp", &of.cp, false, 1, kMostRanks},
                     {"ep", &of.ep, false, 1, kMostRanks},
                     {"forward_s", &of.forward_s, true, 0, kMostSeconds},
                     {"backward_s", &of.backward_s, true, 0, kMostSeconds},
                     {"forward", &of.forward, true, 1e-6, kMostFactor},
                     {"backward", &of.backward, true, 1e-6, kMostFactor}});
    }
}

Cluster read(const toml::table& root, TableReader& reader) {
    Cluster cluster;
    const std::vector<std::string> known{"cluster", "device", "product", "node", "network", "correction"};
    for (const auto& [name, node] : root) {
        if (std::find(known.begin(), known.end(), name.str()) != known.end()) continue;
        const std::string near = nearest(std::string(name.str()), known);
        reader.fail(
            node.source(), std::string(name.str()),
            fmt::format("unknown table; {}", near.empty() ? fmt::format("known: {}", fmt::join(known, ", "))
                                                          : "did you mean " + near + "?"));
    }
    reader.fill(
        table_of(root, "cluster", reader), "cluster.",
        {{"name", &cluster.name, true}, {"ranks_per_node", &cluster.ranks_per_node, true, 1, 1 << 20}});
    reader.fill(table_of(root, "device", reader), "device.",
                {{"memory", &cluster.device.memory, true, 1, kMaxRate},
                 {"memory_bandwidth", &cluster.device.memory_bandwidth, true, 1, kMaxRate},
                 {"element_flops", &cluster.device.element_flops, true, 1, kMaxRate},
                 {"operation_s", &cluster.device.operation_s, false, 0, 1},
                 {"expert_row_s", &cluster.device.expert_row_s, false, 0, 1},
                 {"expert_choice_s", &cluster.device.expert_choice_s, false, 0, 1},
                 {"kind", &cluster.device.kind, false, 0, 0, {"cpu", "gpu"}},
                 {"threads", &cluster.device.threads, false, 1, 4096},
                 {"window_share", &cluster.device.window_share, false, 0.05, 1},
                 {"architecture", &cluster.device.architecture, false, 50, 999},
                 {"cudnn", &cluster.device.cudnn, false, 0, 999999},
                 {"context_memory", &cluster.device.context_memory, false, 0, kMaxRate},
                 {"library_memory", &cluster.device.library_memory, false, 0, kMaxRate},
                 {"nccl_connection_memory", &cluster.device.nccl_connection_memory, false, 0, kMaxRate},
                 {"host_memory", &cluster.device.host_memory, false, 0, kMaxRate},
                 {"mpi_reaches_gpus", &cluster.device.mpi_reaches_gpus}});
    for (auto [name, link] : {std::pair{"node", &cluster.node}, std::pair{"network", &cluster.network}})
        reader.fill(table_of(root, name, reader), fmt::format("{}.", name),
                    {{"latency_s", &link->latency_s, true, 0, 1},
                     {"bandwidth", &link->bandwidth, true, 1, kMaxRate},
                     {"collective_latency_s", &link->collective_latency_s, false, 0, 1},
                     {"collective_bandwidth", &link->collective_bandwidth, false, 0, kMaxRate}});
    read_corrections(root, reader, cluster.corrections);
    const auto* products = root.get("product") ? root.get("product")->as_array() : nullptr;
    if (!products || products->empty() || !products->is_array_of_tables()) {
        reader.fail(root.get("product") ? root.get("product")->source() : root.source(), "product",
                    "missing; write one [[product]] or more, with side, fp32_flops and bf16_flops");
        return cluster;
    }
    cluster.device.gemm_rates.resize(products->size());
    for (std::size_t i = 0; i < products->size(); ++i) {
        GemmRate& rate = cluster.device.gemm_rates[i];
        const toml::table& table = *(*products)[i].as_table();
        const std::string prefix = fmt::format("product.#{}.", i + 1);
        reader.fill(table, prefix,
                    {{"side", &rate.side, true, 1, 1e9},
                     {"fp32_flops", &rate.fp32_flops, true, 1, kMaxRate},
                     {"bf16_flops", &rate.bf16_flops, true, 1, kMaxRate}});
        if (i > 0 && rate.side <= cluster.device.gemm_rates[i - 1].side)
            reader.fail(table.source(), prefix + "side",
                        "not larger than the one before; list them ascending");
    }
    reader.check_required();
    return cluster;
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& path) {
    TableReader reader(path);
    return read_toml(text, reader, [&](const toml::table& root) { return read(root, reader); });
}

}  // namespace maestro::config
