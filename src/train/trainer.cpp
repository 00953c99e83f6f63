#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/log.hpp"
#include "comm/environment.hpp"
#include "comm/signals.hpp"
#include "io/run_directory.hpp"
#include "schedule/policies.hpp"
#include "train/agree.hpp"
#include "train/environment_report.hpp"
#include "train/plan_source.hpp"
#include "train/recorder.hpp"
#include "train/saver.hpp"
#include "train/timing.hpp"
#include "workload/correction.hpp"
#include "workload/data_order.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;

/// What rank 0 tells all at a step border, besides the plan.
constexpr std::int64_t kStop = 1, kFlush = 2;
constexpr double kCostMemory = 0.95;  ///< weight of the last step's task times in those of the next

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

class Trainer {
public:
    Trainer(Launch& launch, const config::CommandLine& line, Progress& progress, std::string checkpoint)
        : launch_(launch),
          line_(line),
          progress_(progress),
          deck_(launch.deck),
          world_(launch.world),
          checkpoint_(std::move(checkpoint)),
          job_(launch, checkpoint_.empty()),
          adam_(settings_of(deck_.optimizer)),
          measured_costs_(deck_.schedule.costs == "measured"),
          correction_(deck_.sections.size(), kCostMemory),
          planning_(correction_) {}

    ExitCode run();

private:
    void prepare_directory();
    void check_resume(const io::TrainState& state) const;
    ExitCode loop();
    void run_step(const schedule::StepPlan& plan, StepRunner& runner, Recorder& recorder, double started_s);
    /// schedule.costs = "measured": of the step's tasks, seconds by section and phase over all ranks.
    void learn_costs(const schedule::StepPlan& plan, std::span<const double> took);
    /// Seconds of this run for one of the cost model's: other than 1 on an emulated device.
    double time_scale() const { return deck_.run.device == "emulated" ? deck_.emulated.time_scale : 1; }
    void save();
    void report(double wall_s);

    Launch& launch_;
    const config::CommandLine& line_;
    Progress& progress_;
    const config::Deck& deck_;
    const comm::Communicator& world_;
    std::string checkpoint_;  ///< where to go on; empty for a fresh start
    Job job_;
    AdamSettings adam_;
    std::int64_t first_step_ = 0;
    std::int64_t saved_step_ = -1;
    double origin_s_ = 0;
    PlanTotals plan_totals_;
    bool measured_costs_;
    workload::Correction correction_;  ///< by all steps so far; rank 0
    workload::Correction planning_;    ///< the planner's own copy, of when it began
    double rate_tokens_ = 0, rate_s_ = 0;
};

ExitCode Trainer::run() {
    for (const std::string& text : job_.description()) log::info("{}", text);
    if (line_.dry_run) {
        log::info("dry run: deck, samples and memory are in order; nothing was trained");
        return ExitCode::done;
    }
    prepare_directory();
    origin_s_ = comm::now_s();
    return loop();
}

void Trainer::prepare_directory() {
    const fs::path directory = deck_.run.output;
    agree(world_, [&] {
        if (world_.rank() != 0) return;
        std::error_code ignored;  // only the run's own checkpoint continues it; another one starts a new run
        const bool own = !checkpoint_.empty() && fs::equivalent(fs::path(checkpoint_).parent_path(),
                                                                directory / "checkpoints", ignored);
        const bool leftover = line_.resume == "auto" && checkpoint_.empty();
        io::prepare_run_directory(directory, own || leftover);
        log::open_file(directory / "log.txt");
    });
    progress_.directory = directory;
    const std::string environment = environment_report(launch_, job_.backend().describe());
    for (const std::string& text : {environment, fmt::format("{}", fmt::join(job_.description(), "\n"))})
        log::write_file(text);

    if (const std::string note = launch_.topology.note(); !note.empty()) log::info("{}", note);
    io::Rows rows;
    if (!checkpoint_.empty()) {
        agree(world_, [&] {
            if (world_.rank() != 0) return;
            io::TrainState state = io::read_train_state(checkpoint_);
            check_resume(state);
            first_step_ = state.step;
            io::set_aside_newer(deck_.run.output, first_step_);
            rows = std::move(state.rows);
        });
        load_checkpoint(job_, checkpoint_);
        std::vector<std::int64_t> step{first_step_};
        world_.broadcast(step);
        first_step_ = saved_step_ = progress_.step = step.front();
        log::info("resumed from {} after step {}", checkpoint_, first_step_);
    } else if (line_.resume == "auto") {
        log::info("nothing to resume in {}: a fresh start", directory.string());
    }
    agree(world_, [&] {
        if (world_.rank() != 0) return;
        io::MetricsHeader header{.deck = deck_.text, .environment = environment, .sections = {}};
        header.time_scale = time_scale();
        for (const auto& s : launch_.graph.sections) header.sections.push_back(s.name);
        for (const auto& s : job_.problem().sections) header.windows.push_back(s.window);
        io::create_metrics(directory / "metrics.h5", header, rows);
    });
}

void Trainer::check_resume(const io::TrainState& state) const {
    auto conflicts = config::resume_conflicts(deck_, state.settings);
    if (state.samples != job_.samples().identity())
        conflicts.push_back(
            fmt::format("data.train: {} does not hold the samples of that run", deck_.data.train));
    if (conflicts.empty()) return;
    throw Error(
        ExitCode::bad_deck,
        fmt::format(
            "--resume: {} was made with another deck; set these as they were, or start a new run:\n  {}",
            checkpoint_, fmt::join(conflicts, "\n  ")));
}

ExitCode Trainer::loop() {
    workload::DataOrder order(deck_.run.seed, job_.table().size(), deck_.data.global_batch);
    PlanSource plans([&](std::int64_t step) {
        schedule::Problem problem = job_.problem();
        for (const std::int64_t id : order.batch(step - 1)) problem.samples.push_back(job_.costs().of(id));
        if (measured_costs_)
            for (schedule::SampleCost& cost : problem.samples) planning_.apply(cost);
        return schedule::make_plan(deck_.schedule.policy, problem, step, deck_.schedule.moves);
    });
    std::vector<Replica*> replicas;
    for (auto& r : job_.replicas()) replicas.push_back(r.get());
    StepRunner runner(world_, origin_s_, replicas, job_.edges(), job_.table(), job_.prefetcher(),
                      launch_.watchdog, deck_.schedule.dispatch == "ready");
    Recorder recorder(world_, progress_.directory / "metrics.h5", deck_.metrics.interval_s,
                      deck_.metrics.timeline_every);
    bool stopped = false;
    for (std::int64_t step = first_step_ + 1; step <= deck_.train.steps; ++step) {
        const double started = comm::now_s();
        launch_.watchdog.doing(fmt::format("the plan of step {}", step));
        std::vector<std::int64_t> words;
        if (world_.rank() == 0) {
            const bool late = line_.max_hours > 0 && started - origin_s_ > 3600 * line_.max_hours;
            words.push_back((comm::stop_signal() != 0 || late ? kStop : 0) | (recorder.due() ? kFlush : 0));
            TimedPlan timed = plans.take(step);
            plan_totals_.add(timed, step == first_step_ + 1 ? 0 : comm::now_s() - started);
            planning_ = correction_;  // the planner is idle
            if (step < deck_.train.steps) plans.prepare(step + 1);
            const auto plan = schedule::encode(timed.plan);
            words.insert(words.end(), plan.begin(), plan.end());
        }
        world_.broadcast(words);
        if (words.front() & kFlush) recorder.flush();
        stopped = (words.front() & kStop) != 0;
        if (stopped) break;
        run_step(schedule::decode(std::span(words).subspan(1)), runner, recorder, started);
        progress_.step = step;
        if (deck_.checkpoint.every > 0 && step % deck_.checkpoint.every == 0) {
            recorder.flush();
            save();
        }
    }
    recorder.flush();
    if (deck_.checkpoint.every > 0 && saved_step_ != progress_.step) save();
    report(comm::now_s() - origin_s_);
    if (!stopped) return ExitCode::done;
    progress_.reason = fmt::format(
        "stopped by {} after step {}; {}", comm::stop_signal() ? "a signal" : "--max-hours", progress_.step,
        deck_.checkpoint.every > 0 ? "continue with --resume auto"
                                   : "nothing was saved, because checkpoint.every is 0");
    log::info("{}", progress_.reason);
    return ExitCode::stopped_early;
}

void Trainer::run_step(const schedule::StepPlan& plan, StepRunner& runner, Recorder& recorder,
                       double started_s) {
    double weight = 0;
    for (std::size_t s = 0; s < plan.batches.size(); ++s)
        if (launch_.graph.sections[s].loss)
            for (const auto& replica : plan.batches[s])
                for (const auto& batch : replica)
                    for (const std::int64_t sample : batch.samples) weight += job_.table().weight(sample);
    std::vector<io::TaskRow> tasks;
    const model::Result result = runner.run(plan, weight > 0 ? 1 / weight : 0, tasks);
    recorder.tasks_done(plan, tasks);

    launch_.watchdog.doing(fmt::format("the gradients of step {}", plan.step));
    const std::size_t sections = plan.batches.size();
    std::vector<double> sums(2 + 3 * sections, 0.0);  // loss, tokens; by section: squares, task times
    for (const io::TaskRow& t : tasks)
        sums[2 + sections + 2 * static_cast<std::size_t>(t.section) + static_cast<std::size_t>(t.phase)] +=
            t.end_s - t.start_s;
    sums[0] = result.loss;
    sums[1] = static_cast<double>(result.tokens);
    for (auto& replica : job_.replicas())
        sums[2 + static_cast<std::size_t>(replica->section())] = replica->reduce();
    world_.allreduce_sum(std::span(sums));
    if (measured_costs_ && world_.rank() == 0) learn_costs(plan, std::span(sums).subspan(2 + sections));
    double squares = 0;
    for (std::size_t s = 0; s < sections; ++s) {
        squares += sums[2 + s];
        if (!std::isfinite(sums[2 + s]))
            throw Error(ExitCode::not_finite,
                        fmt::format("step {}: the gradient of section {} is not finite (loss {}); lower the "
                                    "learning rate, or look at the samples of this step",
                                    plan.step, launch_.graph.sections[s].name, sums[0]),
                        Scope::all_ranks);
    }
    if (!std::isfinite(sums[0]))
        throw Error(ExitCode::not_finite, fmt::format("step {}: the loss is {}", plan.step, sums[0]),
                    Scope::all_ranks);
    const double norm = std::sqrt(squares);
    const double scale = adam_.clip > 0 && norm > adam_.clip ? adam_.clip / norm : 1.0;
    for (auto& replica : job_.replicas()) replica->update(adam_, plan.step, scale);
    if (world_.rank() != 0) return;
    const double time = comm::now_s() - started_s;
    const double rate = learning_rate(adam_, plan.step);
    recorder.step_done({.step = plan.step,
                        .loss = sums[0],
                        .tokens = static_cast<std::int64_t>(sums[1]),
                        .time_s = time,
                        .grad_norm = norm,
                        .learning_rate = rate});
    rate_tokens_ += sums[1];
    rate_s_ += time;
    if (plan.step % deck_.train.log_every != 0 && plan.step != deck_.train.steps &&
        plan.step != first_step_ + 1)
        return;
    const double left = (comm::now_s() - origin_s_) / static_cast<double>(plan.step - first_step_) *
                        static_cast<double>(deck_.train.steps - plan.step);
    log::info(
        "step {:>6}/{}  loss {:.4f}  {:>8.0f} tokens/s  grad norm {:.3f}  learning rate {:.2e}  left "
        "{}:{:02}",
        plan.step, deck_.train.steps, sums[0], rate_tokens_ / rate_s_, norm, rate,
        static_cast<int>(left) / 60, static_cast<int>(left) % 60);
    rate_tokens_ = rate_s_ = 0;
}

void Trainer::learn_costs(const schedule::StepPlan& plan, std::span<const double> took) {
    correction_.next_step();
    for (std::size_t s = 0; s < plan.batches.size(); ++s) {
        for (const auto& replica : plan.batches[s])
            for (const auto& batch : replica)
                for (const std::int64_t id : batch.samples)
                    correction_.said(s, job_.costs().of(id).sections[s]);
        for (std::size_t phase = 0; phase < 2; ++phase)
            correction_.took(s, phase, took[2 * s + phase] / time_scale());
    }
}

void Trainer::save() {
    launch_.watchdog.doing(fmt::format("the checkpoint after step {}", progress_.step));
    save_checkpoint(job_, progress_.directory, progress_.step, deck_.checkpoint.keep);
    saved_step_ = progress_.step;
    log::info("checkpoint {}/checkpoints/step-{:06d}", progress_.directory.string(), progress_.step);
}

void Trainer::report(double wall_s) {
    const std::size_t count = launch_.graph.sections.size();
    std::vector<std::string> names;
    std::vector<SectionTimes> times(count);
    std::vector<bool> member(count, false);
    for (const auto& s : launch_.graph.sections) names.push_back(s.name);
    for (auto& replica : job_.replicas()) {
        times[static_cast<std::size_t>(replica->section())] = replica->times();
        member[static_cast<std::size_t>(replica->section())] = true;
    }
    log::info("{}", timing_table(world_, names, times, member, wall_s));
    log::info("{}", describe_use(world_, job_.memory_use()));
    for (const std::string& line : plan_totals_.describe(names)) log::info("{}", line);
    if (measured_costs_ && world_.rank() == 0)
        for (std::size_t s = 0; s < count; ++s) {
            const auto [forward, backward] = correction_.factors(s);
            log::info("section {} takes {:.3g} times the cost model's time forward, {:.3g} backward",
                      names[s], forward, backward);
        }
}

/// Collective. The checkpoint that --resume means; empty where the run starts afresh.
std::string find_resume(const Launch& launch, const config::CommandLine& line) {
    std::string checkpoint;
    agree(launch.world, [&] {
        if (line.resume == "none" || launch.world.rank() != 0) return;
        const auto found = io::find_checkpoint(line.resume == "auto" ? launch.deck.run.output : line.resume);
        checkpoint = found ? found->string() : "";
    });
    launch.world.broadcast(checkpoint);
    if (checkpoint.empty() && line.resume != "none" && line.resume != "auto")
        throw Error(ExitCode::input_missing,
                    fmt::format("--resume {}: no whole checkpoint there", line.resume), Scope::all_ranks);
    return checkpoint;
}

}  // namespace

ExitCode run_training(Launch& launch, const config::CommandLine& line, Progress& progress) {
    if (!line.dry_run && line.resume == "none")
        agree(launch.world, [&] {
            if (launch.world.rank() == 0 && io::holds_run(launch.deck.run.output))
                io::prepare_run_directory(launch.deck.run.output, false);
        });
    Trainer trainer(launch, line, progress, find_resume(launch, line));
    return trainer.run();
}

}  // namespace maestro::train
