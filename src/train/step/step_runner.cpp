#include "train/step/step_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/environment.hpp"
#include "schedule/execution/ready_agenda.hpp"
#include "train/step/routes.hpp"
#include "train/step/sample_views.hpp"
#include "workload/layout.hpp"

namespace maestro::train {

StepRunner::StepRunner(const comm::Communicator& world, int lane, const comm::Communicator& lane_comm,
                       double origin_s, std::vector<LocalStage*> stages, std::vector<EdgeEnd> edges,
                       const workload::SampleTable& table, data::Prefetcher& prefetcher, Pulse& pulse,
                       bool ready)
    : world_(world),
      lane_(lane),
      lane_comm_(lane_comm),
      ready_(ready),
      origin_s_(origin_s),
      stages_(std::move(stages)),
      edges_(std::move(edges)),
      table_(table),
      prefetcher_(prefetcher),
      pulse_(pulse) {}

std::string StepRunner::LocalTask::describe() const {
    return fmt::format("section {}, {} of micro-batch {}", stage->label(), forward() ? "forward" : "backward",
                       task.micro_batch);
}

model::Result StepRunner::run(const schedule::StepPlan& plan, const StepOptions& options,
                              std::vector<io::TaskRow>& rows) {
    model::Result result;
    Step step{.plan = plan,
              .agenda = local_tasks(plan),
              .options = options,
              .result = result,
              .rows = rows,
              .backwards = {}};
    // The reads of samples are queued by now, and go on while the edges are set up.
    begin_edges(plan);
    // What a device still does for the last step is not time that this step's first task waits.
    begun_.clear();
    for (LocalStage* stage : stages_) begun_.push_back(stage->clock().mark());
    begin_sums(step);

    if (ready_ && lane_comm_.rank() == 0)
        run_ready(step);
    else if (ready_)  // the leader broadcasts which task is next
        for (std::size_t i = 0; i < step.agenda.size(); ++i) run_task(step, 0, comm::now_s());
    else
        for (std::size_t i = 0; i < step.agenda.size(); ++i) run_task(step, i, comm::now_s());

    pulse_.doing("the end of the step's edges");
    for (LocalStage* stage : stages_) {
        stage->end_step();
        stage->module().collect(result);
    }
    for (const EdgeEnd& edge : edges_)
        if (edge.channel) edge.channel->end_step();
    return result;
}

std::vector<StepRunner::LocalTask> StepRunner::local_tasks(const schedule::StepPlan& plan) {
    std::vector<LocalTask> tasks;
    for (const schedule::Task& task : plan.agendas[lane_]) {
        const auto at = std::find_if(stages_.begin(), stages_.end(),
                                     [&](const LocalStage* s) { return s->number() == task.stage; });
        MAESTRO_CHECK(at != stages_.end(), "a task of stage {} on rank {}, which does not hold it",
                      task.stage, world_.rank());
        const int section = (*at)->section();
        const auto& micro_batches = plan.batches[section][(*at)->replica_group()];
        tasks.push_back({task, *at, &micro_batches[task.micro_batch], -1});
        if (task.phase == schedule::Phase::backward) continue;
        // A lane reads only what its stage computes with. Requests are queued in the order of the agenda,
        // in which the prefetcher reads ahead: what is needed first is there first.
        const data::SampleFields fields = !table_.units(section).encodes() ? data::SampleFields::text
                                          : (*at)->index() == 0            ? data::SampleFields::pixels
                                                                           : data::SampleFields::sizes;
        const auto samples = tasks.back().micro_batch->of_part((*at)->part());
        if (samples.empty()) continue;
        tasks.back().ticket =
            prefetcher_.start({.samples = {samples.begin(), samples.end()}, .fields = fields});
    }
    return tasks;
}

/// The replicas of a stage sum its gradients together, also those that have no task of it in this step.
void StepRunner::begin_sums(Step& step) {
    for (const LocalTask& task : step.agenda)
        if (!task.forward()) ++step.backwards[task.stage];
    for (LocalStage* stage : stages_)
        if (step.options.train && step.backwards[stage] == 0) stage->gradients_final();
}

void StepRunner::begin_edges(const schedule::StepPlan& plan) {
    const auto group_at = [](const auto& end) { return end ? std::optional<int>(end->group) : std::nullopt; };
    for (const EdgeEnd& edge : edges_) {
        if (!edge.channel) continue;
        const EndGroups local{group_at(edge.channel->producer()), group_at(edge.channel->consumer())};
        edge.channel->begin_step(plan.step, routes(plan, edge.producers, edge.consumers, table_, local));
    }
}

void StepRunner::run_ready(Step& step) {
    int stages = 0;
    for (const LocalTask& task : step.agenda) stages = std::max(stages, task.task.stage + 1);
    std::vector<schedule::LaneStage> of_lane(static_cast<std::size_t>(stages));
    for (const LocalTask& task : step.agenda)
        of_lane[task.task.stage] = {task.stage->section(), task.stage->sends()};
    schedule::ReadyAgenda open(step.plan.agendas[lane_], std::move(of_lane));
    while (!open.done()) {
        const double requested_s = comm::now_s();
        std::optional<std::size_t> next;
        const auto look = [&] {
            next = open.next([&](std::size_t task) { return can_start(step.agenda[task]); });
            return next.has_value();
        };
        pulse_.doing(fmt::format("step {}, any of {} tasks", step.plan.step, open.left()));
        world_.waiter().wait_until(look, [&] {
            return fmt::format("the inputs of any of {} tasks, the first of {}", open.left(),
                               step.agenda[open.first()].describe());
        });
        open.start(*next);
        run_task(step, *next, requested_s);
    }
}

bool StepRunner::can_start(const LocalTask& task) {
    return task.forward() ? task.stage->can_forward(task.micro_batch->samples)
                          : task.stage->can_backward(task.task.micro_batch);
}

std::vector<int> StepRunner::await(const LocalTask& task, std::span<const int> slots) {
    if (task.forward()) return task.stage->await_forward(task.micro_batch->samples, slots);
    task.stage->await_backward(task.task.micro_batch);
    return {};
}

StepRunner::TaskDispatch StepRunner::broadcast_task(Step& step, std::size_t task) {
    // Also in a fixed order: all ranks of the lane have to use the same slots of the output channels, and
    // what is free differs from rank to rank at any moment.
    TaskDispatch dispatch{task, {}};
    const bool leader = lane_comm_.rank() == 0;
    if (leader) dispatch.slots = await(step.agenda[task], {});
    if (lane_comm_.size() == 1) return dispatch;
    // Every rank has to know the length of the message: a slot for each edge is the most there can be.
    std::vector<std::int64_t> message(edges_.size() + 2, -1);  // task, number of slots, slots
    if (leader) {
        message[0] = static_cast<std::int64_t>(task);
        message[1] = static_cast<std::int64_t>(dispatch.slots.size());
        std::copy(dispatch.slots.begin(), dispatch.slots.end(), message.begin() + 2);
    }
    lane_comm_.broadcast(std::span(message));
    if (leader) return dispatch;
    dispatch.task = static_cast<std::size_t>(message[0]);
    dispatch.slots.assign(message.begin() + 2, message.begin() + 2 + message[1]);
    // What the leader has received may still be on its way to this rank.
    await(step.agenda[dispatch.task], dispatch.slots);
    return dispatch;
}

void StepRunner::run_task(Step& step, std::size_t chosen, double requested_s) {
    const bool leader = lane_comm_.rank() == 0;
    world_.waiter().poll_heartbeats();  // tasks whose inputs are there never wait
    pulse_.doing(fmt::format("step {}, the next task of the lane", step.plan.step));
    if (leader) announce(step, chosen);
    const TaskDispatch dispatch = broadcast_task(step, chosen);
    if (!leader) announce(step, dispatch.task);
    const LocalTask& task = step.agenda[dispatch.task];
    LocalStage& stage = *task.stage;
    TaskMarks marks;
    if (task.forward()) {
        std::vector<data::Sample> samples;
        if (task.ticket >= 0) samples = prefetcher_.take(task.ticket);
        announce(step, dispatch.task);  // a long read has replaced this by the name of its file
        const SampleViews views(samples);
        std::vector<std::int64_t> rows_of_lane;
        if (stage.shares_experts()) rows_of_lane = lane_rows(*task.micro_batch, stage);
        marks = stage.forward(task.task.micro_batch, task.micro_batch->samples,
                              {.samples = views.all(),
                               .loss_scale = step.options.loss_scale,
                               .step = step.options.train ? step.plan.step : 0,
                               .train = step.options.train,
                               .lane_rows = rows_of_lane},
                              dispatch.slots, step.result, requested_s);
    } else {
        marks = stage.backward(task.task.micro_batch, requested_s, --step.backwards[&stage] == 0);
    }
    done_.push_back({&stage, marks, std::nullopt});
    if (!records(stage) || task.micro_batch->of_part(stage.part()).empty()) return;
    done_.back().row = step.rows.size();
    // The times follow in read_times(): on a GPU they are not known yet, and waiting for them would keep the
    // host from issuing the next task.
    step.rows.push_back({.section = stage.section(),
                         .replica = stage.replica(),
                         .stage = stage.index(),
                         .rank = world_.rank(),
                         .step = step.plan.step,
                         .micro_batch = task.task.micro_batch,
                         .phase = task.forward() ? 0 : 1});
}

void StepRunner::read_times(std::vector<io::TaskRow>& rows) {
    for (LocalStage* stage : stages_) stage->read_clock();
    double free_s = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s)
        free_s = std::max(free_s, stages_[s]->clock().at(begun_[s]));
    // Where stages run beside each other on a GPU, a task may begin before another that was submitted
    // first.
    const auto start_of = [](const Done& done) { return done.stage->clock().at(done.marks.start); };
    std::stable_sort(done_.begin(), done_.end(),
                     [&](const Done& a, const Done& b) { return start_of(a) < start_of(b); });
    for (const Done& done : done_) {
        const TaskTimes times = done.stage->measured(done.marks, free_s);
        free_s = std::max(free_s, times.end_s);
        if (!done.row) continue;
        io::TaskRow& row = rows[*done.row];
        row.start_s = times.start_s - origin_s_;
        row.end_s = times.end_s - origin_s_;
        row.wait_s = times.wait_s;
        row.weights_s = times.weights_s;
    }
    done_.clear();
}

std::vector<io::SyncRow> StepRunner::take_syncs(std::int64_t step) {
    std::vector<io::SyncRow> rows;
    for (LocalStage* stage : stages_) {
        const std::vector<SyncSpan> spans = stage->take_syncs();
        for (const bool sums : {false, true}) {
            const SyncTotal total = total_of(spans, sums);
            if (total.operations == 0 || !records(*stage)) continue;
            rows.push_back({.section = stage->section(),
                            .replica = stage->replica(),
                            .stage = stage->index(),
                            .rank = world_.rank(),
                            .step = sums ? step : step - 1,
                            .kind = sums ? 0 : 1,
                            .groups = total.operations,
                            .start_s = total.begin_s - origin_s_,
                            .end_s = total.end_s - origin_s_,
                            .busy_s = total.busy_s});
        }
    }
    return rows;
}

std::vector<std::int64_t> StepRunner::lane_rows(const schedule::MicroBatch& micro_batch,
                                                LocalStage& stage) const {
    std::vector<std::int64_t> rows;
    for (int part = 0; part < micro_batch.parts(); ++part)
        for (const std::int64_t of_rank : workload::rows_of_ranks(
                 workload::pack_sequences(table_, stage.section(), micro_batch.of_part(part)),
                 stage.module().mesh().degrees()))
            rows.push_back(of_rank);
    return rows;
}

/// The first rank of a replica records its tasks.
bool StepRunner::records(LocalStage& stage) {
    return stage.module().mesh().rank_in_replica() == 0;
}

void StepRunner::announce(const Step& step, std::size_t index) {
    pulse_.doing(fmt::format("step {}, {}", step.plan.step, step.agenda[index].describe()));
}

}  // namespace maestro::train
