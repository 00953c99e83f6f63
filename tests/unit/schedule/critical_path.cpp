#include "unit/schedule/critical_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "schedule/execution/simulate.hpp"

namespace maestro::schedule_test {

namespace {

using schedule::EdgeShape;
using schedule::Phase;
using schedule::Problem;
using schedule::SampleCost;
using schedule::StepPlan;
using schedule::Task;

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Follower {
    std::size_t task = 0;
    double delay_s = 0;
};

struct Timed {
    int lane = 0;
    Task task;
    double start_s = 0, end_s = 0;
    std::vector<Follower> on_others;  ///< tasks of other micro-batches that wait for this one
    std::vector<std::size_t> on_lane;
    double tail_s = -1;  ///< longest path from its end to that of the step; -1: not yet known
};

class Paths {
public:
    Paths(const Problem& problem, const StepPlan& plan) : problem_(problem), plan_(plan) {
        for (const SampleCost& sample : problem.samples) samples_.emplace(sample.id, &sample);
        std::map<int, std::size_t> last;
        for (const auto& t : simulate(problem, plan).tasks) {
            const std::size_t at = tasks_.size();
            if (const auto before = last.find(t.lane); before != last.end())
                tasks_[before->second].on_lane.push_back(at);
            last[t.lane] = at;
            place_[{t.task.stage, t.group, t.task.micro_batch, t.task.phase}] = at;
            tasks_.push_back({.lane = t.lane,
                              .task = t.task,
                              .start_s = t.start_s,
                              .end_s = t.end_s,
                              .on_others = {},
                              .on_lane = {}});
        }
        for (const EdgeShape& e : problem.edges) add_edge(e);
    }

    /// Tasks without duration start where others end, so the order of their dependence is not determined.
    bool ambiguous() const { return ambiguous_; }

    double float_of(int section, int group, int batch) {
        double least = kNever;
        for (const Phase phase : {Phase::forward, Phase::backward})
            if (const auto at = place_.find({section, group, batch, phase}); at != place_.end())
                for (const Follower& f : tasks_[at->second].on_others)
                    least = std::min(least,
                                     plan_.makespan_s - rest(f.task) - f.delay_s - tasks_[at->second].end_s);
        return least;
    }

    double seconds(int section, int group, int batch) const {
        double sum = 0;
        for (const Phase phase : {Phase::forward, Phase::backward})
            if (const auto at = place_.find({section, group, batch, phase}); at != place_.end())
                sum += tasks_[at->second].end_s - tasks_[at->second].start_s;
        return sum;
    }

private:
    /// From the start of a task to the end of the step.
    double rest(std::size_t at) {
        Timed& t = tasks_[at];
        if (t.tail_s < 0) {
            double tail = 0;
            for (const std::size_t next : t.on_lane) tail = std::max(tail, rest(next));
            for (const Follower& f : t.on_others) tail = std::max(tail, f.delay_s + rest(f.task));
            t.tail_s = tail;
        }
        return t.end_s - t.start_s + t.tail_s;
    }

    const std::vector<std::vector<schedule::MicroBatch>>& batches_of(int stage) const {
        return plan_
            .batches[static_cast<std::size_t>(problem_.stages[static_cast<std::size_t>(stage)].section)];
    }

    void add_edge(const EdgeShape& e) {
        // Seconds of transfer between each pair of micro-batches that share samples.
        std::map<std::int64_t, std::pair<int, int>> holder;
        const auto from = static_cast<std::size_t>(e.from);
        const auto& up_batches = batches_of(e.from);
        const auto& down_batches = batches_of(e.to);
        for (std::size_t r = 0; r < up_batches.size(); ++r)
            for (std::size_t b = 0; b < up_batches[r].size(); ++b)
                for (const std::int64_t id : up_batches[r][b].samples)
                    holder[id] = {static_cast<int>(r), static_cast<int>(b)};
        std::map<std::tuple<int, int, int, int>, double> pairs;
        for (std::size_t r = 0; r < down_batches.size(); ++r)
            for (std::size_t b = 0; b < down_batches[r].size(); ++b)
                for (const std::int64_t id : down_batches[r][b].samples)
                    if (const auto up = holder.find(id); up != holder.end())
                        pairs[{up->second.first, up->second.second, static_cast<int>(r),
                               static_cast<int>(b)}] += samples_.at(id)->stages[from].transfer_s;
        for (const auto& [pair, transfer] : pairs) {
            const auto [up_r, up_b, down_r, down_b] = pair;
            const double delay = e.colocated ? 0 : e.latency_s + transfer;
            const std::size_t up = place_.at({e.from, up_r, up_b, Phase::forward}),
                              down = place_.at({e.to, down_r, down_b, Phase::forward});
            tasks_[up].on_others.push_back({down, delay});
            const auto up_back = place_.find({e.from, up_r, up_b, Phase::backward}),
                       down_back = place_.find({e.to, down_r, down_b, Phase::backward});
            if (e.gradient && up_back != place_.end() && down_back != place_.end())
                tasks_[down_back->second].on_others.push_back({up_back->second, delay});
            // Without a backward the place in the window is free after the last consumer's forward.
            const int window = problem_.stages[from].window;
            if (window == 0 || up_back != place_.end()) continue;
            const auto next = place_.find({e.from, up_r, up_b + window, Phase::forward});
            if (next == place_.end()) continue;
            const double gap = tasks_[next->second].start_s - tasks_[down].end_s;
            ambiguous_ = ambiguous_ || (std::abs(gap) < 1e-12 &&
                                        (tasks_[next->second].start_s == tasks_[next->second].end_s ||
                                         tasks_[down].start_s == tasks_[down].end_s));
            if (gap > -1e-12) tasks_[down].on_others.push_back({next->second, 0});
        }
    }

    const Problem& problem_;
    const StepPlan& plan_;
    std::map<std::int64_t, const SampleCost*> samples_;
    std::map<std::tuple<int, int, int, Phase>, std::size_t> place_;
    std::vector<Timed> tasks_;
    bool ambiguous_ = false;
};

}  // namespace

std::vector<std::string> wrong_floats(const Problem& problem, const StepPlan& plan, int& compared) {
    std::vector<std::string> wrong;
    Paths paths(problem, plan);
    if (paths.ambiguous()) return wrong;
    for (std::size_t lane = 0; lane < plan.agendas.size(); ++lane)
        for (const Task& t : plan.agendas[lane]) {
            const auto& shape = problem.stages[static_cast<std::size_t>(t.stage)];
            if (t.phase == Phase::backward || !shape.loss) continue;
            const int group = shape.group_on(static_cast<int>(lane));
            const double takes = paths.seconds(t.stage, group, t.micro_batch),
                         wait = std::max(paths.float_of(t.stage, group, t.micro_batch), 0.0);
            const double rounding = 1e-8 * plan.makespan_s + 1e-12;
            const bool same = wait == kNever ? t.float_s == kNever : std::abs(t.float_s - wait) <= rounding;
            if (!same || std::abs(t.takes_s - takes) > rounding)
                wrong.push_back(fmt::format(
                    "section {}, group {}, micro-batch {}: {} s, float {} s instead of {} s, {} s", t.stage,
                    group, t.micro_batch, t.takes_s, t.float_s, takes, wait));
            compared += wait < kNever ? 1 : 0;
        }
    return wrong;
}

}  // namespace maestro::schedule_test
