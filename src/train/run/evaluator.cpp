#include "train/run/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "graph/grid.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/coordinator/planner.hpp"
#include "train/coordinator/step_command.hpp"
#include "train/run/failure.hpp"
#include "train/run/job.hpp"
#include "train/run/memory.hpp"

namespace maestro::train {

namespace {

/// Samples of a step where ranks evaluate by themselves. Those that are done wait for the others, which send
/// a heartbeat at least once a step.
constexpr std::int64_t kSamplesOfARank = 16;

/// The sections of a deck without anything that training adds: nothing is trained, so there are no gradients,
/// no optimizer states and no activations kept for a backward pass. With `one_rank` they are whole and share
/// one rank.
workload::Scenario forward_scenario(const workload::Scenario& scenario, bool one_rank) {
    std::vector<graph::Section> sections = scenario.graph.sections;
    for (graph::Section& section : sections) {
        section.train = false;
        if (!one_rank) continue;
        section.layout = {};
        section.colocate_with = &section == &sections.front() ? "" : sections.front().name;
    }
    std::vector<graph::Refusal> refusals;
    workload::Scenario forward = workload::with_sections(scenario, std::move(sections), refusals);
    MAESTRO_CHECK(refusals.empty(), "{}: {}", refusals.front().key, refusals.front().what);
    return forward;
}

/// `context` for an evaluation on its world, or by each rank alone.
RunContext evaluation_context(const RunContext& context, bool one_rank) {
    RunContext evaluation = context;
    evaluation.train = false;
    config::Deck& deck = evaluation.deck;
    evaluation.scenario = forward_scenario(context.scenario, one_rank);
    deck.schedule.dispatch = "planned";  // the same sums in every run
    deck.schedule.costs = "model";
    if (one_rank) deck.data.global_batch = std::min(deck.data.global_batch, kSamplesOfARank);
    evaluation.scenario.global_batch = deck.data.global_batch;
    evaluation.memory_advice =
        one_rank ? fmt::format(
                       "every rank holds all sections whole here: run on {} ranks, in the deck's "
                       "layouts, on fewer ranks a node, or with a smaller micro_batch",
                       context.scenario.graph.world)
                 : "use a smaller window or micro_batch, more ranks for a section (layout.tp for weights and "
                   "activations, layout.cp for activations), or fewer ranks a node";
    return evaluation;
}

/// The forward passes of a job over some of the validation samples.
class Evaluator {
public:
    /// Collective over the job's world, where all ranks name the same samples, in the same order.
    Evaluator(Job& job, std::vector<std::int64_t> samples)
        : job_(job),
          deck_(job.context().deck),
          samples_(std::move(samples)),
          planner_(deck_, job.context().scenario.graph, job.problem(), job.costs(), batches(),
                   job.context().world.waiter()),
          runner_(job.context().world,
                  graph::lane_on(job.context().scenario.graph, job.context().world.rank()), job.lane(),
                  comm::now_s(), local_stages(job), job.edges(), job.table(), job.prefetcher(),
                  job.context().watchdog, false) {}

    /// Collective. This rank's part of the result; the losses of all samples are divided by `weight`.
    model::Result run(double weight) {
        const comm::Communicator& world = job_.context().world;
        model::Result result;
        for (std::int64_t step = 1; step <= batches().steps; ++step) {
            job_.context().pulse.doing(fmt::format("evaluation, the plan of step {}", step));
            StepCommand command;
            if (world.rank() == 0) command.plan = planner_.next(step, comm::now_s());
            broadcast(world, command);
            std::vector<io::TaskRow> tasks;
            const model::Result of_step =
                runner_.run(command.plan, {.loss_scale = weight > 0 ? 1 / weight : 0, .train = false}, tasks);
            runner_.read_times(tasks);  // nobody reads them, but the runner keeps them until then
            result.loss += of_step.loss;
            result.tokens += of_step.tokens;
            result.answers += of_step.answers;
            result.exact += of_step.exact;
        }
        return result;
    }

private:
    StepBatches batches() const {
        const auto size = static_cast<std::int64_t>(samples_.size()), batch = deck_.data.global_batch;
        return {(size + batch - 1) / batch, [this, size, batch](std::int64_t step) {
                    const auto first = samples_.begin() + (step - 1) * batch;
                    return std::vector(first, samples_.begin() + std::min(size, step * batch));
                }};
    }

    Job& job_;
    const config::Deck& deck_;
    std::vector<std::int64_t> samples_;
    Planner planner_;
    StepRunner runner_;
};

}  // namespace

void run_evaluation(RunContext& context, const config::CommandLine& line) {
    const comm::Communicator& world = context.world;
    const bool one_rank = world.size() != context.scenario.graph.world;
    const std::string checkpoint = need_checkpoint(world, line.checkpoint, context.pulse);
    const RunContext evaluation = evaluation_context(context, one_rank);
    const Preflight preflight(evaluation, line.exchange_images);
    const data::SampleFile& file = preflight.samples();
    double weight = 0;
    for (std::int64_t i = 0; i < file.size(); ++i) weight += file.index().weight(i);
    std::vector<std::int64_t> samples;
    for (std::int64_t i = one_rank ? world.rank() : 0; i < file.size(); i += one_rank ? world.size() : 1)
        samples.push_back(i);

    double start = comm::now_s();
    model::Result local;
    const auto evaluate = [&](const comm::Communicator& ranks) {
        const RunContext on_ranks{.world = ranks,
                                  .watchdog = evaluation.watchdog,
                                  .pulse = evaluation.pulse,
                                  .topology = evaluation.topology,
                                  .device = evaluation.device,
                                  .deck = evaluation.deck,
                                  .scenario = evaluation.scenario,
                                  .train = false,
                                  .memory_advice = evaluation.memory_advice,
                                  .end_job = evaluation.end_job};
        Job job(on_ranks, preflight);
        job.load(checkpoint);
        start = comm::now_s();
        in_planned_memory(on_ranks, preflight.memory(), [&] {
            Evaluator evaluator(job, samples);
            end_before_unwinding(on_ranks, [&] { local = evaluator.run(weight); });
        });
    };
    // A rank that fails by itself does not leave the others waiting for its result: comm::agree() throws its
    // error on all of them.
    if (one_rank) {
        const comm::Communicator alone = world.split(world.rank(), 0, "one rank");
        comm::agree(world, [&] {
            if (!samples.empty()) evaluate(alone);
        });
    } else {
        evaluate(world);
    }
    std::vector<double> sums{local.loss, static_cast<double>(local.tokens),
                             static_cast<double>(local.answers), static_cast<double>(local.exact)};
    world.allreduce_sum(std::span(sums));
    if (!std::isfinite(sums[0]))
        throw Error(ExitCode::not_finite, fmt::format("{}: the loss is {}", line.checkpoint, sums[0]),
                    Scope::all_ranks);
    const std::string match = sums[2] > 0 ? fmt::format("{:.6f}", sums[3] / sums[2]) : "null";
    log::info("{}: loss {:.4f}, {:.0f} of {:.0f} names exact, {:.0f} tokens in {:.1f} s",
              context.deck.data.validation, sums[0], sums[3], sums[2], sums[1], comm::now_s() - start);
    log::info("{{\"loss\": {:.9g}, \"exact_match\": {}, \"names\": {:.0f}, \"tokens\": {:.0f}}}", sums[0],
              match, sums[2], sums[1]);
}

}  // namespace maestro::train
