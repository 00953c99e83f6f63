// Machine: the state of one step while it is executed in simulated time. Nodes are micro-batches; a node has
// a forward and perhaps a backward task. Rules: docs/scheduling.md.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "schedule/problem/instance.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// The micro-batches of one section, group after group.
struct Batches {
    std::vector<int> samples;        ///< of the instance
    std::vector<int> ends;           ///< of each micro-batch, in samples
    std::vector<int> group_ends{0};  ///< [groups + 1], in micro-batches
    std::vector<int> parts;          ///< of the lane, of each sample; empty if the lane has one
    void close_batch() { ends.push_back(static_cast<int>(samples.size())); }
    void close_group() { group_ends.push_back(static_cast<int>(ends.size())); }
};

struct Node {
    double forward_s = 0, backward_s = 0;
    int stage = 0, group = 0, lane = 0, index = 0;
    int first = 0;         ///< the node of the same micro-batch in the first stage of its section
    int first_sample = 0;  ///< of the instance
    int samples_first = 0, samples_last = 0;                       ///< in the batches of the section
    int down_first = 0, down_last = 0, up_first = 0, up_last = 0;  ///< in the machine's links
    int inputs_left = 0;     ///< upstream nodes whose output has not arrived
    int gradients_left = 0;  ///< downstream nodes whose gradient has not arrived
    int consumers_left = 0;  ///< downstream nodes whose forward is not done
    bool has_backward = false, started = false, forward_done = false, backward_started = false;
    bool closed = false;  ///< of a loss section; nothing waits for its forward but its backward
};

struct Link {
    int node = 0;
    bool gradient = false;
    double delay_s = 0;  ///< of the transfer, either way
};

struct Choice {
    int node = -1;  ///< -1: none
    Phase phase = Phase::forward;
};

/// One executed task.
struct Executed {
    int node = 0;
    Phase phase = Phase::forward;
    double start_s = 0, end_s = 0;
};

class Machine {
public:
    explicit Machine(const Instance& instance);
    /// The same with build(batches). Both arguments are kept by reference.
    Machine(const Instance& instance, const std::vector<Batches>& batches) : Machine(instance) {
        build(batches);
    }
    /// Prepares the execution of these micro-batches, [section], in the memory of the last ones.
    void build(const std::vector<Batches>& batches);

    const Instance& instance() const { return instance_; }
    std::span<const Node> nodes() const { return nodes_; }
    const Node& node(int n) const { return nodes_[n]; }
    int first_node(int stage, int group) const { return first_[stage][group]; }
    /// Returns the node of the same micro-batch in another stage of its section.
    int in_stage(const Node& n, int stage) const { return first_node(stage, n.group) + n.index; }
    /// Returns the node of a sample in a stage, -1 if it has no work there.
    int node_of(int stage, int sample) const { return node_of_[instance_.at(stage, sample)]; }
    /// Returns the samples of a node, in order.
    std::span<const int> samples_of(const Node& n) const {
        return std::span((*batches_)[instance_.section_of(n.stage)].samples)
            .subspan(n.samples_first, n.samples_last - n.samples_first);
    }
    std::span<const Link> downstream(const Node& n) const {
        return std::span(links_).subspan(n.down_first, n.down_last - n.down_first);
    }
    std::span<const Link> upstream(const Node& n) const {
        return std::span(links_).subspan(n.up_first, n.up_last - n.up_first);
    }
    /// Returns the node that enters the window when `n`, a node without a backward, leaves it, provided that
    /// nodes leave in order; -1 if there is none.
    int waits_for_window(int n) const {
        const Node& waiting = node(n);
        const int window = instance_.shape(waiting.stage).window;
        const bool any =
            !waiting.has_backward && window > 0 && window < first_node(waiting.stage, waiting.group + 1) - n;
        return any ? n + window : -1;
    }
    bool window_open(const Node& n) const {
        const int window = instance_.shape(n.stage).window;
        return window == 0 || in_flight_[slot(n)] < window;
    }
    bool can_start(const Choice& c) const {
        const Node& n = node(c.node);
        if (c.phase == Phase::forward) return !n.started && n.inputs_left == 0 && window_open(n);
        return n.has_backward && n.forward_done && !n.backward_started && n.gradients_left == 0;
    }

    /// Executes the step; once for each build. `chooser` has four members:
    /// - `void ready(int node, Phase phase, double now)`: the inputs of a task have arrived. Its window may
    ///   be full.
    /// - `Choice choose(int lane, double now)` returns the task that a free lane starts. It must be able
    ///   to start.
    /// - `void started(const Choice&, double end_s)`: the task has started.
    /// - `static constexpr bool kBackwardFollows`: a loss section's backward always follows its forward.
    ///
    /// A lane is asked again after every event that it may wait for. Returns the makespan, or infinity if
    /// tasks are left that cannot start. `executed` receives the tasks, those of a lane in the order of their
    /// start.
    template <class Chooser>
    double run(Chooser& chooser, std::vector<Executed>* executed = nullptr);

private:
    enum What { forward_ends, backward_ends, input_arrives, gradient_arrives };
    struct Event {
        double time = 0;
        std::int64_t id = 0;  ///< 4 * node + what; orders events of the same time
        int node() const { return static_cast<int>(id >> 2); }
        What what() const { return static_cast<What>(id & 3); }
        bool operator>(const Event& o) const { return time != o.time ? time > o.time : id > o.id; }
    };
    struct Pair {
        int up = 0, down = 0;
        bool gradient = false;
        double delay_s = 0;
    };
    void link(const std::vector<Batches>& batches);
    void set_times(Node& node, const Batches& batches);
    std::size_t slot(const Node& n) const { return slots_[n.stage] + n.group; }
    void touch(int lane) {
        if (touched_[lane]) return;
        touched_[lane] = 1;
        waiting_.push_back(turn_[lane]);
    }
    void push(double time, int node, What what) {
        events_.push_back({time, std::int64_t{node} * 4 + what});
        std::push_heap(events_.begin(), events_.end(), std::greater<>());
    }
    void retire(const Node& n) {
        --in_flight_[slot(n)];
        touch(n.lane);
    }
    template <class Chooser>
    void input_arrived(Chooser& chooser, int n, double now) {
        Node& node = nodes_[n];
        if (--node.inputs_left > 0) return;
        chooser.ready(n, Phase::forward, now);
        touch(node.lane);
    }
    template <class Chooser>
    void gradient_arrived(Chooser& chooser, int n, double now) {
        Node& node = nodes_[n];
        if (--node.gradients_left > 0 || !node.forward_done) return;
        chooser.ready(n, Phase::backward, now);
        touch(node.lane);
    }
    template <class Chooser>
    void finish(Chooser& chooser, const Event& event);

    const Instance& instance_;
    const std::vector<Batches>* batches_ = nullptr;
    std::vector<Node> nodes_;
    std::vector<Link> links_;
    std::vector<Pair> pairs_;
    std::vector<std::vector<int>> first_;  ///< [stage][group + 1]
    std::vector<int> node_of_;             ///< [stage * samples + sample]
    std::vector<int> slots_;               ///< first slot of a stage; a slot is a group of a stage
    std::vector<int> in_flight_;           ///< [slot]
    std::vector<int> lanes_;  ///< in the order in which they choose: those of loss sections first
    std::vector<int> turn_;   ///< [lane], its place in that order
    std::vector<Event> events_;
    std::vector<int> waiting_;  ///< turns of the lanes that choose next
    std::vector<char> touched_, busy_;
    std::size_t tasks_ = 0;
    std::vector<double> part_forward_s_, part_backward_s_;  ///< of one node
    std::vector<int> part_lacks_;                           ///< samples, of the same
};

template <class Chooser>
void Machine::finish(Chooser& chooser, const Event& event) {
    Node& n = nodes_[event.node()];
    switch (event.what()) {
        case forward_ends: {
            busy_[n.lane] = 0;
            touch(n.lane);
            n.forward_done = true;
            for (const Link& d : downstream(n))
                if (d.delay_s > 0)
                    push(event.time + d.delay_s, d.node, input_arrives);
                else
                    input_arrived(chooser, d.node, event.time);
            for (int u = n.up_first; u < n.up_last; ++u) {
                Node& up = nodes_[links_[u].node];
                if (--up.consumers_left == 0 && !up.has_backward) retire(up);
            }
            if (!n.has_backward && n.consumers_left == 0) retire(n);
            if (n.has_backward && n.gradients_left == 0)
                chooser.ready(event.node(), Phase::backward, event.time);
            break;
        }
        case backward_ends:
            busy_[n.lane] = 0;
            for (int u = n.up_first; u < n.up_last; ++u) {
                const Link& up = links_[u];
                if (!up.gradient) continue;
                if (up.delay_s > 0)
                    push(event.time + up.delay_s, up.node, gradient_arrives);
                else
                    gradient_arrived(chooser, up.node, event.time);
            }
            retire(n);
            break;
        case input_arrives:
            input_arrived(chooser, event.node(), event.time);
            break;
        case gradient_arrives:
            gradient_arrived(chooser, event.node(), event.time);
    }
}

template <class Chooser>
double Machine::run(Chooser& chooser, std::vector<Executed>* executed) {
    for (std::size_t n = 0; n < nodes_.size(); ++n)
        if (nodes_[n].inputs_left == 0) chooser.ready(static_cast<int>(n), Phase::forward, 0.0);
    for (const int lane : lanes_) touch(lane);
    double now = 0, makespan = 0;
    std::size_t done = 0;
    while (true) {
        // Lanes choose in a fixed order, so that a plan does not depend on the order of simultaneous events.
        if (!std::is_sorted(waiting_.begin(), waiting_.end())) std::sort(waiting_.begin(), waiting_.end());
        for (const int turn : waiting_) {
            const int lane = lanes_[turn];
            touched_[lane] = 0;
            if (busy_[lane]) continue;
            const Choice choice = chooser.choose(lane, now);
            if (choice.node < 0) continue;
            Node& n = nodes_[choice.node];
            const bool forward = choice.phase == Phase::forward;
            if (forward) {
                n.started = true;
                ++in_flight_[slot(n)];
            } else {
                n.backward_started = true;
            }
            double end = now + (forward ? n.forward_s : n.backward_s);
            chooser.started(choice, end);
            ++done;
            if (executed) executed->push_back({choice.node, choice.phase, now, end});
            // One event for both tasks: nothing waits for the forward alone.
            const bool both = Chooser::kBackwardFollows && forward && n.closed;
            if (both) {
                const double start = end;
                end += n.backward_s;
                ++done;
                if (executed) executed->push_back({choice.node, Phase::backward, start, end});
            }
            makespan = std::max(makespan, end);
            push(end, choice.node, forward && !both ? forward_ends : backward_ends);
            busy_[lane] = 1;
        }
        waiting_.clear();
        if (events_.empty()) break;
        now = events_.front().time;
        // All events of one time come before the choices of that time, so that choices see all that has
        // arrived.
        while (!events_.empty() && events_.front().time <= now) {
            const Event event = events_.front();
            std::pop_heap(events_.begin(), events_.end(), std::greater<>());
            events_.pop_back();
            finish(chooser, event);
        }
    }
    return done == tasks_ ? makespan : std::numeric_limits<double>::infinity();
}

}  // namespace maestro::schedule
