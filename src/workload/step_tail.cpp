#include "workload/step_tail.hpp"

#include <algorithm>
#include <cmath>

#include "graph/grid.hpp"

namespace maestro::workload {

namespace {

/// The operations of all stages, each in the order of its queue, on the networks of the lanes.
class Networks {
public:
    Networks(const graph::SectionGraph& graph, std::size_t lanes) : graph_(graph), free_s_(lanes, 0.0) {}

    /// Runs an operation of the stage on all replicas, which are ready for it at `ready_s`. Returns when it
    /// ends.
    double run(int stage, double ready_s, double seconds) {
        const double end_s = begins(stage, ready_s) + seconds;
        for (const int lane : lanes_of(stage)) free_s_[static_cast<std::size_t>(lane)] = end_s;
        return end_s;
    }
    /// Returns when it could begin.
    double begins(int stage, double ready_s) const {
        for (const int lane : lanes_of(stage))
            ready_s = std::max(ready_s, free_s_[static_cast<std::size_t>(lane)]);
        return ready_s;
    }

private:
    std::vector<int> lanes_of(int stage) const {
        std::vector<int> lanes;
        for (int g = 0; g < graph_.section_of(stage).replica_groups(); ++g)
            lanes.push_back(graph::lane_of(graph_, stage, g));
        return lanes;
    }
    const graph::SectionGraph& graph_;
    std::vector<double> free_s_;
};

/// An operation that is next in the queue of its stage.
struct Next {
    std::size_t done = 0;  ///< operations of the stage
    double free_s = 0;     ///< when the last of them ended
};

/// Runs all operations of all stages: of those that are next, always the one that can begin first.
/// `ready(stage, k)` and `seconds(stage, k)` are those of the k-th operation of a stage. Returns when each
/// ended.
template <class Ready, class Seconds>
std::vector<std::vector<double>> run_queues(Networks& networks, const std::vector<StepEnd>& ends,
                                            Ready&& ready, Seconds&& seconds) {
    std::vector<Next> next(ends.size());
    std::vector<std::vector<double>> ended(ends.size());
    for (;;) {
        int first = -1;
        double first_s = 0;
        for (std::size_t s = 0; s < ends.size(); ++s) {
            if (next[s].done == ends[s].size()) continue;
            const int stage = static_cast<int>(s);
            const double begin_s = networks.begins(stage, std::max(next[s].free_s, ready(s, next[s].done)));
            if (first < 0 || begin_s < first_s) {
                first = stage;
                first_s = begin_s;
            }
        }
        if (first < 0) return ended;
        Next& of_stage = next[static_cast<std::size_t>(first)];
        of_stage.free_s =
            networks.run(first, first_s, seconds(static_cast<std::size_t>(first), of_stage.done));
        ended[static_cast<std::size_t>(first)].push_back(of_stage.free_s);
        ++of_stage.done;
    }
}

}  // namespace

std::vector<std::size_t> sum_order(const StepEnd& end) {
    std::vector<std::size_t> order;
    for (const bool tied : {false, true})
        for (std::size_t g = end.size(); g-- > 0;)
            if (end[g].tied == tied) order.push_back(g);
    return order;
}

double norm_seconds(const graph::SectionGraph& graph, double latency_s) {
    return 2 * latency_s * std::ceil(std::log2(std::max(1.0, static_cast<double>(graph.world))));
}

StepTail step_tail(const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                   const std::vector<std::vector<LastBackward>>& last, const std::vector<double>& tasks_end_s,
                   double latency_s) {
    std::vector<std::vector<std::size_t>> order;
    for (const StepEnd& end : ends) order.push_back(sum_order(end));
    const auto group_of = [&](std::size_t stage, std::size_t k) -> const GroupTimes& {
        return ends[stage][order[stage][k]];
    };
    const auto final_s = [&](std::size_t stage, const GroupTimes& group) {
        double latest_s = 0;
        for (const LastBackward& task : last[stage])
            latest_s = std::max(latest_s, task.start_s + group.final_at * (task.end_s - task.start_s));
        return latest_s;
    };
    Networks sums(graph, tasks_end_s.size());
    const auto summed = run_queues(
        sums, ends,
        [&](std::size_t stage, std::size_t k) {
            double ready_s = final_s(stage, group_of(stage, k));
            if (!group_of(stage, k).tied) return ready_s;
            for (std::size_t other = 0; other < ends.size(); ++other)
                if (graph.stages[other].section == graph.stages[stage].section)
                    for (const GroupTimes& group : ends[other])
                        if (group.tied) ready_s = std::max(ready_s, final_s(other, group));
            return ready_s;
        },
        [&](std::size_t stage, std::size_t k) { return group_of(stage, k).sum_s; });
    double norm_begins_s = *std::max_element(tasks_end_s.begin(), tasks_end_s.end());
    for (std::size_t s = 0; s < ends.size(); ++s)
        if (!ends[s].empty())
            norm_begins_s = std::max(norm_begins_s, summed[s].back() + ends[s][order[s].back()].after_sum_s);
    const double update_s = norm_begins_s + norm_seconds(graph, latency_s);
    // Every rank updates its stages one after another.
    std::vector<double> lane_s(tasks_end_s.size(), update_s);
    std::vector<std::vector<double>> updated(ends.size());
    for (std::size_t s = 0; s < ends.size(); ++s) {
        const int stage = static_cast<int>(s);
        double begin_s = update_s;
        const int groups = graph.section_of(stage).replica_groups();
        for (int g = 0; g < groups; ++g)
            begin_s = std::max(begin_s, lane_s[static_cast<std::size_t>(graph::lane_of(graph, stage, g))]);
        for (const GroupTimes& group : ends[s]) updated[s].push_back(begin_s += group.update_s);
        for (int g = 0; g < groups; ++g)
            lane_s[static_cast<std::size_t>(graph::lane_of(graph, stage, g))] = begin_s;
    }
    StepTail tail;
    tail.end_s = *std::max_element(lane_s.begin(), lane_s.end());
    Networks weights(graph, tasks_end_s.size());
    tail.weights_s = run_queues(
        weights, ends, [&](std::size_t stage, std::size_t k) { return updated[stage][k]; },
        [&](std::size_t stage, std::size_t k) { return ends[stage][k].gather_s; });
    for (std::vector<double>& stage : tail.weights_s)
        for (double& seconds : stage) seconds -= tail.end_s;
    return tail;
}

double wait_for_weights(const StepEnd& end, const std::vector<double>& weights_s, double start_s,
                        double forward_s) {
    double waited_s = 0;
    for (std::size_t g = 0; g < end.size(); ++g)
        waited_s = std::max(waited_s, weights_s[g] - (start_s + end[g].needed_at * forward_s));
    return waited_s;
}

}  // namespace maestro::workload
