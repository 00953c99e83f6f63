// Steps of hand-made plans: which tasks run and are recorded, in which order, and what they leave. Vision is
// on rank 0, language on all others; on one rank they share it.
#include "train/step/step_runner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "data/sample_file.hpp"
#include "mpi/local_stage_rig.hpp"
#include "mpi/mpi_main.hpp"
#include "support/scratch_folder.hpp"
#include "support/units.hpp"
#include "train/coordinator/step_command.hpp"
#include "train/step/expert_loads.hpp"
#include "unit/data/sample_writer.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;
using schedule::MicroBatch;
using schedule::Phase;
using schedule::StepPlan;
using schedule::Task;

constexpr int kVision = 0, kLanguage = 1, kSamples = 24;
constexpr double kLossScale = 0.5;
constexpr Phase kForward = Phase::forward, kBackward = Phase::backward;

/// Sample i has i % 3 patches, in one picture or in none. A patch is one pixel.
data_test::SampleArrays make_samples() {
    data_test::SampleArrays arrays;
    for (int i = 0; i < kSamples; ++i) {
        std::vector<std::int32_t> tokens = {257, 'a' + i};
        if (rows_of(i) > 0) tokens.push_back(256);
        arrays.add(tokens, rows_of(i) > 0
                               ? std::vector<std::array<std::int32_t, 2>>{{1, static_cast<int>(rows_of(i))}}
                               : std::vector<std::array<std::int32_t, 2>>{});
    }
    return arrays;
}

/// Everything that a step runner needs. `during` is called with every task as it runs.
class Stage {
public:
    Stage(const comm::Communicator& world, bool ready, std::function<void(const std::string&)> during = {})
        : world_(world), rig_(world) {
        data_test::SampleFileWriter{}.write(folder_.path() / "samples.h5", arrays_);
        file_ = std::make_shared<data::SampleFile>(folder_.path() / "samples.h5");
        const model::Units encoder = testing_support::encoder_units(1, 1);
        table_ = std::make_unique<workload::SampleTable>(
            file_->index(), std::vector<workload::SampleTable::Section>{{encoder}, {{}, {encoder}}});
        prefetcher_ = std::make_unique<data::Prefetcher>(
            file_, data::Prefetcher::Settings{.bytes_ahead = 1 << 20}, silent_);
        std::vector<int> consumers(static_cast<std::size_t>(languages()));
        std::iota(consumers.begin(), consumers.end(), alone() ? 0 : 1);
        const ChannelSpec spec = edge("vision-language", {0}, consumers, 4);
        open_ = channel::open_channels(world, std::span(&spec, 1));
        Channel* channel = open_.channels[0].get();
        const bool sees = world.rank() == 0, reads = alone() || !sees;
        FakeModule::Settings module;
        module.during = std::move(during);
        vision_ = rig_.replica({.name = "vision", .window = 4}, {}, {channel}, module, sees ? 0 : -1);
        language_ = rig_.replica(
            {.section = 1, .stage = 1, .name = "language", .replica = alone() ? 0 : world.rank() - 1},
            {channel}, {}, module, reads ? 0 : -1);
        std::vector<LocalStage*> replicas;
        if (language_) replicas.push_back(language_.get());
        if (vision_) replicas.push_back(vision_.get());
        lane_ = world.split(world.rank(), 0, "lane");
        runner_ = std::make_unique<train::StepRunner>(
            world, world.rank(), lane_, origin_s_, replicas,
            std::vector<train::EdgeEnd>{{kVision, kLanguage, {kVision}, {kLanguage}, channel}}, *table_,
            *prefetcher_, silent_, ready);
    }

    bool alone() const { return world_.size() == 1; }
    int languages() const { return std::max(1, world_.size() - 1); }
    const std::vector<std::string>& calls() const { return rig_.diary.calls; }
    void forget() { rig_.diary.calls.clear(); }

    /// "vision forward 5 7"
    std::string call_of(const StepPlan& plan, const Task& task) const {
        const LocalStage& replica = task.stage == kVision ? *vision_ : *language_;
        std::string text = replica.name() + (task.phase == kForward ? " forward" : " backward");
        for (const std::int64_t id :
             plan.batches[static_cast<std::size_t>(task.stage)][static_cast<std::size_t>(replica.replica())]
                         [static_cast<std::size_t>(task.micro_batch)]
                             .samples)
            text += fmt::format(" {}", id);
        return text;
    }

    model::Result run_tasks(const StepPlan& plan, std::vector<io::TaskRow>& rows) {
        return runner_->run(plan, {.loss_scale = kLossScale}, rows);
    }
    void reduce() {
        for (LocalStage* stage : {vision_.get(), language_.get()})
            if (stage) stage->reduce();
    }
    std::vector<io::TaskRow> run(const StepPlan& plan) {
        forget();
        std::vector<io::TaskRow> rows(1);  // of earlier steps, to be left alone
        const model::Result result = run_tasks(plan, rows);
        runner_->read_times(rows);
        rows.erase(rows.begin());
        reduce();
        check_syncs(plan.step, rows);
        check_numbers(plan, result);
        for (LocalStage* stage : {vision_.get(), language_.get()}) {
            if (!stage) continue;
            stage->update({.learning_rate = 0}, plan.step, 1);  // leaves gradients of zero
            stage->await_weights();
        }
        return rows;
    }

    /// Checks that the rows belong to these tasks in this order, in which they have run.
    void check_rows(const StepPlan& plan, const std::vector<Task>& order,
                    const std::vector<io::TaskRow>& rows) const {
        MAESTRO_CHECK(rows.size() == order.size() && calls().size() == order.size(),
                      "{} rows, {} calls of {} tasks", rows.size(), calls().size(), order.size());
        double last_end = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            const io::TaskRow& row = rows[i];
            const int replica = order[i].stage == kVision || alone() ? 0 : world_.rank() - 1;
            MAESTRO_CHECK(row.section == order[i].stage && row.micro_batch == order[i].micro_batch &&
                              row.phase == static_cast<int>(order[i].phase) && row.replica == replica &&
                              row.rank == world_.rank() && row.step == plan.step && row.stage == 0,
                          "row {}: section {}, micro-batch {}, phase {}", i, row.section, row.micro_batch,
                          row.phase);
            MAESTRO_CHECK(calls()[i] == call_of(plan, order[i]), "task {}: {}", i, calls()[i]);
            MAESTRO_CHECK(
                row.wait_s >= 0 && row.start_s - row.wait_s >= last_end - 1e-9 && row.end_s >= row.start_s,
                "row {}: {} to {} after {}", i, row.start_s, row.end_s, row.wait_s);
            last_end = row.end_s;
        }
        MAESTRO_CHECK(last_end <= comm::now_s() - origin_s_, "times count from the origin: {}", last_end);
    }

private:
    double tokens_of(std::int64_t id) const {
        double sum = 0;
        for (auto i = arrays_.sample_offsets[static_cast<std::size_t>(id)];
             i < arrays_.sample_offsets[static_cast<std::size_t>(id) + 1]; ++i)
            sum += arrays_.tokens[static_cast<std::size_t>(i)];
        return sum;
    }
    double pixels_of(std::int64_t id) const {
        double sum = 0;
        for (auto p = arrays_.picture_offsets[static_cast<std::size_t>(id)];
             p < arrays_.picture_offsets[static_cast<std::size_t>(id) + 1]; ++p)
            for (auto i = arrays_.pixel_offsets[static_cast<std::size_t>(p)];
                 i < arrays_.pixel_offsets[static_cast<std::size_t>(p) + 1]; ++i)
                sum += arrays_.pixels[static_cast<std::size_t>(i)];
        return sum;
    }
    /// Each stage of this rank has summed the gradients of `step`, not before its first backward where it has
    /// any, and gathered the weights of the step before, where there was one.
    void check_syncs(std::int64_t step, const std::vector<io::TaskRow>& tasks) {
        const std::vector<io::SyncRow> syncs = runner_->take_syncs(step);
        for (const LocalStage* stage : {vision_.get(), language_.get()})
            for (const int kind : {0, 1}) {
                const auto of_stage = std::count_if(syncs.begin(), syncs.end(), [&](const io::SyncRow& row) {
                    return row.kind == kind && stage && row.section == stage->section() &&
                           row.replica == stage->replica() && row.step == step - kind &&
                           row.rank == world_.rank() && row.groups == 1;
                });
                MAESTRO_CHECK(of_stage == (stage && (kind == 0 || updated_) ? 1 : 0), "{} rows of kind {}",
                              of_stage, kind);
            }
        for (const io::SyncRow& row : syncs) {
            MAESTRO_CHECK(0 <= row.start_s && row.start_s <= row.end_s &&
                              row.end_s <= comm::now_s() - origin_s_ &&
                              row.busy_s <= row.end_s - row.start_s + 1e-9,
                          "from {} to {}, {} s", row.start_s, row.end_s, row.busy_s);
            const auto backward = std::find_if(tasks.begin(), tasks.end(), [&](const io::TaskRow& task) {
                return task.section == row.section && task.phase == 1;
            });
            MAESTRO_CHECK(row.kind == 1 || backward == tasks.end() || backward->start_s <= row.start_s,
                          "summed at {}, before a backward", row.start_s);
        }
        MAESTRO_CHECK(runner_->take_syncs(step).empty(), "rows are returned once");
        updated_ = true;
    }
    /// Checks loss and gradients: vision reads pixels alone, language tokens alone, and nothing is left over
    /// from earlier steps.
    void check_numbers(const StepPlan& plan, const model::Result& result) {
        double loss = 0, g_vision = 0, g_language = 0;
        for (std::size_t r = 0; r < plan.batches[kLanguage].size(); ++r)
            for (const MicroBatch& batch : plan.batches[kLanguage][r])
                for (const std::int64_t id : batch.samples) {
                    g_vision += g_over_edge(id, 1.0 + static_cast<double>(id));
                    g_language += 1.0 + static_cast<double>(id);
                    if (!language_ || static_cast<int>(r) != language_->replica()) continue;
                    loss += kLossScale * (tokens_of(id) + sum_of_rows(id, pixels_of(id)));
                }
        MAESTRO_CHECK(result.loss == loss, "loss {} of {}", result.loss, loss);
        if (vision_)
            MAESTRO_CHECK(Rig::gradient(*vision_, 0) == g_vision, "{} of {}", Rig::gradient(*vision_, 0),
                          g_vision);
        if (language_ && language_->replica() == 0)  // the shard is too small for several
            MAESTRO_CHECK(Rig::gradient(*language_, 0) == g_language, "{} of {}",
                          Rig::gradient(*language_, 0), g_language);
    }

    const comm::Communicator& world_;
    testing_support::ScratchFolder folder_;
    data_test::SampleArrays arrays_ = make_samples();
    std::shared_ptr<data::SampleFile> file_;
    Pulse silent_;
    std::unique_ptr<workload::SampleTable> table_;
    std::unique_ptr<data::Prefetcher> prefetcher_;
    Rig rig_;
    channel::OpenChannels open_;
    std::unique_ptr<LocalStage> vision_, language_;
    comm::Communicator lane_;
    double origin_s_ = comm::now_s();
    std::unique_ptr<train::StepRunner> runner_;
    bool updated_ = false;  ///< in a step before
};

std::vector<MicroBatch> batches(const std::vector<Ids>& ids) {
    std::vector<MicroBatch> made;
    for (const Ids& one : ids) made.push_back({one});
    return made;
}

/// Language micro-batch k goes to replica k % replicas; each rank does its backward right after.
StepPlan plan_of(const Stage& stage, std::int64_t step, const std::vector<Ids>& vision,
                 const std::vector<Ids>& language) {
    StepPlan plan;
    plan.step = step;
    plan.batches.resize(2);
    plan.load_s.resize(2);
    plan.batches[kVision] = {batches(vision)};
    plan.batches[kLanguage].resize(static_cast<std::size_t>(stage.languages()));
    for (std::size_t k = 0; k < language.size(); ++k)
        plan.batches[kLanguage][k % plan.batches[kLanguage].size()].push_back({language[k]});
    const int first = stage.alone() ? 0 : 1;
    plan.agendas.resize(static_cast<std::size_t>(first + stage.languages()));
    for (std::size_t k = 0; k < vision.size(); ++k)
        plan.agendas[0].push_back({kVision, static_cast<int>(k), kForward});
    for (std::size_t r = 0; r < plan.batches[kLanguage].size(); ++r)
        for (std::size_t k = 0; k < plan.batches[kLanguage][r].size(); ++k)
            for (const Phase phase : {kForward, kBackward})
                plan.agendas[static_cast<std::size_t>(first) + r].push_back(
                    {kLanguage, static_cast<int>(k), phase});
    for (std::size_t k = 0; k < vision.size(); ++k)
        plan.agendas[0].push_back({kVision, static_cast<int>(k), kBackward});
    return plan;
}

/// The third step has no work for vision, the fourth none for anybody.
std::vector<StepPlan> plans(const Stage& stage) {
    return {plan_of(stage, 1, {{5, 4}, {1}, {10, 7}}, {{1, 5}, {0, 4, 7}, {3}, {10}}),
            plan_of(stage, 2, {{2, 8, 11}, {14}, {16}, {17}}, {{17}, {16, 14}, {6, 2}, {11, 8}}),
            plan_of(stage, 3, {}, {{0, 3}}), plan_of(stage, 4, {}, {}),
            plan_of(stage, 5, {{20, 22}, {23}}, {{23, 20}, {21, 22}, {18}})};
}

void planned_order_is_kept(const comm::Communicator& world) {
    Stage stage(world, false);
    for (const StepPlan& plan : plans(stage)) {
        const std::vector<io::TaskRow> rows = stage.run(plan);
        stage.check_rows(plan, plan.agendas[static_cast<std::size_t>(world.rank())], rows);
    }
}

/// The order is free, but each task runs once.
void ready_runs_every_task(const comm::Communicator& world) {
    Stage stage(world, true);
    for (const StepPlan& plan : plans(stage)) {
        const std::vector<io::TaskRow> rows = stage.run(plan);
        std::vector<Task> order;
        for (const io::TaskRow& row : rows)
            order.push_back({row.section, row.micro_batch, static_cast<Phase>(row.phase)});
        stage.check_rows(plan, order, rows);
        const std::vector<Task>& agenda = plan.agendas[static_cast<std::size_t>(world.rank())];
        MAESTRO_CHECK(std::is_permutation(order.begin(), order.end(), agenda.begin(), agenda.end()),
                      "step {}: not the tasks of the agenda", plan.step);
    }
}

/// A text-only micro-batch overtakes one whose picture has not arrived: vision waits until it has run.
void ready_starts_what_has_arrived(const comm::Communicator& world) {
    const auto during = [&](const std::string& call) {
        if (world.size() == 2 && (call == "vision forward 1" || call == "language forward 3"))
            world.barrier();
    };
    Stage stage(world, true, during);
    StepPlan plan = plan_of(stage, 1, {{1}}, {});
    plan.batches[kLanguage][0] = batches({{1}, {3}});
    const Task vision{kVision, 0, kForward}, vision_back{kVision, 0, kBackward};
    const Task picture{kLanguage, 0, kForward}, picture_back{kLanguage, 0, kBackward};
    const Task text{kLanguage, 1, kForward}, text_back{kLanguage, 1, kBackward};
    plan.agendas.back() = {picture, picture_back, text, text_back};
    std::vector<Task> order = {text, text_back, picture, picture_back};
    if (stage.alone()) {
        plan.agendas[0] = {picture, text, vision, picture_back, text_back, vision_back};
        order = {text, text_back, vision, picture, picture_back, vision_back};
    }
    if (world.rank() == 0 && !stage.alone()) order = {vision, vision_back};
    stage.check_rows(plan, order, stage.run(plan));
}

/// Heartbeats of other ranks travel on through a rank that computes and never waits.
void heartbeats_are_forwarded_between_tasks(const comm::Communicator& world) {
    int polls = 0;
    Stage stage(world, false, [&](const std::string& call) {
        MAESTRO_CHECK(std::exchange(polls, 0) > 0, "{}: heartbeats were not polled since the last task",
                      call);
    });
    world.waiter().set_heartbeat_poll([&] {
        ++polls;
        return false;
    });
    stage.run(plans(stage).front());
    world.waiter().set_heartbeat_poll({});
}

/// A plan that does not fit the ranks is reported as a broken invariant.
void foreign_tasks_are_refused(const comm::Communicator& world) {
    Stage stage(world, false);
    StepPlan plan = plan_of(stage, 1, {}, {});
    plan.agendas[static_cast<std::size_t>(world.rank())] = {{2, 0, kForward}};
    expect_error(ExitCode::broken_invariant, fmt::format("a task of stage 2 on rank {}", world.rank()),
                 [&] { stage.run(plan); });
}

/// Nothing is carried over into the next step.
void unfinished_work_is_refused(const comm::Communicator& world) {
    Stage stage(world, false);
    StepPlan plan = plan_of(stage, 1, {}, {{3}});
    const std::size_t holder = stage.alone() ? 0 : 1;
    plan.agendas[holder].pop_back();
    std::vector<io::TaskRow> rows;
    if (world.rank() == static_cast<int>(holder))
        expect_error(ExitCode::broken_invariant, "section language: 1 micro-batches without their backward",
                     [&] { stage.run_tasks(plan, rows); });
    else
        stage.run_tasks(plan, rows);
    stage.reduce();  // which has begun on all ranks
}

/// All ranks get rank 0's command: a plan, or the order to stop, which comes without one.
void commands_reach_all_ranks(const comm::Communicator& world) {
    Stage stage(world, false);
    const StepPlan plan = plans(stage).front();
    train::StepCommand command;
    if (world.rank() == 0) command = {.flush_metrics = true, .plan = plan};
    train::broadcast(world, command);
    MAESTRO_CHECK(!command.stop && command.flush_metrics && command.plan == plan, "another command");
    command = {};
    command.stop = world.rank() == 0;
    train::broadcast(world, command);
    MAESTRO_CHECK(command.stop && !command.flush_metrics, "no order to stop");
}

/// The other ranks reach their deadline before rank 0, which began to wait for its plan a little later. Rank
/// 0 alone knows what is waited for, so its error has to come first.
void late_plans_are_reported_by_rank_0(const comm::Communicator& world) {
    comm::Waiter& waiter = world.waiter();
    const double timeout_s = waiter.timeout_s();
    world.barrier();
    waiter.set_timeout(world.rank() == 0 ? 0.5 : 0.1);
    train::StepCommand command{.stop = true};
    if (world.rank() == 0)
        expect_error(ExitCode::peer_lost, "waiting for a plan",
                     [&] { waiter.wait_until([] { return false; }, [] { return "a plan"; }); });
    train::broadcast(world, command);
    waiter.set_timeout(timeout_s);
}

/// Of two experts each rank counts the choices of another number of rows for the first, and none for the
/// second; rank 0 counts one for the second. The models of the other sections have no experts.
void loads_of_experts_are_sums_over_ranks(const comm::Communicator& world) {
    std::vector<model::ModelSpec> models(2);
    train::ExpertLoads(models).sum_over(world);
    models[kLanguage].layers = 3;
    models[kLanguage].experts = {.count = 2, .dense_layers = 2};
    train::ExpertLoads loads(models);
    loads.add(kLanguage, std::vector<model::ExpertLoad>{
                             {.layer = 2, .choices = {world.rank() + 1, world.rank() == 0 ? 1 : 0}}});
    loads.sum_over(world);
    const std::vector<io::ExpertRow> rows = loads.rows(7);
    const double first = world.size() * (world.size() + 1) / 2;
    MAESTRO_CHECK(rows.size() == 1 && rows[0].step == 7 && rows[0].layer == 2, "{} rows", rows.size());
    MAESTRO_CHECK(rows[0].largest == 2 * first / (first + 1) && rows[0].smallest == 2 / (first + 1),
                  "loads {} and {}", rows[0].largest, rows[0].smallest);
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        planned_order_is_kept(world);
        ready_runs_every_task(world);
        if (world.size() <= 2) ready_starts_what_has_arrived(world);
        heartbeats_are_forwarded_between_tasks(world);
        foreign_tasks_are_refused(world);
        unfinished_work_is_refused(world);
        commands_reach_all_ranks(world);
        late_plans_are_reported_by_rank_0(world);
        loads_of_experts_are_sums_over_ranks(world);
    });
}
