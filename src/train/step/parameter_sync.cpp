#include "train/step/parameter_sync.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/environment.hpp"

namespace maestro::train {

ParameterSync::ParameterSync(parallel::ParameterStore& store, Optimizer& optimizer, comm::Waiter& waiter,
                             std::string label, EmulatedSync emulated)
    : waiter_(waiter),
      store_(store),
      optimizer_(optimizer),
      label_(std::move(label)),
      emulated_(std::move(emulated)),
      copies_scratch_(store.backend(), store.copies_scratch()),
      scratch_(store.backend(), store.reduce_scratch()) {
    for (std::size_t i = 0; i < optimizer.size(); ++i) {
        parallel::ParameterGroup& group = optimizer.group(i);
        groups_.push_back({.group = &group, .beside_tasks = group.replicated(parallel::Axis::tied) == 0});
    }
    MAESTRO_CHECK(emulated_.groups.empty() || emulated_.groups.size() == groups_.size(),
                  "times of {} groups of {}", emulated_.groups.size(), groups_.size());
    // Backward finishes the last group first.
    for (const bool beside_tasks : {true, false})
        for (std::size_t i = groups_.size(); i-- > 0;)
            if (groups_[i].beside_tasks == beside_tasks) sum_order_.push_back(i);
    queue_sums();
    store.set_observer(this);
    poll_id_ = waiter.add_poll([this] { return advance(); });
}

ParameterSync::~ParameterSync() {
    waiter_.remove_poll(poll_id_);
    store_.set_observer(nullptr);
}

void ParameterSync::queue_sums() {
    for (const std::size_t i : sum_order_) queue_.push_back({i, true});
}

ParameterSync::Group& ParameterSync::group_of(const parallel::ParameterGroup& group) {
    return *std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.group == &group; });
}

void ParameterSync::begin_last_backward() {
    last_backward_ = true;
}

void ParameterSync::gradients_final(const parallel::ParameterGroup& group) {
    if (last_backward_) set_final(group_of(group));
}

void ParameterSync::set_final(Group& group) {
    if (group.gradients != Group::Gradients::accumulating) return;
    group.group->sum_copies(copies_scratch_);
    group.gradients = Group::Gradients::final;
    advance();
}

void ParameterSync::gradients_final() {
    for (const std::size_t i : sum_order_) set_final(groups_[i]);
    last_backward_ = false;
}

bool ParameterSync::advance() {
    if (advancing_) return true;
    advancing_ = true;
    launch_next();
    while (launched_ && operation_.advance()) {
        const Entry ended = queue_.front();
        queue_.pop_front();
        launched_ = false;
        ending_.push_back({ended, begin_s_, end_of(ended)});
        launch_next();  // what this group needs yet is computed while the next one's messages travel
        finish_ended();
    }
    finish_ended();
    advancing_ = false;
    return launched_ || !ending_.empty();
}

double ParameterSync::end_of(const Entry& entry) const {
    const double now_s = comm::now_s();
    if (emulated_.groups.empty()) return now_s;
    // The messages of all ranks have arrived: on the emulated cluster the operation begins now.
    const workload::GroupTimes& times = emulated_.groups[entry.group];
    double& free_s = *emulated_.network_free_s;
    free_s = std::max(now_s, free_s) + (entry.sum ? times.sum_s : times.gather_s);
    return free_s;
}

void ParameterSync::finish_ended() {
    while (!ending_.empty() && ending_.front().end_s <= comm::now_s()) {
        const Ending& ending = ending_.front();
        finish(ending.entry);
        spans_.push_back({ending.entry.sum, ending.begin_s, ending.end_s});
        ending_.pop_front();
    }
}

void ParameterSync::launch_next() {
    if (launched_ || queue_.empty()) return;
    const Group& group = groups_[queue_.front().group];
    const bool beside_tasks = group.beside_tasks && between_steps_ == BetweenSteps::never;
    if (queue_.front().sum && !(group.gradients == Group::Gradients::final && (beside_tasks || tasks_ended_)))
        return;
    begin_s_ = comm::now_s();
    launched_ = true;
    operation_ = queue_.front().sum ? group.group->launch_reduce(scratch_) : group.group->launch_gather();
}

void ParameterSync::finish(const Entry& entry) {
    Group& group = groups_[entry.group];
    if (!entry.sum) {
        group.has_weights = true;
        return;
    }
    optimizer_.add_squares(entry.group, scratch_);
    const Range shard = group.group->shard();
    group.group->zero_gradient({0, shard.begin});
    group.group->zero_gradient({shard.end, group.group->size()});
    group.gradients = Group::Gradients::summed;
}

std::string ParameterSync::describe() const {
    if (!launched_) return "the end of the last sum or gather of section " + label_;
    return fmt::format("{}, for the {} of section {}, group {} of {}", operation_.describe(),
                       queue_.front().sum ? "gradients" : "weights", label_, queue_.front().group + 1,
                       groups_.size());
}

double ParameterSync::finish_sums() {
    gradients_final();
    tasks_ended_ = true;
    waiter_.wait_until(
        [this] {
            advance();
            return std::all_of(groups_.begin(), groups_.end(),
                               [](const Group& g) { return g.gradients == Group::Gradients::summed; });
        },
        [this] { return describe(); });
    if (!emulated_.groups.empty())
        waiter_.sleep_until(comm::now_s() + emulated_.groups[sum_order_.back()].after_sum_s);
    return optimizer_.take_squares();
}

void ParameterSync::update(const AdamSettings& settings, std::int64_t step, double gradient_scale) {
    tasks_ended_ = false;
    for (Group& group : groups_) {
        group.gradients = Group::Gradients::accumulating;
        group.has_weights = false;
    }
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        const double begin_s = comm::now_s();
        Group& group = groups_[i];
        optimizer_.update(i, settings, step, gradient_scale);
        group.group->zero_gradient(group.group->shard());
        if (!emulated_.groups.empty()) waiter_.sleep_until(begin_s + emulated_.groups[i].update_s);
        queue_.push_back({i, false});
        advance();
    }
    queue_sums();
    if (between_steps_ != BetweenSteps::never) await_weights();
    if (between_steps_ == BetweenSteps::first) between_steps_ = BetweenSteps::never;
}

void ParameterSync::await(const Group& group) {
    waiter_.wait_until(
        [&] {
            if (!group.has_weights) advance();
            return group.has_weights;
        },
        [this] { return describe(); });
}

void ParameterSync::weights_needed(const parallel::ParameterGroup& needed) {
    Group& group = group_of(needed);
    group.usable = true;
    if (group.has_weights) return;
    backend::Clock& clock = store_.backend().clock();
    const backend::Mark begin = clock.mark();
    await(group);
    waits_.emplace_back(begin, clock.mark());
}

void ParameterSync::begin_forward() {
    await(groups_.front());
    for (const parallel::ParameterGroup* const group : store_.groups_from(0)) await(group_of(*group));
    for (Group& group : groups_) group.usable = group.has_weights;
}

void ParameterSync::end_forward() const {
    for (const Group& group : groups_)
        MAESTRO_CHECK(group.usable, "section {}: a forward pass did not ask for the weights of {}", label_,
                      group.group->parameters().front()->name);
}

bool ParameterSync::awaits_weights() const {
    return std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return !g.has_weights; });
}

void ParameterSync::await_weights() {
    for (const Group& group : groups_) await(group);
}

std::vector<SyncSpan> ParameterSync::take_spans() {
    return std::exchange(spans_, {});
}

std::vector<std::pair<backend::Mark, backend::Mark>> ParameterSync::take_waits() {
    return std::exchange(waits_, {});
}

SyncTotal total_of(std::span<const SyncSpan> spans, bool sums) {
    SyncTotal total;
    for (const SyncSpan& span : spans) {
        if (span.sum != sums) continue;
        if (total.operations++ == 0) total.begin_s = total.end_s = span.begin_s;
        total.busy_s += std::max(0.0, span.end_s - std::max(span.begin_s, total.end_s));
        total.end_s = std::max(total.end_s, span.end_s);
    }
    return total;
}

}  // namespace maestro::train
