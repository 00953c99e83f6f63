#include "schedule/execution/simulate.hpp"

#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/random.hpp"
#include "schedule/execution/choosers.hpp"

namespace maestro::schedule {

namespace {

/// The random numbers of the tasks of each sample in each stage.
class Noise {
public:
    Noise(const Problem& problem, double sigma, std::uint64_t seed)
        : random_(seed, "noise"), sigma_(sigma), stages_(problem.stages.size()) {}
    /// `like`: the index of the sample whose random numbers are used.
    void apply(TaskCost& cost, std::size_t stage, std::size_t like) const {
        const std::uint64_t at = 2 * (like * stages_ + stage);
        cost.forward_s *= factor(at);
        cost.backward_s *= factor(at + 1);
    }

private:
    double factor(std::uint64_t at) const {
        // The second term makes the mean 1: noise lengthens single tasks, but not the expected load of a
        // section. The number depends on the task alone, not on the order of the calls, so that plans with
        // equal micro-batches meet equal times.
        return std::exp(sigma_ * random_.normal(at) - sigma_ * sigma_ / 2);
    }
    Random random_;
    double sigma_;
    std::size_t stages_;
};

/// Returns the indices of the problem's samples by their ids.
std::unordered_map<std::int64_t, std::size_t> places(const Problem& problem) {
    std::unordered_map<std::int64_t, std::size_t> place;
    place.reserve(problem.samples.size());
    for (std::size_t i = 0; i < problem.samples.size(); ++i) place.emplace(problem.samples[i].id, i);
    return place;
}

}  // namespace

Problem with_noise(Problem problem, const StepPlan& plan, double sigma, std::uint64_t seed) {
    if (sigma == 0) return problem;
    const Noise noise(problem, sigma, seed);
    const auto place = places(problem);
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        for (const auto& group : plan.batches[problem.stages[s].section])
            for (const MicroBatch& batch : group)
                for (const std::int64_t id : batch.samples)
                    noise.apply(problem.samples[place.at(id)].stages[s], s, place.at(batch.samples.front()));
    return problem;
}

Problem with_noise(Problem problem, double sigma, std::uint64_t seed) {
    if (sigma == 0) return problem;
    const Noise noise(problem, sigma, seed);
    for (std::size_t i = 0; i < problem.samples.size(); ++i)
        for (std::size_t s = 0; s < problem.stages.size(); ++s)
            noise.apply(problem.samples[i].stages[s], s, i);
    return problem;
}

Timeline simulate(const Problem& problem, const StepPlan& plan, Dispatch dispatch) {
    const Instance instance = whole(problem);
    const auto place = places(problem);
    std::vector<Batches> batches(instance.sections());
    for (std::size_t s = 0; s < batches.size(); ++s)
        for (const auto& group : plan.batches[s]) {
            for (const MicroBatch& batch : group) {
                for (const std::int64_t id : batch.samples)
                    batches[s].samples.push_back(static_cast<int>(place.at(id)));
                for (int part = 0; part < static_cast<int>(batch.part_ends.size()); ++part)
                    batches[s].parts.insert(batches[s].parts.end(), batch.of_part(part).size(), part);
                batches[s].close_batch();
            }
            batches[s].close_group();
        }
    // A machine of the whole problem, not of its sub-problems: a plan of any source can be executed.
    Machine machine(instance, batches);
    std::vector<std::vector<Choice>> agendas(plan.agendas.size());
    for (std::size_t lane = 0; lane < agendas.size(); ++lane)
        for (const Task& t : plan.agendas[lane]) {
            const int group = instance.shape(t.stage).group_on(static_cast<int>(lane));
            agendas[lane].push_back({machine.first_node(t.stage, group) + t.micro_batch, t.phase});
        }
    std::vector<Executed> executed;
    double makespan = 0;
    if (dispatch == Dispatch::planned) {
        FixedOrder chooser(machine, std::move(agendas));
        makespan = machine.run(chooser, &executed);
    } else {
        ReadyOrder chooser(machine, plan.agendas, std::move(agendas));
        makespan = machine.run(chooser, &executed);
    }
    Timeline timeline;
    timeline.stuck = makespan == std::numeric_limits<double>::infinity();
    for (const Executed& e : executed) {
        const Node& n = machine.node(e.node);
        timeline.tasks.push_back({n.lane, n.group, {n.stage, n.index, e.phase}, e.start_s, e.end_s});
        timeline.makespan_s = std::max(timeline.makespan_s, e.end_s);
    }
    return timeline;
}

Timeline simulate_one_size(const Problem& problem) {
    // Sections, upstream before downstream (Kahn, 1962). There are few, so that repeated scans are cheap.
    const auto count = problem.stages.size();
    std::vector<std::size_t> order;
    std::vector<int> waits(count, 0);
    for (const EdgeShape& e : problem.edges) ++waits[e.to];
    while (order.size() < count)
        for (std::size_t s = 0; s < count; ++s) {
            if (waits[s] != 0) continue;
            waits[s] = -1;
            order.push_back(s);
            for (const EdgeShape& e : problem.edges)
                if (e.from == static_cast<int>(s)) --waits[e.to];
        }
    std::vector<double> free(problem.lanes, 0.0);
    Timeline timeline;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) {
        const auto lane = i % free.size();
        const auto add = [&](std::size_t s, Phase phase) {
            const TaskCost& cost = problem.samples[i].stages[s];
            if (!cost.active) return;
            if (phase == Phase::backward && !problem.runs_backward(problem.samples[i], s)) return;
            const double end = free[lane] + (phase == Phase::forward ? cost.forward_s : cost.backward_s);
            timeline.tasks.push_back({static_cast<int>(lane),
                                      static_cast<int>(lane),
                                      {static_cast<int>(s), static_cast<int>(i), phase},
                                      free[lane],
                                      end});
            free[lane] = end;
            timeline.makespan_s = std::max(timeline.makespan_s, end);
        };
        for (const std::size_t s : order) add(s, Phase::forward);
        for (auto s = order.rbegin(); s != order.rend(); ++s) add(*s, Phase::backward);
    }
    return timeline;
}

double one_size_bound(const Problem& problem) {
    // The tasks of a sample run on one lane, one after another, so no schedule of this kind is shorter than
    // the longest sample.
    double sum = 0, longest = 0;
    for (const SampleCost& sample : problem.samples) {
        double sample_s = 0;
        for (std::size_t s = 0; s < problem.stages.size(); ++s)
            if (sample.stages[s].active)
                sample_s += sample.stages[s].forward_s +
                            (problem.stages[s].backward ? sample.stages[s].backward_s : 0);
        sum += sample_s;
        longest = std::max(longest, sample_s);
    }
    return std::max(sum / problem.lanes, longest);
}

}  // namespace maestro::schedule
