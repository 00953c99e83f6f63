#include "train/run/trainer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/log.hpp"
#include "comm/environment.hpp"
#include "graph/grid.hpp"
#include "train/checkpoint/saver.hpp"
#include "train/checkpoint/weights.hpp"
#include "train/coordinator/planner.hpp"
#include "train/coordinator/step_command.hpp"
#include "train/run/dry_run.hpp"
#include "train/run/recorder.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/step_log.hpp"
#include "train/setup/failure.hpp"
#include "train/step/expert_loads.hpp"
#include "train/step/step_sums.hpp"
#include "train/step/timing.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {

namespace {

AdamSettings settings_of(const config::Optimizer& o) {
    return {.learning_rate = o.learning_rate,
            .final_learning_rate = o.final_learning_rate,
            .warmup_steps = o.warmup_steps,
            .decay_steps = o.decay_steps,
            .beta1 = o.betas[0],
            .beta2 = o.betas[1],
            .eps = o.eps,
            .weight_decay = o.weight_decay,
            .clip = o.clip};
}

/// Runs the steps of a training run after the first `done`. The caller keeps everything it refers to alive.
class Trainer {
public:
    Trainer(Job& job, const RunDirectory& directory, Interruption& interruption, RunReport& report,
            double max_hours, std::int64_t done)
        : job_(job),
          deck_(job.context().deck),
          world_(job.context().world),
          interruption_(interruption),
          report_(report),
          max_hours_(max_hours),
          first_step_(done + 1),
          adam_(settings_of(deck_.optimizer)),
          order_(deck_.run.seed, job.table().size(), deck_.data.global_batch),
          planner_(deck_, job.context().scenario.graph, job.problem(), job.costs(), batches(),
                   world_.waiter()),
          runner_(world_, graph::lane_on(job.context().scenario.graph, world_.rank()), job.lane(), begin_s_,
                  local_stages(job), job.edges(), job.table(), job.prefetcher(), job.context().pulse,
                  deck_.schedule.dispatch == "ready"),
          recorder_(world_, directory.path() / "metrics.h5", deck_.metrics, job.context().pulse),
          saver_(job.state(), {.run = directory.path(),
                               .damaged = directory.damaged(),
                               .saved = directory.saved_step(),
                               .background = job.context().deck.save_interval() > 0,
                               .processors = job.context().topology.node_processors}),
          log_(deck_.train, done, begin_s_) {}

    ExitCode run();

private:
    bool run_steps();
    std::string flush_metrics(bool must);
    void settle_after(const Error& error);
    void complete_checkpoint();
    void tell_of_checkpoints();
    StepBatches batches() {
        return {deck_.train.steps, [this](std::int64_t step) {
                    const auto samples = order_.batch(step - 1);
                    return std::vector(samples.begin(), samples.end());
                }};
    }
    bool stop_signal();
    bool next_plan(std::int64_t step, double began_s, schedule::StepPlan& plan);
    void run_step(const schedule::StepPlan& plan, double began_s);
    void await_weights();
    void balance_experts(std::int64_t step);
    double scale_of_loss(const schedule::StepPlan& plan) const;
    void check_finite(StepSums& sums, std::int64_t step) const;
    void report_times() const;

    Job& job_;
    const config::Deck& deck_;
    const comm::Communicator& world_;
    Interruption& interruption_;
    RunReport& report_;
    double max_hours_;
    std::int64_t first_step_;
    double begin_s_ = comm::now_s();
    bool signalled_ = false;  ///< this rank, on rank 0 any rank, has received a signal
    AdamSettings adam_;
    workload::DataOrder order_;  ///< used by the planner's thread
    Planner planner_;
    StepRunner runner_;
    Recorder recorder_;
    Saver saver_;
    bool rows_wait_ = false;  ///< metrics.h5 lacks rows, because the disk is full
    StepLog log_;
};

ExitCode Trainer::run() {
    bool stopped = false;
    try {
        stopped = run_steps();
    } catch (const Error& error) {
        if (error.scope() == Scope::all_ranks) settle_after(error);
        throw;
    }
    interruption_.steps_end();
    await_weights();
    recorder_.syncs_done(runner_.take_syncs(report_.step() + 1));
    saver_.finish();  // first, because it is complete also where the disk has no room for further rows
    flush_metrics(true);
    // A run that is asked to stop is to be resumed, whatever checkpoint.every says.
    const bool asked = stopped || world_.any(interruption_.requested());
    const bool due = deck_.saves_at_end() || (asked && deck_.saves_nothing().empty());
    if (due && saver_.saved_step() != report_.step()) saver_.save(report_.step());
    report_times();
    if (!stopped) return ExitCode::done;
    const std::string reason = fmt::format("stopped by {} after step {}; continue with --resume auto",
                                           signalled_ ? "a signal" : "--max-hours", report_.step());
    report_.stopped(reason);
    log::info("{}", reason);
    return ExitCode::stopped_early;
}

/// Returns whether the run was asked to stop before its last step.
bool Trainer::run_steps() {
    const std::int64_t last = deck_.train.steps;
    for (std::int64_t step = first_step_; step <= last; ++step) {
        const double began_s = comm::now_s();
        schedule::StepPlan plan;
        if (!next_plan(step, began_s, plan)) return true;
        run_step(plan, began_s);
        report_.step_done(step);
        saver_.poll();
        tell_of_checkpoints();
        // Nothing runs beside the checkpoint after the last step, so that it needs no copy.
        const std::int64_t every = deck_.save_interval();
        if (every == 0 || step % every != 0 || step == last) continue;
        if (const std::string fault = flush_metrics(false); fault.empty())
            saver_.start(step);
        else
            saver_.skip(step, fault);  // it counts rows that are not in the file
        tell_of_checkpoints();
    }
    return false;
}

/// After an error that all ranks have met, perhaps while new weights were gathered: messages are on their way
/// into memory that ends with this object, and other ranks need those of this one. All end here, before
/// anything is destroyed. Where they do not, this rank alone knows that, and `error` remains the reason.
void Trainer::settle_after(const Error& error) {
    try {
        await_weights();
        complete_checkpoint();
    } catch (const Error& second) {
        throw Error(error.code(), fmt::format("{}; then {}", error.what(), second.what()), Scope::this_rank);
    }
}

/// The checkpoint that was copied before an error is still good.
void Trainer::complete_checkpoint() {
    try {
        saver_.finish();
    } catch (const Error& error) {
        if (error.scope() == Scope::this_rank) throw;
        log::info("{}", error.what());
    }
}

/// Collective. Appends all rows so far to metrics.h5. Where the disk is full, training goes on without if
/// there is a complete checkpoint, but not if it `must`; then returns the fault, else an empty text.
std::string Trainer::flush_metrics(bool must) {
    const std::string fault = recorder_.flush();
    if (!fault.empty() && (must || !saver_.has_complete()))
        throw Error(
            ExitCode::io_error,
            fmt::format("{}; free space, then {}", fault, saver_.has_complete() ? kContinue : kStartAgain),
            Scope::all_ranks);
    if (!fault.empty() && !rows_wait_)
        log::info("warning: {}. Training goes on, and rows wait in memory until there is room", fault);
    if (fault.empty() && rows_wait_) log::info("metrics.h5 has all rows again");
    rows_wait_ = !fault.empty();
    return fault;
}

/// So that a signal can be answered with what there is.
void Trainer::tell_of_checkpoints() {
    if (!saver_.newest().empty()) report_.set_checkpoint(saver_.newest());
    report_.set_step_being_saved(saver_.step_under_way());
}

void Trainer::await_weights() {
    job_.context().watchdog.doing(fmt::format("the weights after step {}", report_.step()));
    for (auto& stage : job_.stages()) stage->await_weights();
}

/// Returns on rank 0 whether any rank has received a signal to stop, elsewhere whether this rank has. The
/// other ranks notify rank 0 once, by a separate message: another number in the step's sums would change
/// the order of summation of the others.
bool Trainer::stop_signal() {
    const bool before = signalled_;
    signalled_ = signalled_ || interruption_.requested();
    if (world_.rank() == 0)
        signalled_ = world_.notified() || signalled_;
    else if (signalled_ && !before)
        world_.notify(0);
    return signalled_;
}

/// Collective, between two steps. Returns false where the run is to stop.
bool Trainer::next_plan(std::int64_t step, double began_s, schedule::StepPlan& plan) {
    job_.context().watchdog.doing(fmt::format("the plan of step {}", step));
    StepCommand command;
    const bool signalled = stop_signal();
    if (world_.rank() == 0) {
        const bool late = max_hours_ > 0 && began_s - begin_s_ > 3600 * max_hours_;
        command.stop = signalled || late;
        command.flush_metrics = recorder_.due();
        if (!command.stop) command.plan = planner_.next(step, began_s);
    }
    broadcast(world_, command);
    if (command.flush_metrics) flush_metrics(false);
    plan = std::move(command.plan);
    return !command.stop;
}

void Trainer::run_step(const schedule::StepPlan& plan, double began_s) {
    const graph::SectionGraph& graph = job_.context().scenario.graph;
    StepSums sums(graph.sections.size(), graph.stages.size());
    std::vector<io::TaskRow> tasks;
    const double loss_scale = scale_of_loss(plan);
    sums.add(runner_.run(plan, {.loss_scale = loss_scale}, tasks));
    // Not beside the loss among the sums: another number there would change the order in which they add up.
    if (loss_scale > 0)
        for (auto& stage : job_.stages())
            recorder_.losses_done(plan.step, stage->section(), stage->module().loss_sums());

    // All sections reduce before any updates: the scale of the update follows from the norm over all of
    // them.
    job_.context().watchdog.doing(fmt::format("the gradients of step {}", plan.step));
    for (auto& stage : job_.stages())
        sums.squares(static_cast<std::size_t>(stage->section())) += stage->reduce();
    runner_.read_times(tasks);
    sums.add(tasks, graph);
    recorder_.tasks_done(plan, tasks);
    recorder_.syncs_done(runner_.take_syncs(plan.step));
    sums.sum_over(world_);
    check_finite(sums, plan.step);
    balance_experts(plan.step);
    const double norm = std::sqrt(sums.squares());
    const double scale = adam_.clip > 0 && norm > adam_.clip ? adam_.clip / norm : 1.0;
    for (auto& stage : job_.stages()) {
        const config::Section& section = deck_.sections[static_cast<std::size_t>(stage->section())];
        stage->update(with_rates(adam_, section.learning_rate, section.weight_decay), plan.step, scale);
    }

    if (world_.rank() != 0) return;
    planner_.step_done(plan, sums);
    const io::StepRow row{.step = plan.step,
                          .loss = loss_scale > 0 ? sums.loss() : std::numeric_limits<double>::quiet_NaN(),
                          .tokens = static_cast<std::int64_t>(sums.tokens()),
                          .time_s = comm::now_s() - began_s,
                          .grad_norm = norm,
                          .learning_rate = learning_rate(adam_, plan.step)};
    recorder_.step_done(row);
    log_.step_done(row);
}

/// Collective. Counts how often the experts of each layer were chosen in this step, keeps how even that was,
/// and moves the biases that balance them.
void Trainer::balance_experts(std::int64_t step) {
    ExpertLoads sums(job_.context().scenario.models);
    std::vector<std::vector<model::ExpertLoad>> by_stage;
    for (auto& stage : job_.stages()) {
        by_stage.push_back(stage->module().take_expert_loads());
        sums.add(stage->section(), by_stage.back());
    }
    sums.sum_over(world_);
    if (world_.rank() == 0) recorder_.experts_done(sums.rows(step));
    auto loads = by_stage.begin();
    for (auto& stage : job_.stages()) {
        sums.look_up(stage->section(), *loads);
        stage->balance(*loads++);
    }
}

/// Returns 1 / sum of the loss weights of the step, which are known before it begins; 0 for a step without
/// targets, whose gradient is 0 and whose loss is NaN.
double Trainer::scale_of_loss(const schedule::StepPlan& plan) const {
    double weight = 0;
    for (std::size_t s = 0; s < plan.batches.size(); ++s)
        if (job_.context().scenario.graph.sections[s].loss)
            for (const auto& group : plan.batches[s])
                for (const auto& batch : group)
                    for (const std::int64_t sample : batch.samples) weight += job_.table().weight(sample);
    return weight > 0 ? 1 / weight : 0;
}

void Trainer::check_finite(StepSums& sums, std::int64_t step) const {
    for (std::size_t s = 0; s < job_.context().scenario.graph.sections.size(); ++s)
        if (!std::isfinite(sums.squares(s)))
            throw Error(ExitCode::not_finite,
                        fmt::format("step {}: the gradient of section {} is not finite (loss {}); lower the "
                                    "learning rate, or look at the samples of this step",
                                    step, job_.context().scenario.graph.sections[s].name, sums.loss()),
                        Scope::all_ranks);
    if (!std::isfinite(sums.loss()))
        throw Error(ExitCode::not_finite, fmt::format("step {}: the loss is {}", step, sums.loss()),
                    Scope::all_ranks);
}

void Trainer::report_times() const {
    const graph::SectionGraph& graph = job_.context().scenario.graph;
    std::vector<SectionTimes> times(graph.stages.size());
    std::vector<bool> member(graph.stages.size(), false);
    for (auto& stage : job_.stages()) {
        times[stage->number()] = stage->times();
        member[stage->number()] = true;
    }
    log::info("{}", timing_table(world_, graph.stage_names(), times, member, comm::now_s() - begin_s_));
    MemoryUse use = job_.memory_use();
    if (!job_.context().device.gpu) {  // the plan is that of a GPU otherwise, which does not hold the copy
        use.buffers += static_cast<double>(saver_.bytes());
        use.used += static_cast<double>(saver_.bytes());
    }
    for (const std::string& line : describe_use(world_, graph, use)) log::info("{}", line);
    for (const std::string& line : planner_.describe()) log::info("{}", line);
    if (const std::string line = log_.describe(); !line.empty()) log::info("{}", line);
}

}  // namespace

ExitCode run_training(RunContext& context, const config::CommandLine& line, Interruption& interruption,
                      RunReport& report) {
    if (context.deck.data.lengths.requested() && context.deck.run.device != "emulated" && !line.dry_run)
        throw Error(ExitCode::bad_deck,
                    context.deck.places.message(
                        "data.lengths",
                        fmt::format("a run on run.device = \"{}\" reads the contents of its samples; set "
                                    "data.train to a sample file instead (lengths are enough to plan, to "
                                    "simulate, for dry runs and for run.device = \"emulated\")",
                                    context.deck.run.device)),
                    Scope::all_ranks);
    RunDirectory directory(context, line, report);
    if (directory.checkpoint().empty() && context.deck.run.device != "emulated" && !context.planned_device)
        check_folders(context.world, context.deck, context.scenario, context.pulse);
    const Preflight preflight(context);
    const auto tell = [&](const std::vector<std::string>& lines) {
        for (const std::string& text : lines) log::info("{}", text);
        if (!line.dry_run) return false;
        directory.check_resume(preflight.samples());
        report_dry_run(context, preflight, line, directory.notes());
        return true;
    };
    // Not a dry run in one process, or for another machine.
    const bool placed = context.world.size() == context.scenario.graph.world && !context.planned_device;
    if (!placed && tell(preflight.description(true))) return ExitCode::done;
    Job job(context, preflight);
    if (directory.checkpoint().empty()) job.load_initial();
    if (tell(job.description())) return ExitCode::done;
    directory.load(job);
    interruption.steps_begin();  // a directory that holds a run gets a checkpoint, too
    const std::int64_t done = directory.open(job);
    job.find_answer_ends();
    ExitCode code = ExitCode::done;
    in_planned_memory(context, preflight.memory(), [&] {
        Trainer trainer(job, directory, interruption, report, line.max_hours, done);
        end_before_unwinding(context, [&] { code = trainer.run(); });
    });
    return code;
}

}  // namespace maestro::train
