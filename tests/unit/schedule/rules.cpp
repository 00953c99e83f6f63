#include "unit/schedule/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "unit/schedule/plan_check.hpp"

namespace maestro::schedule_test {

namespace {

using schedule::Dispatch;
using schedule::EdgeShape;
using schedule::Phase;
using schedule::Problem;
using schedule::SampleCost;
using schedule::StepPlan;
using schedule::TaskCost;
using schedule::TimedTask;
using schedule::Timeline;

constexpr double kRounding = 1e-9;

struct Span {
    double start_s = 0, end_s = 0;
};

/// A micro-batch: its samples, and when its tasks ran.
struct Batch {
    int stage = 0, group = 0, index = 0;
    std::vector<const SampleCost*> samples;
    std::vector<std::size_t> part_ends;  ///< of the samples of each part of the lane
    std::vector<Span> forward, backward;
};

class Checker {
public:
    Checker(const Problem& problem, const StepPlan& plan) : problem_(problem), plan_(plan) {
        std::map<std::int64_t, const SampleCost*> sample_of;
        for (const SampleCost& sample : problem.samples) sample_of[sample.id] = &sample;
        for (int s = 0; s < stages(); ++s) {
            const auto& batches = plan.batches[at(problem.stages[at(s)].section)];
            for (int r = 0; r < static_cast<int>(batches.size()); ++r)
                for (int b = 0; b < static_cast<int>(batches[at(r)].size()); ++b) {
                    Batch& batch = batches_[{s, r, b}];
                    batch.stage = s;
                    batch.group = r;
                    batch.index = b;
                    for (const std::int64_t id : batches[at(r)][at(b)].samples)
                        batch.samples.push_back(sample_of.at(id));
                    const auto& ends = batches[at(r)][at(b)].part_ends;
                    batch.part_ends.assign(ends.begin(), ends.end());
                    if (ends.empty()) batch.part_ends.push_back(batch.samples.size());
                }
        }
    }

    std::vector<std::string> run(const Timeline& timeline, Dispatch dispatch) {
        collect(timeline);
        for (auto& [key, batch] : batches_) check_tasks(batch);
        if (wrong_.empty()) check_samples();
        if (!wrong_.empty()) return wrong_;  // the rest needs every task once
        check_lanes(timeline, dispatch);
        for (const EdgeShape& e : problem_.edges) check_edge(e);
        check_windows();
        double last = 0;
        for (const TimedTask& t : timeline.tasks) last = std::max(last, t.end_s);
        if (std::abs(last - timeline.makespan_s) > kRounding) complain("the makespan is not the last end");
        return wrong_;
    }

private:
    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
    int stages() const { return static_cast<int>(problem_.stages.size()); }
    template <class... Args>
    void complain(fmt::format_string<Args...> text, Args&&... args) {
        wrong_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
    static std::string name(const Batch& b) {
        return fmt::format("stage {}, group {}, micro-batch {}", b.stage, b.group, b.index);
    }
    const TaskCost& cost(const SampleCost& sample, int stage) const { return sample.stages[at(stage)]; }

    void collect(const Timeline& timeline) {
        for (const TimedTask& t : timeline.tasks) {
            const auto found = batches_.find({t.task.stage, t.group, t.task.micro_batch});
            if (found == batches_.end()) {
                complain("a task of no micro-batch");
                continue;
            }
            Batch& batch = found->second;
            (t.task.phase == Phase::forward ? batch.forward : batch.backward).push_back({t.start_s, t.end_s});
            if (t.lane != problem_.stages[at(batch.stage)].lane(batch.group))
                complain("{} runs on lane {}", name(batch), t.lane);
        }
    }

    bool due_backward(const Batch& batch) const {
        if (!problem_.stages[at(batch.stage)].backward) return false;
        if (!problem_.zero_is_none) return true;
        return std::any_of(batch.samples.begin(), batch.samples.end(), [&](const SampleCost* sample) {
            return cost(*sample, batch.stage).backward_s > 0;
        });
    }

    void check_tasks(const Batch& batch) {
        if (batch.forward.size() != 1) complain("{}: {} forwards", name(batch), batch.forward.size());
        if (batch.backward.size() != (due_backward(batch) ? 1U : 0U))
            complain("{}: {} backwards", name(batch), batch.backward.size());
        double forward = 0, backward = 0;  // of the longest part
        double common_forward = 0, common_backward = 0;
        const schedule::StageShape& stage = problem_.stages[at(batch.stage)];
        const double parts = stage.parts;
        std::size_t sample = 0;
        for (const std::size_t end : batch.part_ends) {
            if (end == sample) continue;  // a part without samples
            const double lacks = std::max(0.0, stage.micro_batch / parts - static_cast<double>(end - sample));
            double part_forward = lacks * stage.lacking_forward_s,
                   part_backward = due_backward(batch) ? lacks * stage.lacking_backward_s : 0;
            for (; sample < end; ++sample) {
                const TaskCost& c = cost(*batch.samples[sample], batch.stage);
                part_forward += (1 - c.common) * c.forward_s;
                part_backward += (1 - c.common) * c.backward_s;
                common_forward += c.common * c.forward_s / parts;
                common_backward += c.common * c.backward_s / parts;
            }
            forward = std::max(forward, part_forward);
            backward = std::max(backward, part_backward);
        }
        forward += common_forward;
        backward += common_backward;
        for (const Span& s : batch.forward)
            if (std::abs(s.end_s - s.start_s - forward) > kRounding)
                complain("{}: forward takes other than its samples", name(batch));
        for (const Span& s : batch.backward) {
            if (std::abs(s.end_s - s.start_s - backward) > kRounding)
                complain("{}: backward takes other than its samples", name(batch));
            if (!batch.forward.empty() && s.start_s < batch.forward.front().end_s - kRounding)
                complain("{}: backward before forward", name(batch));
        }
    }

    void check_samples() {
        for (const auto& [key, batch] : batches_) {
            if (static_cast<int>(batch.samples.size()) > problem_.stages[at(batch.stage)].micro_batch)
                complain("{}: {} samples", name(batch), batch.samples.size());
            for (const SampleCost* sample : batch.samples) {
                if (!cost(*sample, batch.stage).active)
                    complain("{}: sample {} skips it", name(batch), sample->id);
                if (!holder_.emplace(std::pair{batch.stage, sample->id}, &batch).second)
                    complain("{}: sample {} twice", name(batch), sample->id);
            }
        }
        for (const SampleCost& sample : problem_.samples)
            for (int s = 0; s < stages(); ++s)
                if (cost(sample, s).active && !holder_.contains({s, sample.id}))
                    complain("section {}: sample {} is missing", s, sample.id);
    }

    void check_lanes(const Timeline& timeline, Dispatch dispatch) {
        std::map<int, std::vector<const TimedTask*>> of_lane;
        for (const TimedTask& t : timeline.tasks) of_lane[t.lane].push_back(&t);
        for (auto& [lane, tasks] : of_lane) {
            // Tasks of no duration stand before those that start with their end.
            std::stable_sort(tasks.begin(), tasks.end(), [](const TimedTask* a, const TimedTask* b) {
                return std::tuple(a->start_s, a->end_s) < std::tuple(b->start_s, b->end_s);
            });
            for (std::size_t k = 1; k < tasks.size(); ++k)
                if (tasks[k]->start_s < tasks[k - 1]->end_s - kRounding)
                    complain("lane {} runs two tasks at {}", lane, tasks[k]->start_s);
            check_order(lane, dispatch);
        }
    }

    void check_order(int lane, Dispatch dispatch) {
        std::map<int, double> forwards;     // section -> the latest start of a forward so far
        std::map<int, double> interleaved;  // section of several chunks -> the latest start so far
        double latest = 0;
        for (const schedule::Task& task : plan_.agendas[at(lane)]) {
            const int group = problem_.stages[at(task.stage)].group_on(lane);
            const Batch& batch = batches_.at({task.stage, group, task.micro_batch});
            const bool forward = task.phase == Phase::forward;
            const double start = (forward ? batch.forward : batch.backward).front().start_s;
            if (dispatch == Dispatch::planned && start < latest - kRounding)
                complain("lane {} leaves its order at {}", lane, start);
            latest = std::max(latest, start);
            const schedule::StageShape& shape = problem_.stages[at(task.stage)];
            if (shape.chunks > 1) {
                double& earlier = interleaved[shape.section];
                if (!shape.loss && start < earlier - kRounding)
                    complain("{} overtakes a task of its section", name(batch));
                earlier = std::max(earlier, start);
            }
            if (!forward) continue;
            double& before = forwards[task.stage];
            if (!problem_.stages[at(task.stage)].loss && start < before - kRounding)
                complain("{} is started before its turn", name(batch));
            before = std::max(before, start);
        }
        if (dispatch == Dispatch::ready) check_overtaking(lane);
    }

    /// A micro-batch with a loss overtakes only what can wait for it, and its backward follows at once.
    void check_overtaking(int lane) {
        struct Earlier {
            double start_s, float_s;
        };
        std::map<int, std::vector<Earlier>> forwards;  // section -> in the plan's order
        for (const schedule::Task& task : plan_.agendas[at(lane)]) {
            if (task.phase == Phase::backward || !problem_.stages[at(task.stage)].loss) continue;
            const int group = problem_.stages[at(task.stage)].group_on(lane);
            const Batch& batch = batches_.at({task.stage, group, task.micro_batch});
            const double start = batch.forward.front().start_s;
            for (const Earlier& e : forwards[task.stage])
                if (start < e.start_s - kRounding && task.takes_s > e.float_s)
                    complain("{} overtakes what it may not", name(batch));
            forwards[task.stage].push_back({start, task.float_s});
            if (!batch.backward.empty() &&
                batch.backward.front().start_s > batch.forward.front().end_s + kRounding)
                complain("{}: its backward does not follow", name(batch));
        }
    }

    void check_edge(const EdgeShape& e) {
        // Samples that two micro-batches share are transferred together.
        std::map<std::pair<const Batch*, const Batch*>, double> transfers;
        for (const SampleCost& sample : problem_.samples) {
            if (!cost(sample, e.from).active || !cost(sample, e.to).active) continue;
            const Batch &up = *holder_.at({e.from, sample.id}), &down = *holder_.at({e.to, sample.id});
            if (!serves(problem_, e, up.group, down.group))
                complain("sample {} goes from group {} to {}", sample.id, up.group, down.group);
            transfers[{&up, &down}] += cost(sample, e.from).transfer_s;
        }
        for (const auto& [ends, transfer_s] : transfers) {
            const Batch &up = *ends.first, &down = *ends.second;
            const double delay = e.colocated ? 0 : e.latency_s + transfer_s;
            if (down.forward.front().start_s < up.forward.front().end_s + delay - kRounding)
                complain("{}: forward before its input from {}", name(down), name(up));
            if (e.gradient && !up.backward.empty() && !down.backward.empty() &&
                up.backward.front().start_s < down.backward.front().end_s + delay - kRounding)
                complain("{}: backward before its gradient from {}", name(up), name(down));
        }
    }

    /// When a micro-batch gives its place in the window free.
    double leaves(const Batch& batch) const {
        if (!batch.backward.empty()) return batch.backward.front().end_s;
        double last = batch.forward.front().end_s;
        for (const EdgeShape& e : problem_.edges) {
            if (e.from != batch.stage) continue;
            for (const SampleCost* sample : batch.samples)
                if (const auto down = holder_.find({e.to, sample->id}); down != holder_.end())
                    last = std::max(last, down->second->forward.front().end_s);
        }
        return last;
    }

    void check_windows() {
        std::map<std::pair<int, int>, std::vector<std::pair<double, int>>> changes;
        for (const auto& [key, batch] : batches_) {
            auto& list = changes[{batch.stage, batch.group}];
            list.emplace_back(batch.forward.front().start_s + kRounding, 1);
            list.emplace_back(leaves(batch), -1);
        }
        for (auto& [key, list] : changes) {
            const int window = problem_.stages[at(key.first)].window;
            std::sort(list.begin(), list.end());
            int in_flight = 0, most = 0;
            for (const auto& [time, change] : list) most = std::max(most, in_flight += change);
            if (window > 0 && most > window)
                complain("section {}, group {}: {} in flight, window {}", key.first, key.second, most,
                         window);
        }
    }

    const Problem& problem_;
    const StepPlan& plan_;
    std::map<std::tuple<int, int, int>, Batch> batches_;
    std::map<std::pair<int, std::int64_t>, const Batch*> holder_;  ///< (stage, sample)
    std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> broken_rules(const Problem& problem, const StepPlan& plan, const Timeline& timeline,
                                      Dispatch dispatch) {
    return Checker(problem, plan).run(timeline, dispatch);
}

}  // namespace maestro::schedule_test
