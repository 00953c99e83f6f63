#include "train/step_runner.hpp"

#include <algorithm>

namespace maestro::train {

namespace {

/// The samples of a micro-batch as the module sees them; they point into `samples`.
struct Views {
    std::vector<std::vector<model::Picture>> pictures;
    std::vector<model::SampleView> samples;
};

Views view(const std::vector<data::Sample>& samples) {
    Views views;
    views.pictures.reserve(samples.size());
    for (const data::Sample& sample : samples) {
        auto& pictures = views.pictures.emplace_back();
        for (const auto& picture : sample.pictures)
            pictures.push_back({picture.pixels.data(), picture.height, picture.width});
        views.samples.push_back({sample.id, sample.tokens, sample.weights, sample.flags, pictures});
    }
    return views;
}

}  // namespace

StepRunner::StepRunner(int rank, double origin_s, std::vector<Replica*> replicas, std::vector<EdgeEnd> edges,
                       const SampleTable& table, data::Prefetcher& prefetcher, comm::Watchdog& watchdog)
    : rank_(rank),
      origin_s_(origin_s),
      replicas_(std::move(replicas)),
      edges_(std::move(edges)),
      table_(table),
      prefetcher_(prefetcher),
      watchdog_(watchdog) {}

std::vector<channel::Route> StepRunner::routes(const schedule::StepPlan& plan, const EdgeEnd& edge) const {
    std::unordered_map<std::int64_t, int> consumer;  // sample -> replica of the downstream section
    const auto& down = plan.batches[static_cast<std::size_t>(edge.to)];
    for (std::size_t r = 0; r < down.size(); ++r)
        for (const auto& batch : down[r])
            for (const std::int64_t sample : batch.samples) consumer.emplace(sample, static_cast<int>(r));
    std::vector<channel::Route> found;
    const auto& up = plan.batches[static_cast<std::size_t>(edge.from)];
    for (std::size_t r = 0; r < up.size(); ++r)
        for (std::size_t k = 0; k < up[r].size(); ++k) {
            std::int64_t row = 0;
            for (const std::int64_t sample : up[r][k].samples) {
                const std::int64_t rows = table_.output_rows(sample, edge.from);
                if (const auto at = consumer.find(sample); at != consumer.end())
                    found.push_back({.sample = sample,
                                     .producer_replica = static_cast<int>(r),
                                     .producer_micro_batch = static_cast<int>(k),
                                     .consumer_replica = at->second,
                                     .first_row = row,
                                     .rows = rows});
                row += rows;
            }
        }
    return found;
}

model::Result StepRunner::run(const schedule::StepPlan& plan, double loss_scale,
                              std::vector<io::TaskRow>& rows) {
    const auto& lane = plan.lanes[static_cast<std::size_t>(rank_)];
    std::vector<std::int64_t> tickets(lane.size(), -1);
    for (std::size_t i = 0; i < lane.size(); ++i)
        if (lane[i].phase == schedule::Phase::forward)
            tickets[i] = prefetcher_.start(
                {.samples = batch_of(plan, lane[i]).samples,
                 .pixels = table_.sees_pixels(lane[i].section) ? data::Pixels::keep : data::Pixels::check});
    for (const EdgeEnd& edge : edges_)
        if (edge.channel) edge.channel->begin_step(plan.step, routes(plan, edge));
    for (Replica* replica : replicas_) replica->module().parameters().zero_gradients();

    model::Result result;
    for (std::size_t i = 0; i < lane.size(); ++i)
        run_task(plan, lane[i], tickets[i], loss_scale, result, rows);

    watchdog_.doing("the end of the step's edges");
    for (Replica* replica : replicas_) replica->end_step();
    for (const EdgeEnd& edge : edges_)
        if (edge.channel) edge.channel->end_step();
    return result;
}

Replica& StepRunner::replica_of(const schedule::Task& task) const {
    const auto at = std::find_if(replicas_.begin(), replicas_.end(),
                                 [&](const Replica* r) { return r->section() == task.section; });
    MAESTRO_CHECK(at != replicas_.end(), "a task of section {} on rank {}, which does not hold it",
                  task.section, rank_);
    return **at;
}

const schedule::MicroBatch& StepRunner::batch_of(const schedule::StepPlan& plan,
                                                 const schedule::Task& task) const {
    return plan.batches[static_cast<std::size_t>(task.section)][static_cast<std::size_t>(
        replica_of(task).index())][static_cast<std::size_t>(task.micro_batch)];
}

void StepRunner::run_task(const schedule::StepPlan& plan, const schedule::Task& task, std::int64_t ticket,
                          double loss_scale, model::Result& result, std::vector<io::TaskRow>& rows) {
    Replica& replica = replica_of(task);
    const bool forward = task.phase == schedule::Phase::forward;
    watchdog_.doing(fmt::format("step {}, section {}, {} of micro-batch {}", plan.step, replica.name(),
                                forward ? "forward" : "backward", task.micro_batch));
    TaskTimes times;
    if (forward) {
        const std::vector<data::Sample> samples = prefetcher_.take(ticket);
        const Views views = view(samples);
        times = replica.forward(task.micro_batch, views.samples, loss_scale, result);
    } else {
        times = replica.backward(task.micro_batch);
    }
    rows.push_back({.section = task.section,
                    .replica = replica.index(),
                    .stage = 0,
                    .rank = rank_,
                    .step = plan.step,
                    .micro_batch = task.micro_batch,
                    .phase = forward ? 0 : 1,
                    .start_s = times.start_s - origin_s_,
                    .end_s = times.end_s - origin_s_,
                    .wait_s = times.wait_s});
}

}  // namespace maestro::train
