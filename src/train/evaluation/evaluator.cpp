#include "train/evaluation/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "comm/advance.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "graph/grid.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/weights.hpp"
#include "train/coordinator/planner.hpp"
#include "train/coordinator/step_command.hpp"
#include "train/evaluation/answer_decoder.hpp"
#include "train/evaluation/shown_samples.hpp"
#include "train/setup/failure.hpp"
#include "train/setup/job.hpp"
#include "train/setup/memory.hpp"
#include "workload/decoding.hpp"

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
    /// Collective over the job's world, where all ranks name the same samples, in the same order, and the
    /// same ones that are decoded after the evaluation.
    Evaluator(Job& job, std::vector<std::int64_t> samples, std::vector<std::int64_t> decoded)
        : job_(job),
          deck_(job.context().deck),
          samples_(std::move(samples)),
          decoded_(std::move(decoded)),
          planner_(deck_, job.context().scenario.graph, job.problem(), job.costs(), batches(),
                   job.context().world.waiter()),
          runner_(job.context().world,
                  graph::lane_on(job.context().scenario.graph, job.context().world.rank()), job.lane(),
                  comm::now_s(), local_stages(job), job.edges(), job.table(), job.prefetcher(),
                  job.context().pulse, false) {
        if (!decoded_.empty()) make_decoder();
    }

    /// Collective. This rank's part of the result; the losses of all samples are divided by `weight`, which
    /// is above 0 (workload::check_samples).
    model::Result run(double weight) {
        model::Result result;
        for (std::int64_t step = 1; step <= evaluation_steps(); ++step) {
            const model::Result of_step = run_step(plan_of(step), 1 / weight);
            result.loss += of_step.loss;
            result.tokens += of_step.tokens;
            result.answers += of_step.answers;
            result.exact += of_step.exact;
        }
        return result;
    }

    /// Collective, after run(). Returns the answer to the i-th decoded sample, which is the shown one of
    /// number shown_at[i], on the first rank of the replica that has decoded it, and elsewhere nothing.
    std::vector<std::vector<std::int32_t>> decode(const ShownSamples& shown,
                                                  const std::vector<std::size_t>& shown_at) {
        std::vector<std::vector<std::int32_t>> answers(decoded_.size());
        for (std::size_t i = 0; i < decoded_.size(); ++i) {
            // The prompt is run like any sample of an evaluation, whatever the layouts of the sections.
            const schedule::StepPlan plan = plan_of(evaluation_steps() + 1 + static_cast<std::int64_t>(i));
            const bool here = decoder_ && holds_sample(plan.batches[section_][stage_->replica_group()]);
            if (here) decoder_->record();
            run_step(plan, 0);
            if (!here) continue;
            const std::size_t at = shown_at[i];
            const std::vector<std::int32_t>& ends = shown.ends(at);
            const std::vector<std::int32_t> answer = decoder_->answer(
                workload::most_answer_tokens(shown.target_tokens(at), !ends.empty(), decoder_->prompt_rows(),
                                             deck_.data.sequence_length),
                ends, [&] {
                    job_.context().pulse.doing(fmt::format("the answer to sample {}", decoded_[i]));
                    comm::advance(job_.context().world.waiter());
                });
            if (stage_->module().mesh().rank_in_replica() == 0) answers[i] = answer;
        }
        return answers;
    }

private:
    /// Whether this rank's replica has the sample of a plan of one.
    bool holds_sample(const std::vector<schedule::MicroBatch>& of_group) const {
        return !of_group.empty() && !of_group.front().of_part(stage_->part()).empty();
    }
    std::int64_t evaluation_steps() const {
        const auto size = static_cast<std::int64_t>(samples_.size()), batch = deck_.data.global_batch;
        return (size + batch - 1) / batch;
    }
    /// A step for each decoded sample follows those of the evaluation.
    StepBatches batches() const {
        return {evaluation_steps() + static_cast<std::int64_t>(decoded_.size()), [this](std::int64_t step) {
                    if (const std::int64_t i = step - 1 - evaluation_steps(); i >= 0)
                        return std::vector{decoded_[static_cast<std::size_t>(i)]};
                    const auto size = static_cast<std::int64_t>(samples_.size()),
                               batch = deck_.data.global_batch;
                    const auto first = samples_.begin() + (step - 1) * batch;
                    return std::vector(first, samples_.begin() + std::min(size, step * batch));
                }};
    }

    /// Collective.
    schedule::StepPlan plan_of(std::int64_t step) {
        const comm::Communicator& world = job_.context().world;
        job_.context().pulse.doing(fmt::format("evaluation, the plan of step {}", step));
        StepCommand command;
        if (world.rank() == 0) command.plan = planner_.next(step, comm::now_s());
        broadcast(world, command);
        return std::move(command.plan);
    }

    /// Collective over the lane.
    model::Result run_step(const schedule::StepPlan& plan, double loss_scale) {
        std::vector<io::TaskRow> tasks;
        const model::Result result = runner_.run(plan, {.loss_scale = loss_scale, .train = false}, tasks);
        runner_.read_times(tasks);  // nobody reads them, but the runner keeps them until then
        return result;
    }

    /// Allocates what decoding needs, where this rank holds the section.
    void make_decoder() {
        section_ = workload::decoding_section(job_.context().scenario.graph);
        for (LocalStage* stage : local_stages(job_))
            if (stage->section() == section_) stage_ = stage;
        if (stage_)
            decoder_.emplace(*stage_, static_cast<std::size_t>(job_.decoding_bytes(stage_->number())),
                             workload::decoding_rows(job_.context().scenario, job_.table(), decoded_));
    }

    Job& job_;
    const config::Deck& deck_;
    std::vector<std::int64_t> samples_, decoded_;
    Planner planner_;
    StepRunner runner_;
    int section_ = -1;             ///< that decodes
    LocalStage* stage_ = nullptr;  ///< of that section; null where this rank does not hold it
    std::optional<AnswerDecoder> decoder_;
};

/// Collective over the world. Rank 0 prints what each rank has of the answers to the shown samples.
void print_answers(const comm::Communicator& world, const ShownSamples& shown,
                   const std::vector<std::vector<std::int32_t>>& mine) {
    std::vector<std::vector<std::int32_t>> answers(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i)
        for (std::vector<std::int32_t>& part : world.gather(std::span(mine[i])))
            if (!part.empty()) answers[i] = std::move(part);
    if (world.rank() == 0) shown.print(answers);
}

}  // namespace

void run_evaluation(RunContext& context, const config::CommandLine& line) {
    const comm::Communicator& world = context.world;
    const bool one_rank = world.size() != context.scenario.graph.world;
    const std::string checkpoint = need_checkpoint(world, line.checkpoint, context.pulse);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        for (const config::Section& section : context.deck.sections)
            check_adapters(checkpoint, section, context.pulse);
    });
    if (line.show > 0) check_decoding(context, one_rank);
    RunContext evaluation = evaluation_context(context, one_rank);
    evaluation.shown = line.show;
    const Preflight preflight(evaluation, line.exchange_images);
    const data::SampleFile& file = preflight.sample_file();
    double weight = 0;
    for (std::int64_t i = 0; i < file.size(); ++i) weight += file.index().weight(i);
    std::vector<std::int64_t> samples;
    for (std::int64_t i = one_rank ? world.rank() : 0; i < file.size(); i += one_rank ? world.size() : 1)
        samples.push_back(i);
    const ShownSamples shown(evaluation, file, workload::samples_with_targets(preflight.table(), line.show));
    // A rank that evaluates by itself decodes those of its samples that are shown.
    std::vector<std::int64_t> decoded;
    std::vector<std::size_t> shown_at;
    for (std::size_t i = 0; i < shown.samples().size(); ++i)
        if (!one_rank || shown.samples()[i] % world.size() == world.rank()) {
            decoded.push_back(shown.samples()[i]);
            shown_at.push_back(i);
        }
    std::vector<std::vector<std::int32_t>> answers(shown.samples().size());

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
                                  .shown = evaluation.shown,
                                  .memory_advice = evaluation.memory_advice,
                                  .end_job = evaluation.end_job};
        Job job(on_ranks, preflight);
        job.load(checkpoint);
        start = comm::now_s();
        in_planned_memory(on_ranks, preflight.memory(), [&] {
            Evaluator evaluator(job, samples, decoded);
            end_before_unwinding(on_ranks, [&] {
                local = evaluator.run(weight);
                auto found = evaluator.decode(shown, shown_at);
                for (std::size_t i = 0; i < found.size(); ++i) answers[shown_at[i]] = std::move(found[i]);
            });
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
    if (line.show > 0) print_answers(world, shown, answers);
    const std::string match = sums[2] > 0 ? fmt::format("{:.6f}", sums[3] / sums[2]) : "null";
    const std::string answers_exact = sums[2] > 0
                                          ? fmt::format("{:.0f} of {:.0f} answers exact", sums[3], sums[2])
                                          : std::string("no answers that could be exact");
    log::info("{}: loss {:.4f}, {}, {:.0f} tokens in {:.1f} s", context.deck.data.validation, sums[0],
              answers_exact, sums[1], comm::now_s() - start);
    log::info("{{\"loss\": {:.9g}, \"exact_match\": {}, \"names\": {:.0f}, \"tokens\": {:.0f}}}", sums[0],
              match, sums[2], sums[1]);
}

}  // namespace maestro::train
