#include "train/run/dry_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "graph/grid.hpp"
#include "io/checkpoint.hpp"
#include "io/section_image.hpp"
#include "model/module.hpp"
#include "simulation/simulation.hpp"
#include "train/run/placement.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

using workload::RankMemory;
namespace fs = std::filesystem;

/// A part of a rank's memory: its words in the table, and its key.
struct Part {
    const char* words;
    const char* key;
    double (*bytes)(const RankMemory& memory);
};

// In the order of the table. Together they are RankMemory::needed().
constexpr Part kDeviceParts[] = {
    {"weights", "weights_bytes", [](const RankMemory& m) { return m.weights - m.gradients; }},
    {"gradients", "gradients_bytes", [](const RankMemory& m) { return m.gradients; }},
    {"optimizer's moments", "optimizer_bytes", [](const RankMemory& m) { return m.optimizer; }},
    {"activations of the window", "activations_bytes", [](const RankMemory& m) { return m.activations; }},
    {"temporary, within a task", "scratch_bytes", [](const RankMemory& m) { return m.scratch - m.sums; }},
    {"buffers to sum gradients", "sums_bytes", [](const RankMemory& m) { return m.sums; }},
    {"rows on edges", "edges_bytes", [](const RankMemory& m) { return m.channels; }},
    {"NCCL and MPI on the GPU (estimate)", "transfers_bytes",
     [](const RankMemory& m) { return m.transfers; }},
    {"workspace of GEMMs", "workspace_bytes", [](const RankMemory& m) { return m.libraries; }},
    {"code of libraries (estimate)", "libraries_bytes",
     [](const RankMemory& m) { return m.reserve - m.transfers; }},
};
// Of the host: on CPUs they are in the same memory as the others, and count to RankMemory::needed().
constexpr Part kHostParts[] = {
    {"messages between nodes", "messages_bytes", [](const RankMemory& m) { return m.messages; }},
    {"samples, read ahead", "samples_bytes", [](const RankMemory& m) { return m.samples; }},
    {"exchange of experts' rows", "experts_bytes", [](const RankMemory& m) { return m.experts; }},
    {"copy for checkpoints", "copy_bytes", [](const RankMemory& m) { return m.snapshot + m.host_copy; }},
};

/// What is told of a section.
struct SectionFacts {
    int fullest = 0;  ///< its rank that needs most
    RankMemory memory;
    std::set<int> nodes;                     ///< empty: not known
    std::vector<std::string> shares_with{};  ///< other sections on the fullest rank
    int window = 0;                          ///< of its first stage
    bool at_once = false;                    ///< backward follows forward: one micro-batch is kept
};

struct Facts {
    const RunContext& context;
    const workload::Scenario& scenario;
    const workload::MemoryPlan& plan;
    const workload::RankDevice& device;
    std::vector<RankMemory> ranks{};
    std::vector<SectionFacts> sections{};
    DiskNeed disk{};
    double free_disk = -1;  ///< bytes where run.output is, on this machine; -1: not known
    std::string shortage{};
    double step_s = 0, tokens = 0;  ///< 0: not known
    std::vector<std::string> notes{};

    const graph::SectionGraph& graph() const { return scenario.graph; }
    std::int64_t steps() const { return context.deck.train.steps; }
};

double free_disk_at(fs::path path) {
    std::error_code error;
    while (!path.empty() && !fs::exists(path, error)) path = path.parent_path();
    const fs::space_info space = fs::space(path.empty() ? fs::path(".") : path, error);
    return error ? -1 : static_cast<double>(space.available);
}

std::vector<SectionFacts> sections_of(const Facts& facts) {
    const graph::SectionGraph& graph = facts.graph();
    std::vector<SectionFacts> sections;
    for (const graph::Section& section : graph.sections) {
        SectionFacts found{.fullest = section.first_rank, .memory = {}, .nodes = {}};
        for (int rank = 0; rank < graph.world; ++rank) {
            if (!graph::holds(section, rank)) continue;
            const auto r = static_cast<std::size_t>(rank);
            if (facts.ranks[r].needed() > facts.ranks[static_cast<std::size_t>(found.fullest)].needed())
                found.fullest = rank;
            if (facts.device.ranks_per_node > 0) found.nodes.insert(rank / facts.device.ranks_per_node);
        }
        found.memory = facts.ranks[static_cast<std::size_t>(found.fullest)];
        for (const graph::Section& other : graph.sections)
            if (other.name != section.name && graph::holds(other, found.fullest))
                found.shares_with.push_back(other.name);
        const workload::StageMemory& first = facts.plan.stages[static_cast<std::size_t>(section.first_stage)];
        found.window = first.window;
        found.at_once = first.loss;
        sections.push_back(std::move(found));
    }
    return sections;
}

std::vector<std::string> notes_of(const RunContext& context, const workload::RankDevice& device) {
    std::vector<std::string> notes;
    const std::string& wanted = context.deck.run.device;
    if (wanted == "cuda" && !device.gpu)
        notes.push_back(fmt::format(
            "run.device is \"cuda\", but {} has CPUs (device.kind): train would refuse it there (78)",
            device.name));
    if (wanted == "cpu" && device.gpu)
        notes.push_back(
            fmt::format("run.device is \"cpu\": these figures are for the GPUs of {}, which "
                        "train uses with \"auto\" or \"cuda\"",
                        device.name));
    for (const config::Section& section : context.deck.sections)
        if (context.planned_device && !section.weights.empty() && section.weights != "random")
            notes.push_back(
                fmt::format("section {}: the weights of {} were not read", section.name, section.weights));
    if (context.deck.run.precision == "fp64")
        notes.push_back(
            "run.precision is fp64: no checkpoints are saved, and cluster files have no rates, so "
            "that times are not known");
    return notes;
}

Facts facts_of(const RunContext& context, const Preflight& preflight) {
    Facts facts{.context = context,
                .scenario = preflight.scenario(),
                .plan = preflight.planned(),
                .device = preflight.device()};
    const graph::SectionGraph& graph = facts.graph();
    for (int rank = 0; rank < graph.world; ++rank)
        facts.ranks.push_back(workload::memory_of(facts.plan, graph, rank));
    facts.sections = sections_of(facts);
    facts.disk = disk_need_of(context.deck, facts.scenario, context.pulse);
    facts.free_disk = free_disk_at(context.deck.run.output);
    facts.notes = notes_of(context, facts.device);
    if (context.planned_device) facts.shortage = workload::shortage(facts.plan, graph, facts.device);
    if (facts.disk.checkpoint > 0 && facts.free_disk >= 0 &&
        facts.free_disk < static_cast<double>(facts.disk.bytes()))
        facts.notes.push_back(
            fmt::format("the disk of {} has less room than the checkpoints need, on this machine",
                        context.deck.run.output));
    if (!facts.scenario.cluster || !facts.shortage.empty() || context.deck.run.precision == "fp64")
        return facts;
    context.watchdog.doing("the time of a step");
    context.watchdog.pause();
    const simulation::Result step = simulation::predict_step(context.deck, context.scenario, facts.device);
    facts.step_s = step.step_s;
    facts.tokens = step.tokens;
    return facts;
}

// ---- as text

/// "3.20 GB", "812.0 MB"
std::string gb(double bytes) {
    return bytes >= 1e9 ? fmt::format("{:.2f} GB", bytes / 1e9) : fmt::format("{:.1f} MB", bytes / 1e6);
}

/// "44 min", "3 h 20 min", "12 days 3 h"
std::string duration(double seconds) {
    if (seconds < 120) return fmt::format("{:.3g} s", seconds);
    const auto minutes = static_cast<std::int64_t>(std::llround(seconds / 60));
    if (minutes < 120) return fmt::format("{} min", minutes);
    if (minutes < 48 * 60) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
    return fmt::format("{} days {} h", minutes / (24 * 60), minutes / 60 % 24);
}

/// "0, 3-7"
std::string ranges(const std::set<int>& numbers) {
    std::string text;
    for (auto at = numbers.begin(); at != numbers.end();) {
        const int first = *at;
        int last = first;
        while (++at != numbers.end() && *at == last + 1) ++last;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
        if (last > first) text += fmt::format("-{}", last);
    }
    return text.empty() ? "-" : text;
}

std::string layout_text(const graph::Layout& l) {
    std::string text;
    for (const auto& [name, degree] :
         {std::pair{"dp", l.dp}, std::pair{"pp", l.pp}, std::pair{"cp", l.cp}, std::pair{"tp", l.tp},
          std::pair{"chunks", l.chunks}, std::pair{"ep", l.ep}, std::pair{"etp", l.etp}})
        if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, degree);
    return text.empty() ? "1 rank" : text;
}

std::string device_text(const Facts& facts) {
    const workload::RankDevice& d = facts.device;
    std::string text = fmt::format("{} ranks", facts.graph().world);
    if (d.ranks_per_node > 0)
        text +=
            fmt::format(" on {} nodes of {} ranks",
                        (facts.graph().world + d.ranks_per_node - 1) / d.ranks_per_node, d.ranks_per_node);
    text += fmt::format(", {}: each has {} of memory free", d.name, gb(d.memory));
    if (d.gpu)
        text += fmt::format(" on its GPU ({} less {} for the CUDA context)", gb(d.memory + d.context_memory),
                            gb(d.context_memory));
    return text + fmt::format("; windows that the deck leaves open (0) fill at most {:.0f}% of it",
                              100 * d.window_share);
}

std::string memory_table(const Facts& facts) {
    double most = 0;
    for (const RankMemory& memory : facts.ranks) most = std::max(most, memory.needed());
    const bool large = most >= 1e10;
    const auto number = [&](double bytes) {
        return large ? fmt::format("{:.2f}", bytes / 1e9) : fmt::format("{:.1f}", bytes / 1e6);
    };
    std::vector<std::vector<std::string>> rows{{"section"}};
    const auto add = [&](const std::string& words, const auto& cell) {
        std::vector<std::string> row{words};
        for (std::size_t s = 0; s < facts.sections.size(); ++s) row.push_back(cell(s));
        rows.push_back(std::move(row));
    };
    const graph::SectionGraph& graph = facts.graph();
    const auto bytes = [&](const std::string& words, const auto& what) {
        const bool any = std::any_of(facts.sections.begin(), facts.sections.end(),
                                     [&](const SectionFacts& s) { return what(s.memory) > 0; });
        if (any) add(words, [&](std::size_t s) { return number(what(facts.sections[s].memory)); });
    };
    for (const graph::Section& s : graph.sections) rows.front().push_back(s.name);
    add("layout", [&](std::size_t s) { return layout_text(graph.sections[s].layout); });
    add("ranks", [&](std::size_t s) {
        const graph::Section& section = graph.sections[s];
        const int last = section.first_rank + section.layout.ranks() - 1;
        return last > section.first_rank ? fmt::format("{}-{}", section.first_rank, last)
                                         : fmt::format("{}", last);
    });
    if (facts.device.ranks_per_node > 0)
        add("nodes", [&](std::size_t s) { return ranges(facts.sections[s].nodes); });
    add("samples of a micro-batch",
        [&](std::size_t s) { return fmt::format("{}", graph.sections[s].micro_batch); });
    add("window: micro-batches in flight", [&](std::size_t s) {
        return facts.sections[s].at_once ? std::string("-") : fmt::format("{}", facts.sections[s].window);
    });
    add("rank that needs most", [&](std::size_t s) { return fmt::format("{}", facts.sections[s].fullest); });
    if (std::any_of(facts.sections.begin(), facts.sections.end(),
                    [](const SectionFacts& s) { return !s.shares_with.empty(); }))
        add("it also holds", [&](std::size_t s) {
            const auto& with = facts.sections[s].shares_with;
            return with.empty() ? std::string("-") : fmt::format("{}", fmt::join(with, ", "));
        });
    const std::size_t head = rows.size();
    for (const Part& part : kDeviceParts) bytes(std::string("  ") + part.words, part.bytes);
    if (!facts.device.gpu)
        for (const Part& part : kHostParts) bytes(std::string("  ") + part.words, part.bytes);
    add("in all", [&](std::size_t s) { return number(facts.sections[s].memory.needed()); });
    add("free on its device", [&](std::size_t) { return number(facts.device.memory); });
    if (facts.device.gpu) {
        bytes("memory of its host", [](const RankMemory& m) { return m.on_host(); });
        for (const Part& part : kHostParts) bytes(std::string("  ") + part.words, part.bytes);
    }
    std::vector<std::string> title(rows.front().size());
    title.front() = fmt::format("memory of that rank, {}", large ? "GB" : "MB");
    rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(head), std::move(title));
    return aligned(rows, 0, 1);
}

std::string disk_text(const Facts& facts) {
    if (facts.disk.checkpoint == 0) return {};
    std::vector<std::string> sections;
    for (std::size_t s = 0; s < facts.disk.sections.size(); ++s)
        sections.push_back(fmt::format("{} {}", facts.graph().sections[s].name,
                                       gb(static_cast<double>(facts.disk.sections[s]))));
    std::string text = fmt::format("a checkpoint has {} ({})", gb(static_cast<double>(facts.disk.checkpoint)),
                                   fmt::join(sections, ", "));
    if (facts.disk.at_once > 1)
        text += fmt::format("; up to {} at a time need {} of disk, the one being written included",
                            facts.disk.at_once, gb(static_cast<double>(facts.disk.bytes())));
    if (facts.free_disk >= 0)
        text += fmt::format("; {} are free at {} here", gb(facts.free_disk), facts.context.deck.run.output);
    return text;
}

std::string time_text(const Facts& facts) {
    if (facts.step_s <= 0) return {};
    return fmt::format(
        "a step takes {:.6g} s there: step 1, as `maestro simulate` predicts it; {:.6g} tokens, {:.4g} "
        "tokens "
        "per rank-hour\n{} steps take {}, checkpoints and waiting for data not counted",
        facts.step_s, facts.tokens, 3600 * facts.tokens / facts.step_s / facts.graph().world, facts.steps(),
        duration(facts.step_s * static_cast<double>(facts.steps())));
}

// ---- as JSON

std::int64_t whole_bytes(double bytes) {
    return std::llround(bytes);
}

nlohmann::ordered_json section_json(const Facts& facts, std::size_t s) {
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
    for (const Part& part : kDeviceParts) parts[part.key] = whole_bytes(part.bytes(found.memory));
    nlohmann::ordered_json& host = facts.device.gpu ? json["host"] : parts;
    for (const Part& part : kHostParts) host[part.key] = whole_bytes(part.bytes(found.memory));
    if (facts.device.gpu) json["host_bytes"] = whole_bytes(found.memory.on_host());
    if (!facts.disk.sections.empty()) json["checkpoint_bytes"] = facts.disk.sections[s];
    return json;
}

std::string to_json(const Facts& facts, const config::CommandLine& line) {
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
    }
    json["run_directory"] = facts.context.deck.run.output;
    if (facts.free_disk >= 0) json["disk_free_bytes"] = whole_bytes(facts.free_disk);
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

}  // namespace

DiskNeed disk_need_of(const config::Deck& deck, const workload::Scenario& scenario, Pulse& pulse) {
    DiskNeed need;
    if (!deck.saves_nothing().empty()) return need;
    const graph::SectionGraph& graph = scenario.graph;
    const auto meta = backend::make_meta();
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) {
        std::vector<io::StoredParameter> parameters;
        std::set<std::string> known;  // two stages may hold one
        for (int stage = graph.sections[static_cast<std::size_t>(s)].first_stage;
             stage <= graph.last_stage(s); ++stage) {
            const auto module = model::make_module(
                *meta, scenario.models[static_cast<std::size_t>(s)], workload::role_of(scenario, stage),
                workload::meta_mesh_of(scenario, stage, 0), model::InitialWeights::zeros);
            for (const parallel::Parameter& p : module->parameters().parameters())
                if (known.insert(p.name).second) parameters.push_back({p.name, p.shape, p.trainable});
        }
        need.sections.push_back(
            io::describe_section(graph.sections[static_cast<std::size_t>(s)].name, 0, parameters, pulse)
                .image.bytes);
        need.checkpoint += need.sections.back();
    }
    need.checkpoint +=
        io::describe_train_state(
            {.deck = deck.text, .settings = deck.settings, .defaults = deck.defaults, .counts = {}}, pulse)
            .bytes;
    // While one is written, those that are kept still exist: two or more, and the best one. An early stop
    // writes one in any case.
    const std::int64_t every = deck.save_interval(), steps = deck.train.steps;
    const std::int64_t written = every > 0 ? (steps + every - 1) / every : 1;
    need.at_once = std::min(written, std::max<std::int64_t>(deck.checkpoint.keep, 2) + 2);
    return need;
}

std::optional<workload::RankDevice> planned_device_of(const config::CommandLine& line,
                                                      const config::Deck& deck, const std::string& cluster,
                                                      workload::Scenario& scenario) {
    if (!line.cluster.empty()) {
        scenario = workload::on_cluster(std::move(scenario), config::parse_cluster(cluster, line.cluster));
        return workload::rank_device_of(*scenario.cluster, deck.run);
    }
    if (line.memory == 0) return {};
    config::Device device;
    device.memory = line.memory;
    scenario = workload::on_nodes(std::move(scenario), 0);
    workload::RankDevice made = workload::rank_device_of(device, deck.run, "", 0);
    made.name =
        made.gpu ? "GPUs as --memory says" : "CPUs as --memory says (for GPUs set run.device = \"cuda\")";
    return made;
}

void report_dry_run(const RunContext& context, const Preflight& preflight, const config::CommandLine& line,
                    const std::vector<std::string>& notes) {
    log::info("{}", placement_table(context, preflight.planned()));
    Facts facts = facts_of(context, preflight);
    facts.notes.insert(facts.notes.end(), notes.begin(), notes.end());
    log::info("{}", traffic_table(preflight.scenario(), preflight.table()));
    log::info("{}\n{}", device_text(facts), memory_table(facts));
    for (const std::string& text : {disk_text(facts), time_text(facts)})
        if (!text.empty()) log::info("{}", text);
    for (const std::string& note : facts.notes) log::info("note: {}", note);
    if (facts.shortage.empty())
        log::info("dry run: deck, samples and memory are in order; nothing was trained");
    if (line.json) log::info("{}", to_json(facts, line));
    if (!facts.shortage.empty())
        throw Error(ExitCode::device_memory,
                    workload::refusal(facts.shortage, context.memory_advice, facts.plan, facts.graph()),
                    Scope::all_ranks);
}

}  // namespace maestro::train
