#include "train/step/step_runner.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/environment.hpp"
#include "schedule/ready_agenda.hpp"
#include "train/step/routes.hpp"
#include "train/step/sample_views.hpp"

namespace maestro::train {

StepRunner::StepRunner(const comm::Communicator& world, int lane, const comm::Communicator& together,
                       double origin_s, std::vector<LocalSection*> sections, std::vector<EdgeEnd> edges,
                       const workload::SampleTable& table, data::Prefetcher& prefetcher,
                       comm::Watchdog& watchdog, bool ready)
    : world_(world),
      lane_(lane),
      lane_comm_(together),
      ready_(ready),
      origin_s_(origin_s),
      sections_(std::move(sections)),
      edges_(std::move(edges)),
      table_(table),
      prefetcher_(prefetcher),
      watchdog_(watchdog) {}

model::Result StepRunner::run(const schedule::StepPlan& plan, double loss_scale,
                              std::vector<io::TaskRow>& rows) {
    model::Result result;
    Step step{plan, plan.agendas[lane_], {}, loss_scale, result, rows};
    for (const schedule::Task& task : step.agenda)
        step.tickets.push_back(
            task.phase == schedule::Phase::backward
                ? -1
                : prefetcher_.start(
                      {.samples = batch_of(plan, task).samples,
                       .part = table_.sees_pixels(task.section) ? data::Part::pixels : data::Part::text}));
    for (const EdgeEnd& edge : edges_)
        if (edge.channel)
            edge.channel->begin_step(
                plan.step, routes(plan, {edge.from, edge.from_degrees}, {edge.to, edge.to_degrees}, table_));
    begun_.clear();
    for (LocalSection* section : sections_) begun_.push_back(section->clock().mark());
    for (LocalSection* section : sections_) section->module().parameters().zero_gradients();

    if (ready_ && lane_comm_.rank() == 0)
        run_ready(step);
    else if (ready_)  // the leader says which
        for (std::size_t i = 0; i < step.agenda.size(); ++i) run_task(step, 0, comm::now_s());
    else
        for (std::size_t i = 0; i < step.agenda.size(); ++i) run_task(step, i, comm::now_s());

    watchdog_.doing("the end of the step's edges");
    for (LocalSection* section : sections_) {
        section->end_step();
        section->module().collect(result);
    }
    for (const EdgeEnd& edge : edges_)
        if (edge.channel) edge.channel->end_step();
    return result;
}

void StepRunner::run_ready(Step& step) {
    std::vector<bool> sends(step.plan.batches.size(), false);
    for (const schedule::Task& task : step.agenda) sends[task.section] = section_of(task).sends();
    schedule::ReadyAgenda open(step.agenda, std::move(sends));
    while (!open.done()) {
        const double asked_s = comm::now_s();
        std::optional<std::size_t> next;
        const auto look = [&] {
            next = open.next([&](std::size_t task) { return can_start(step, task); });
            return next.has_value();
        };
        watchdog_.doing(fmt::format("step {}, any of {} tasks", step.plan.step, open.left()));
        world_.waiter().wait_until(look, [&] {
            const schedule::Task& first = step.agenda[open.first()];
            return fmt::format("the inputs of any of {} tasks, the first of section {}, {} of micro-batch {}",
                               open.left(), section_of(first).name(),
                               first.phase == schedule::Phase::forward ? "forward" : "backward",
                               first.micro_batch);
        });
        open.start(*next);
        run_task(step, *next, asked_s);
    }
}

bool StepRunner::can_start(const Step& step, std::size_t index) {
    const schedule::Task& task = step.agenda[index];
    LocalSection& section = section_of(task);
    return task.phase == schedule::Phase::forward ? section.can_forward(batch_of(step.plan, task).samples)
                                                  : section.can_backward(task.micro_batch);
}

LocalSection& StepRunner::section_of(const schedule::Task& task) const {
    const auto at = std::find_if(sections_.begin(), sections_.end(),
                                 [&](const LocalSection* s) { return s->colour() == task.section; });
    MAESTRO_CHECK(at != sections_.end(), "a task of section {} on rank {}, which does not hold it",
                  task.section, world_.rank());
    return **at;
}

const schedule::MicroBatch& StepRunner::batch_of(const schedule::StepPlan& plan,
                                                 const schedule::Task& task) const {
    return plan.batches[task.section][section_of(task).replica()][task.micro_batch];
}

StepRunner::TaskDispatch StepRunner::broadcast_task(Step& step, std::size_t index) {
    const auto await = [&](const TaskDispatch& order, std::span<const int> slots) {
        const schedule::Task& task = step.agenda[order.task];
        LocalSection& section = section_of(task);
        if (task.phase == schedule::Phase::forward)
            return section.await_forward(batch_of(step.plan, task).samples, slots);
        section.await_backward(task.micro_batch);
        return std::vector<int>{};
    };
    TaskDispatch order{index, {}};
    if (lane_comm_.rank() == 0) order.slots = await(order, {});
    if (lane_comm_.size() == 1) return order;
    std::vector<std::int64_t> words(edges_.size() + 2, -1);  // task, number of slots, slots
    if (lane_comm_.rank() == 0) {
        words[0] = static_cast<std::int64_t>(index);
        words[1] = static_cast<std::int64_t>(order.slots.size());
        std::copy(order.slots.begin(), order.slots.end(), words.begin() + 2);
    }
    lane_comm_.broadcast(std::span(words));
    if (lane_comm_.rank() == 0) return order;
    order.task = static_cast<std::size_t>(words[0]);
    order.slots.assign(words.begin() + 2, words.begin() + 2 + words[1]);
    await(order, order.slots);
    return order;
}

void StepRunner::run_task(Step& step, std::size_t first, double asked_s) {
    watchdog_.doing(fmt::format("step {}, what its lane does next", step.plan.step));
    if (lane_comm_.rank() == 0) announce(step, first);
    const TaskDispatch order = broadcast_task(step, first);
    if (lane_comm_.rank() != 0) announce(step, order.task);
    const schedule::Task& task = step.agenda[order.task];
    LocalSection& section = section_of(task);
    const bool forward = task.phase == schedule::Phase::forward;
    TaskMarks marks;
    if (forward) {
        const std::vector<data::Sample> samples = prefetcher_.take(step.tickets[order.task]);
        const SampleViews views(samples);
        marks = section.forward(
            task.micro_batch,
            {.samples = views.all(), .loss_scale = step.loss_scale, .step = step.plan.step, .train = true},
            order.slots, step.result, asked_s);
    } else {
        marks = section.backward(task.micro_batch, asked_s);
    }
    done_.push_back({&section, marks, step.rows.size()});
    if (lane_comm_.rank() != 0) return;
    step.rows.push_back({.section = task.section,
                         .replica = section.replica(),
                         .stage = 0,
                         .rank = world_.rank(),
                         .step = step.plan.step,
                         .micro_batch = task.micro_batch,
                         .phase = forward ? 0 : 1});
}

void StepRunner::read_times(std::vector<io::TaskRow>& rows) {
    for (LocalSection* section : sections_) section->read_clock();
    double free_s = 0;
    for (std::size_t r = 0; r < sections_.size(); ++r)
        free_s = std::max(free_s, sections_[r]->clock().at(begun_[r]));
    // Of sections beside each other one may begin before another that was given first.
    const auto start_of = [](const Done& done) { return done.section->clock().at(done.marks.start); };
    std::stable_sort(done_.begin(), done_.end(),
                     [&](const Done& a, const Done& b) { return start_of(a) < start_of(b); });
    for (const Done& done : done_) {
        const TaskTimes times = done.section->measured(done.marks, free_s);
        free_s = std::max(free_s, times.end_s);
        if (lane_comm_.rank() != 0) continue;
        rows[done.row].start_s = times.start_s - origin_s_;
        rows[done.row].end_s = times.end_s - origin_s_;
        rows[done.row].wait_s = times.wait_s;
    }
    done_.clear();
}

void StepRunner::announce(const Step& step, std::size_t index) {
    const schedule::Task& task = step.agenda[index];
    watchdog_.doing(
        fmt::format("step {}, section {}, {} of micro-batch {}", step.plan.step, section_of(task).name(),
                    task.phase == schedule::Phase::forward ? "forward" : "backward", task.micro_batch));
}

}  // namespace maestro::train
