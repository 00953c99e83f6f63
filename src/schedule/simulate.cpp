#include "schedule/simulate.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <unordered_map>

#include "base/check.hpp"

namespace maestro::schedule {

namespace {

constexpr int kNone = -1;

/// A micro-batch of one replica with what it waits for.
struct Node {
    int section = 0, replica = 0, index = 0, rank = 0;
    double forward_s = 0, backward_s = 0;
    int inputs_left = 0;                    ///< upstream micro-batches whose forward is not done
    int gradients_left = 0;                 ///< downstream micro-batches whose backward is not done
    int consumers_left = 0;                 ///< downstream micro-batches whose forward is not done
    std::vector<int> upstream, downstream;  ///< nodes; each once
    std::vector<int> gradient_to;           ///< upstream nodes that wait for its backward
    bool forward_started = false, forward_done = false, backward_started = false, done = false;
};

/// The state of a step: which tasks could start, and what their end sets free.
class Machine {
public:
    Machine(const Problem& problem, const StepPlan& plan) : problem_(problem) {
        std::unordered_map<std::int64_t, const SampleCost*> costs;
        for (const auto& s : problem.samples) costs.emplace(s.id, &s);
        first_.resize(problem.sections.size());
        in_flight_.resize(problem.sections.size());
        std::vector<std::unordered_map<std::int64_t, int>> node_of(problem.sections.size());
        for (std::size_t s = 0; s < problem.sections.size(); ++s) {
            in_flight_[s].assign(static_cast<std::size_t>(problem.sections[s].replicas), 0);
            for (std::size_t r = 0; r < plan.batches[s].size(); ++r) {
                first_[s].push_back(static_cast<int>(nodes.size()));
                for (std::size_t k = 0; k < plan.batches[s][r].size(); ++k) {
                    Node node;
                    node.section = static_cast<int>(s);
                    node.replica = static_cast<int>(r);
                    node.index = static_cast<int>(k);
                    node.rank = problem.sections[s].first_rank + static_cast<int>(r);
                    for (const auto id : plan.batches[s][r][k].samples) {
                        const TaskCost& cost = costs.at(id)->sections[s];
                        node.forward_s += cost.forward_s;
                        node.backward_s += cost.backward_s;
                        node_of[s].emplace(id, static_cast<int>(nodes.size()));
                    }
                    nodes.push_back(std::move(node));
                }
            }
            first_[s].push_back(static_cast<int>(nodes.size()));
        }
        for (const EdgeShape& edge : problem.edges) {
            const auto& up = node_of[static_cast<std::size_t>(edge.from)];
            for (const auto& [id, down_node] : node_of[static_cast<std::size_t>(edge.to)]) {
                const auto at = up.find(id);
                if (at == up.end()) continue;
                Node &u = nodes[static_cast<std::size_t>(at->second)],
                     &d = nodes[static_cast<std::size_t>(down_node)];
                if (std::find(d.upstream.begin(), d.upstream.end(), at->second) != d.upstream.end()) continue;
                d.upstream.push_back(at->second);
                u.downstream.push_back(down_node);
                ++d.inputs_left;
                ++u.consumers_left;
                if (edge.gradient) {
                    ++u.gradients_left;
                    d.gradient_to.push_back(at->second);
                }
            }
        }
    }

    const SectionShape& shape(const Node& n) const {
        return problem_.sections[static_cast<std::size_t>(n.section)];
    }
    int node_at(int section, int replica, int index) const {
        return first_[static_cast<std::size_t>(section)][static_cast<std::size_t>(replica)] + index;
    }
    bool window_open(const Node& n) const {
        const int window = shape(n).window;
        return window == 0 ||
               in_flight_[static_cast<std::size_t>(n.section)][static_cast<std::size_t>(n.replica)] < window;
    }
    bool can_start(int node, Phase phase) const {
        const Node& n = nodes[static_cast<std::size_t>(node)];
        if (phase == Phase::forward) return !n.forward_started && n.inputs_left == 0 && window_open(n);
        return n.forward_done && !n.backward_started && n.gradients_left == 0 && shape(n).backward;
    }
    double start(int node, Phase phase) {
        Node& n = nodes[static_cast<std::size_t>(node)];
        (phase == Phase::forward ? n.forward_started : n.backward_started) = true;
        if (phase == Phase::forward)
            ++in_flight_[static_cast<std::size_t>(n.section)][static_cast<std::size_t>(n.replica)];
        return phase == Phase::forward ? n.forward_s : n.backward_s;
    }
    void finish(int node, Phase phase) {
        Node& n = nodes[static_cast<std::size_t>(node)];
        if (phase == Phase::forward) {
            n.forward_done = true;
            for (const int d : n.downstream) --nodes[static_cast<std::size_t>(d)].inputs_left;
            for (const int u : n.upstream) {
                Node& up = nodes[static_cast<std::size_t>(u)];
                if (--up.consumers_left == 0 && !shape(up).backward && up.forward_done) retire(up);
            }
            if (!shape(n).backward && n.consumers_left == 0) retire(n);
        } else {
            for (const int u : n.gradient_to) --nodes[static_cast<std::size_t>(u)].gradients_left;
            retire(n);
        }
    }
    std::size_t tasks() const {
        std::size_t count = 0;
        for (const Node& n : nodes) count += shape(n).backward ? 2 : 1;
        return count;
    }

    std::vector<Node> nodes;

private:
    void retire(Node& n) {
        n.done = true;
        --in_flight_[static_cast<std::size_t>(n.section)][static_cast<std::size_t>(n.replica)];
    }
    const Problem& problem_;
    std::vector<std::vector<int>> first_;
    std::vector<std::vector<int>> in_flight_;
};

struct Choice {
    int node = kNone;
    Phase phase = Phase::forward;
};

/// Runs until nothing can start any more. choose(rank) names what a free rank starts, or kNone.
Timeline run(const Problem& problem, Machine& machine, const std::function<Choice(int)>& choose) {
    struct Event {
        double time;
        int rank;
        Choice choice;
        bool operator>(const Event& other) const {
            return time != other.time ? time > other.time : rank > other.rank;
        }
    };
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    std::vector<bool> busy(static_cast<std::size_t>(problem.world), false);
    Timeline timeline;
    double now = 0;
    for (bool more = true; more;) {
        for (bool started = true; started;) {
            started = false;
            for (int rank = 0; rank < problem.world; ++rank) {
                if (busy[static_cast<std::size_t>(rank)]) continue;
                const Choice choice = choose(rank);
                if (choice.node == kNone) continue;
                const double end = now + machine.start(choice.node, choice.phase);
                const Node& n = machine.nodes[static_cast<std::size_t>(choice.node)];
                timeline.tasks.push_back({rank, n.replica, {n.section, n.index, choice.phase}, now, end});
                timeline.makespan_s = std::max(timeline.makespan_s, end);
                events.push({end, rank, choice});
                busy[static_cast<std::size_t>(rank)] = started = true;
            }
        }
        more = !events.empty();
        if (more) now = events.top().time;
        while (!events.empty() && events.top().time <= now) {
            const Event event = events.top();
            events.pop();
            machine.finish(event.choice.node, event.choice.phase);
            busy[static_cast<std::size_t>(event.rank)] = false;
        }
    }
    timeline.stuck = timeline.tasks.size() != machine.tasks();
    return timeline;
}

/// The rule's choice for one rank; see DispatchRule.
class Dispatcher {
public:
    Dispatcher(const Problem& problem, const DispatchRule& rule, Machine& machine)
        : problem_(problem), rule_(rule), machine_(machine) {
        lanes_.resize(static_cast<std::size_t>(problem.world));
        for (std::size_t i = 0; i < machine.nodes.size(); ++i) {
            const Node& n = machine.nodes[i];
            auto& lane = lanes_[static_cast<std::size_t>(n.rank)];
            if (lane.empty() ||
                machine.nodes[static_cast<std::size_t>(lane.back().back())].section != n.section)
                lane.emplace_back();
            lane.back().push_back(static_cast<int>(i));
        }
    }

    Choice choose(int rank) {
        auto& sections = lanes_[static_cast<std::size_t>(rank)];
        // Downstream sections first: what is nearest to the loss frees memory and feeds the others'
        // backwards.
        Choice best;
        int best_order = std::numeric_limits<int>::max();
        for (auto& list : sections) {
            const Node& head = machine_.nodes[static_cast<std::size_t>(list.front())];
            const SectionShape& shape = problem_.sections[static_cast<std::size_t>(head.section)];
            const Choice backward = first_ready(list, Phase::backward);
            const Choice forward = first_ready(list, Phase::forward);
            Choice mine = forward;
            int order = shape.loss ? 1 : 3;
            if (backward.node != kNone &&
                (shape.loss || forward.node == kNone || sections.size() > 1 || fed(list))) {
                mine = backward;
                order = shape.loss ? 0 : 2;
            }
            if (mine.node != kNone && order < best_order) {
                best = mine;
                best_order = order;
            }
        }
        return best;
    }

private:
    Choice first_ready(const std::vector<int>& list, Phase phase) const {
        const bool any = problem_
                             .sections[static_cast<std::size_t>(
                                 machine_.nodes[static_cast<std::size_t>(list.front())].section)]
                             .loss;
        for (const int node : list) {
            if (machine_.can_start(node, phase)) return {node, phase};
            const Node& n = machine_.nodes[static_cast<std::size_t>(node)];
            if (phase == Phase::forward && !n.forward_started && (!any || !machine_.window_open(n)))
                break;  // in list order
        }
        return {};
    }
    /// Has every consumer of this replica `depth` micro-batches that wait for nothing, or nothing left to
    /// wait for?
    bool fed(const std::vector<int>& list) const {
        std::unordered_map<int, std::pair<int, int>> waiting;  // rank of the consumer -> ready, blocked
        for (const int node : list)
            for (const int d : machine_.nodes[static_cast<std::size_t>(node)].downstream) {
                const Node& consumer = machine_.nodes[static_cast<std::size_t>(d)];
                if (consumer.forward_started) continue;
                auto& [ready, blocked] = waiting[consumer.rank];
                ++(consumer.inputs_left == 0 ? ready : blocked);
            }
        return std::all_of(waiting.begin(), waiting.end(), [&](const auto& w) {
            return w.second.second == 0 || w.second.first >= rule_.depth;
        });
    }

    const Problem& problem_;
    DispatchRule rule_;
    Machine& machine_;
    std::vector<std::vector<std::vector<int>>> lanes_;  ///< [rank][section on it][node]
};

}  // namespace

Timeline simulate(const Problem& problem, const StepPlan& plan) {
    Machine machine(problem, plan);
    std::vector<std::size_t> next(static_cast<std::size_t>(problem.world), 0);
    return run(problem, machine, [&](int rank) -> Choice {
        const auto& lane = plan.lanes[static_cast<std::size_t>(rank)];
        auto& at = next[static_cast<std::size_t>(rank)];
        if (at == lane.size()) return {};
        const Task& task = lane[at];
        const int replica = rank - problem.sections[static_cast<std::size_t>(task.section)].first_rank;
        const int node = machine.node_at(task.section, replica, task.micro_batch);
        if (!machine.can_start(node, task.phase)) return {};
        ++at;
        return {node, task.phase};
    });
}

bool dispatch(const Problem& problem, const DispatchRule& rule, StepPlan& plan) {
    Machine machine(problem, plan);
    Dispatcher dispatcher(problem, rule, machine);
    const Timeline timeline = run(problem, machine, [&](int rank) { return dispatcher.choose(rank); });
    plan.lanes.assign(static_cast<std::size_t>(problem.world), {});
    for (const TimedTask& t : timeline.tasks) plan.lanes[static_cast<std::size_t>(t.rank)].push_back(t.task);
    plan.makespan_s = timeline.makespan_s;
    return !timeline.stuck;
}

}  // namespace maestro::schedule
