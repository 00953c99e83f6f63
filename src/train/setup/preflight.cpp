#include "train/setup/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "comm/agree.hpp"
#include "comm/topology.hpp"
#include "graph/grid.hpp"
#include "train/setup/memory.hpp"
#include "train/setup/picture_exchange.hpp"
#include "train/setup/sample_checks.hpp"
#include "train/setup/samples.hpp"
#include "workload/decoding.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"
#include "workload/training_samples.hpp"

namespace maestro::train {

namespace {

std::string describe_checkpoints(const config::Deck& deck) {
    if (const std::string why = deck.saves_nothing(); !why.empty()) return "checkpoints: none, " + why;
    if (!deck.saves_at_end()) return "checkpoints: at an early stop alone, by checkpoint.every = 0";
    const std::string path = deck.run.output + "/checkpoints";
    if (deck.save_interval() == 0)
        return fmt::format(
            "checkpoints: {}, after the last step, or at an early stop; checkpoint.every would "
            "write more of them",
            path);
    return fmt::format(
        "checkpoints: {}, every {} steps and after the last; the newest {} stay, and "
        "the one after which the loss was lowest",
        path, deck.save_interval(), std::max<std::int64_t>(deck.checkpoint.keep, 2));
}

}  // namespace

Preflight::Preflight(const RunContext& context, bool exchange_pictures)
    : context_(context), scenario_(context.scenario) {
    read_samples(exchange_pictures);
    if (context.deck.run.device == "emulated" && !context.planned_device) emulate();
    plan_memory();
}

void Preflight::read_samples(bool exchange) {
    const config::Deck& deck = context_.deck;
    if (context_.train && deck.data.lengths.requested())
        comm::agree(context_.world,
                    [&] { samples_ = workload::sample_lengths(deck, scenario_, context_.pulse); });
    else
        samples_ = file_ = open_samples(
            context_.world, context_.train ? deck.data.train : deck.data.validation, context_.pulse);
    scenario_.markers = samples_->markers();
    comm::agree(context_.world, [&] {
        if (!context_.train && samples_->size() == 0)
            throw Error(ExitCode::bad_data, samples_->name() + ": holds no samples");
        workload::check_samples(scenario_, *samples_, context_.train);
    });
    if (deck.run.device != "emulated") {
        if (file_) description_ = check_tokenizer(context_, *file_);
        if (context_.train) check_validation(context_);
    }
    if (exchange) exchange_pictures(context_.world, *file_, context_.pulse);  // of an evaluation
    if (file_ && workload::needs_markers(scenario_.graph))
        find_markers(context_.world, *file_, context_.pulse);
    table_ = std::make_unique<workload::SampleTable>(workload::table_of(scenario_, *samples_));
    table_->set_pulse(context_.pulse);
    context_.pulse.doing(fmt::format("looking at the lengths of all samples of {}", samples_->name()));
    comm::agree(context_.world, [&] {
        if (context_.train) workload::check_lengths(scenario_, *table_, samples_->name());
    });
    workload::balance_stages(scenario_, *table_);
}

const data::SampleFile& Preflight::sample_file() const {
    MAESTRO_CHECK(file_, "{} is no file of samples", samples_->name());
    return *file_;
}

void Preflight::emulate() {
    if (!comm::share_a_clock(context_.world))
        throw Error(
            ExitCode::bad_deck,
            "run.device: an emulated cluster's ranks run on one machine, or on hosts made on one (network "
            "namespaces, containers), because its links go by one clock; these have different boot ids",
            Scope::all_ranks);
    emulation_ = std::make_unique<emulation::Emulation>(scenario_, context_.deck.emulated,
                                                        context_.deck.run.timeout_s);
    description_.push_back(emulation_->describe());
}

void Preflight::plan_memory() {
    workload::Probes probes;
    if (context_.planned_device) {  // report_dry_run() says whether that fits
        memory_ = workload::plan_memory(scenario_, *table_, probes, *context_.planned_device,
                                        workload::plan_options_of(context_.deck));
        device_ = *context_.planned_device;
        return;
    }
    const backend::Traits traits = backend::traits_of(context_.device, context_.topology.threads);
    if (emulation_)  // does not depend on the threads of this host
        memory_ = emulation_->plan_memory(*table_, probes, context_.deck, context_.memory_advice);
    else
        comm::agree(context_.world, [&] {
            memory_ = workload::measure_memory(scenario_, *table_, probes, traits, context_.train);
        });
    if (context_.shown > 0)
        workload::plan_decoding(scenario_, *table_, traits,
                                workload::samples_with_targets(*table_, context_.shown), memory_);
    if (emulation_) {
        const graph::SectionGraph& graph = scenario_.graph;
        for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage)
            description_.push_back(fmt::format(
                "on the emulated device a rank of {} has window {} and needs {}", graph.stage_name(stage),
                memory_.stages[stage].window,
                workload::memory_of(memory_, graph, graph::first_rank_of(graph, stage)).describe()));
        emulated_plan_ = memory_;
        memory_ = emulation_->scaled(memory_, *table_);
    }
    memory_.snapshots = context_.train && context_.deck.save_interval() > 0;
    if (context_.train) description_.push_back(describe_checkpoints(context_.deck));
    device_ = fit_memory(context_, memory_);
    if (emulation_) device_ = workload::rank_device_of(*scenario_.cluster, context_.deck.run);
    if (context_.device.gpu) description_.push_back(workload::describe(memory_.libraries));
}

std::vector<std::string> Preflight::description(bool sections) const {
    std::vector<std::string> lines = description_;
    for (int stage = 0; sections && stage < static_cast<int>(memory_.stages.size()); ++stage)
        lines.push_back(fmt::format("section {}: {}", scenario_.graph.stage_name(stage),
                                    workload::describe(memory_.stages[stage])));
    return lines;
}

}  // namespace maestro::train
