#include "train/run/dry_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "graph/grid.hpp"
#include "io/checkpoint.hpp"
#include "io/run_directory.hpp"
#include "io/section_image.hpp"
#include "model/module.hpp"
#include "simulation/simulation.hpp"
#include "train/run/dry_run_facts.hpp"
#include "train/setup/placement.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

std::vector<SectionFacts> sections_of(const DryRunFacts& facts) {
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
    if (context.deck.data.lengths.requested() && wanted != "emulated")
        notes.push_back(
            "samples are those of [data.lengths], without contents: train would refuse them (78) and needs "
            "data.train");
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

DryRunFacts facts_of(const RunContext& context, const Preflight& preflight) {
    DryRunFacts facts{.context = context,
                      .scenario = preflight.scenario(),
                      .plan = preflight.planned(),
                      .device = preflight.device()};
    const graph::SectionGraph& graph = facts.graph();
    for (int rank = 0; rank < graph.world; ++rank)
        facts.ranks.push_back(workload::memory_of(facts.plan, graph, rank));
    facts.sections = sections_of(facts);
    facts.disk = disk_need_of(context.deck, facts.scenario, context.pulse);
    facts.free_disk = io::free_space(context.deck.run.output);
    facts.notes = notes_of(context, facts.device);
    if (context.planned_device) facts.shortage = workload::shortage(facts.plan, graph, facts.device);
    if (facts.disk.checkpoint > 0 && facts.free_disk && *facts.free_disk < facts.disk.bytes())
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
    // While one is written, those that are kept still exist: two or more, and the best one, or two of them
    // where the newer ones are judged by fewer steps. Each early stop writes one in any case.
    const std::int64_t every = deck.save_interval(), steps = deck.train.steps;
    const std::int64_t written = every > 0 ? (steps + every - 1) / every : 1;
    const std::int64_t best = every > 0 && every < io::kJudgedSteps ? 2 : 1;
    need.most = std::max<std::int64_t>(deck.checkpoint.keep, 2) + best + 1;
    need.at_once = std::min(written, need.most);
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
    DryRunFacts facts = facts_of(context, preflight);
    facts.notes.insert(facts.notes.end(), notes.begin(), notes.end());
    log::info("{}", traffic_table(preflight.scenario(), preflight.table()));
    for (const std::string& text : to_texts(facts)) log::info("{}", text);
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
