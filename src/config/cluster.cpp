#include "config/cluster.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

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

/// Calls read(table, prefix, index) for each table of [[name]].
template <class Read>
void for_each_table(const toml::table& root, const char* name, TableReader& reader, const Read& read) {
    const auto* node = root.get(name);
    if (!node) return;
    const auto* tables = node->as_array();
    if (!tables || !tables->is_array_of_tables())
        return reader.fail(node->source(), name, fmt::format("wrong type; allowed: tables, [[{}]]", name));
    for (std::size_t i = 0; i < tables->size(); ++i)
        read(*(*tables)[i].as_table(), fmt::format("{}.#{}.", name, i + 1), i);
}

/// `rates` is resized before: the reader keeps the addresses of the values.
void read_gemm_rate(TableReader& reader, const toml::table& table, const std::string& prefix, std::size_t i,
                    std::vector<GemmRate>& rates) {
    GemmRate& rate = rates[i];
    reader.fill(table, prefix,
                {{"side", &rate.side, true, 1, 1e9},
                 {"fp32_flops", &rate.fp32_flops, true, 1, kMaxRate},
                 {"bf16_flops", &rate.bf16_flops, true, 1, kMaxRate}});
    if (i > 0 && rate.side <= rates[i - 1].side)
        reader.fail(table.source(), prefix + "side", "not larger than the one before; list them ascending");
}

/// Returns how many tables [[name]] has.
std::size_t count_of(const toml::table& root, const char* name) {
    const auto* tables = root.get(name) ? root.get(name)->as_array() : nullptr;
    return tables ? tables->size() : 0;
}

void read_attention(const toml::table& root, TableReader& reader, std::vector<AttentionRate>& rates) {
    rates.resize(count_of(root, "attention"));
    for_each_table(
        root, "attention", reader, [&](const auto& table, const std::string& prefix, std::size_t i) {
            AttentionRate& rate = rates[i];
            reader.fill(table, prefix,
                        {{"head_dim", &rate.head_dim, true, 1, 1e6},
                         {"length", &rate.length, true, 1, 1e12},
                         {"fp32_flops", &rate.fp32_flops, true, 1, kMaxRate},
                         {"bf16_flops", &rate.bf16_flops, true, 1, kMaxRate},
                         {"backward_fp32_flops", &rate.backward_fp32_flops, true, 1, kMaxRate},
                         {"backward_bf16_flops", &rate.backward_bf16_flops, true, 1, kMaxRate}});
            if (i > 0 && std::pair(rate.head_dim, rate.length) <=
                             std::pair(rates[i - 1].head_dim, rates[i - 1].length))
                reader.fail(
                    table.source(), prefix + "length",
                    "not larger than the one before with this head_dim; list them by ascending head_dim "
                    "and length");
        });
}

void read_corrections(const toml::table& root, TableReader& reader, std::vector<Correction>& corrections) {
    corrections.resize(count_of(root, "correction"));
    constexpr double kMostRows = 1e12, kMostSeconds = 1e6, kMostFactor = 1e6;
    constexpr int kMostRanks = 1 << 20;
    for_each_table(root, "correction", reader,
                   [&](const auto& table, const std::string& prefix, std::size_t i) {
                       Correction& of = corrections[i];
                       reader.fill(table, prefix,
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
                   });
}

/// A [[collective]] as the file has it.
struct CollectiveKeys {
    std::string kind;
    std::int64_t ranks = 2, nodes = 1;
    double bytes = 1, seconds = 1;
};

/// `keys`: the reader keeps the addresses of the values.
std::vector<collective::CollectiveRow> read_collectives(const toml::table& root, TableReader& reader,
                                                        std::vector<CollectiveKeys>& keys) {
    keys.resize(count_of(root, "collective"));
    constexpr int kMostRanks = 1 << 20;
    constexpr double kMostSeconds = 1e6;
    const std::vector<std::string> kinds(collective::kCollectiveNames.begin(),
                                         collective::kCollectiveNames.end());
    std::vector<collective::CollectiveRow> rows;
    std::map<std::tuple<std::string, std::int64_t, std::int64_t, double>, std::size_t> seen;
    for_each_table(
        root, "collective", reader, [&](const auto& table, const std::string& prefix, std::size_t i) {
            CollectiveKeys& of = keys[i];
            const std::size_t errors = reader.errors().size();
            reader.fill(table, prefix,
                        {{"kind", &of.kind, true, 0, 0, kinds},
                         {"ranks", &of.ranks, true, 2, kMostRanks},
                         {"nodes", &of.nodes, false, 1, kMostRanks},
                         {"bytes", &of.bytes, true, 1, kMaxRate},
                         {"seconds", &of.seconds, true, 1e-12, kMostSeconds}});
            if (reader.lacks(prefix) || reader.errors().size() > errors) return;
            if (of.nodes > of.ranks)
                reader.fail(table.source(), prefix + "nodes",
                            fmt::format("{} for {} ranks; allowed: at most as many nodes as ranks", of.nodes,
                                        of.ranks));
            const auto [at, is_new] = seen.try_emplace({of.kind, of.ranks, of.nodes, of.bytes}, i);
            if (!is_new)
                reader.fail(table.source(), prefix + "bytes",
                            fmt::format("kind, ranks, nodes and bytes are those of collective.#{}; leave out "
                                        "one of the two",
                                        at->second + 1));
            const auto kind = std::find(kinds.begin(), kinds.end(), of.kind);
            rows.push_back({static_cast<collective::CollectiveKind>(kind - kinds.begin()),
                            static_cast<int>(of.ranks), static_cast<int>(of.nodes), of.bytes, of.seconds});
        });
    return rows;
}

Cluster read(const toml::table& root, TableReader& reader) {
    Cluster cluster;
    const std::vector<std::string> known{"cluster", "device",  "product",    "grouped_product", "attention",
                                         "node",    "network", "collective", "correction"};
    for (const auto& [name, node] : root) {
        if (std::find(known.begin(), known.end(), name.str()) != known.end()) continue;
        const std::string near = nearest(std::string(name.str()), known);
        reader.fail(
            node.source(), std::string(name.str()),
            fmt::format("unknown table; {}", near.empty() ? fmt::format("known: {}", fmt::join(known, ", "))
                                                          : "did you mean " + near + "?"));
    }
    reader.fill(table_of(root, "cluster", reader), "cluster.",
                {{"name", &cluster.name, true},
                 {"ranks_per_node", &cluster.ranks_per_node, true, 1, 1 << 20},
                 {"node_hour_price", &cluster.node_hour_price, false, 0, 1e12}});
    reader.fill(table_of(root, "device", reader), "device.",
                {{"memory", &cluster.device.memory, true, 1, kMaxRate},
                 {"memory_bandwidth", &cluster.device.memory_bandwidth, true, 1, kMaxRate},
                 {"element_flops", &cluster.device.element_flops, true, 1, kMaxRate},
                 {"operation_s", &cluster.device.operation_s, false, 0, 1},
                 {"launch_s", &cluster.device.launch_s, false, 0, 1},
                 {"expert_imbalance", &cluster.device.expert_imbalance, false, 1, 1e6},
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
    std::vector<CollectiveKeys> keys;
    cluster.collectives = collective::CollectiveTimes(read_collectives(root, reader, keys));
    read_corrections(root, reader, cluster.corrections);
    const auto* products = root.get("product") ? root.get("product")->as_array() : nullptr;
    if (!products || products->empty() || !products->is_array_of_tables()) {
        reader.fail(root.get("product") ? root.get("product")->source() : root.source(), "product",
                    "missing; write one [[product]] or more, with side, fp32_flops and bf16_flops");
        return cluster;
    }
    cluster.device.gemm_rates.resize(products->size());
    cluster.device.grouped_rates.resize(count_of(root, "grouped_product"));
    for (auto [name, rates] : {std::pair{"product", &cluster.device.gemm_rates},
                               std::pair{"grouped_product", &cluster.device.grouped_rates}})
        for_each_table(root, name, reader,
                       [&, of = rates](const auto& table, const std::string& prefix, std::size_t i) {
                           read_gemm_rate(reader, table, prefix, i, *of);
                       });
    read_attention(root, reader, cluster.device.attention_rates);
    reader.check_required();
    return cluster;
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& path) {
    TableReader reader(path);
    return read_toml(text, reader, [&](const toml::table& root) { return read(root, reader); });
}

}  // namespace maestro::config
