#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/grid.hpp"
#include "train/run/dry_run_facts.hpp"

namespace maestro::train {

namespace {

std::int64_t whole_bytes(double bytes) {
    return std::llround(bytes);
}

nlohmann::ordered_json section_json(const DryRunFacts& facts, std::size_t s) {
    const SectionFacts& found = facts.sections[s];
    const graph::Section& section = facts.graph().sections[s];
    const graph::Layout& l = section.layout;
    nlohmann::ordered_json json{{"ranks", l.ranks()},
                                {"first_rank", section.first_rank},
                                {"layout",
                                 {{"dp", l.dp},
                                  {"pp", l.pp},
                                  {"cp", l.cp},
                                  {"tp", l.tp},
                                  {"chunks", l.chunks},
                                  {"ep", l.ep},
                                  {"etp", l.etp}}},
                                {"nodes", found.nodes},
                                {"micro_batch", section.micro_batch}};
    json["window"] = found.window;
    json["fullest_rank"] = found.fullest;
    json["shares_with"] = found.shares_with;
    json["memory_bytes"] = whole_bytes(found.memory.needed());
    json["free_bytes"] = whole_bytes(facts.device.memory);
    nlohmann::ordered_json& parts = json["memory"];
    for (const MemoryPart& part : kDeviceParts) parts[part.key] = whole_bytes(part.bytes(found.memory));
    nlohmann::ordered_json& host = facts.device.gpu ? json["host"] : parts;
    for (const MemoryPart& part : kHostParts) host[part.key] = whole_bytes(part.bytes(found.memory));
    if (facts.device.gpu) json["host_bytes"] = whole_bytes(found.memory.on_host());
    if (!facts.disk.sections.empty()) json["checkpoint_bytes"] = facts.disk.sections[s];
    return json;
}

}  // namespace

std::string to_json(const DryRunFacts& facts, const config::CommandLine& line) {
    const graph::SectionGraph& graph = facts.graph();
    const workload::RankDevice& d = facts.device;
    nlohmann::ordered_json json{{"deck", line.deck}, {"ranks", graph.world}};
    if (d.ranks_per_node > 0) {
        json["ranks_per_node"] = d.ranks_per_node;
        json["nodes"] = (graph.world + d.ranks_per_node - 1) / d.ranks_per_node;
    }
    json["machine"] = {{"name", d.name},
                       {"device", d.gpu ? "gpu" : "cpu"},
                       {"free_bytes", whole_bytes(d.memory)},
                       {"context_bytes", whole_bytes(d.context_memory)},
                       {"window_share", d.window_share}};
    if (d.gpu) json["machine"]["architecture"] = d.traits.attention.architecture;
    json["fits"] = facts.shortage.empty();
    if (!facts.shortage.empty()) json["shortage"] = facts.shortage;
    for (std::size_t s = 0; s < facts.sections.size(); ++s)
        json["sections"][graph.sections[s].name] = section_json(facts, s);
    json["placement"] = nlohmann::ordered_json::array();
    for (int rank = 0; rank < graph.world; ++rank) {
        nlohmann::ordered_json row{{"rank", rank}};
        if (d.ranks_per_node > 0) row["node"] = rank / d.ranks_per_node;
        row["sections"] = nlohmann::ordered_json::array();
        for (const graph::Section& section : graph.sections)
            if (graph::holds(section, rank)) row["sections"].push_back(section.name);
        row["memory_bytes"] = whole_bytes(facts.ranks[static_cast<std::size_t>(rank)].needed());
        json["placement"].push_back(std::move(row));
    }
    if (facts.disk.checkpoint > 0) {
        json["checkpoint_bytes"] = facts.disk.checkpoint;
        json["checkpoints"] = facts.disk.at_once;
        json["disk_bytes"] = facts.disk.bytes();
        json["checkpoints_with_stops"] = facts.disk.most;
    }
    json["run_directory"] = facts.context.deck.run.output;
    if (facts.free_disk) json["disk_free_bytes"] = *facts.free_disk;
    json["steps"] = facts.steps();
    if (facts.step_s > 0) {
        json["step_s"] = facts.step_s;
        json["run_s"] = facts.step_s * static_cast<double>(facts.steps());
        json["tokens"] = facts.tokens;
        json["tokens_per_rank_hour"] = 3600 * facts.tokens / facts.step_s / graph.world;
    }
    json["notes"] = facts.notes;
    return json.dump();
}

}  // namespace maestro::train
