#include "unit/schedule/problems.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/random.hpp"
#include "schedule/execution/interleaving.hpp"

namespace maestro::schedule_test {

using schedule::EdgeShape;
using schedule::Problem;
using schedule::SampleCost;
using schedule::StageShape;
using schedule::TaskCost;

namespace {

/// Numbers of one random problem, in order of asking.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : random_(seed, "dice") {}
    int up_to(int n) { return static_cast<int>(random_.bits(next_++) % static_cast<std::uint64_t>(n)); }
    double cost() { return 0.1 + random_.uniform(next_++); }

private:
    Random random_;
    std::uint64_t next_ = 0;
};

}  // namespace

Problem random_problem(std::uint64_t seed) {
    Dice dice(seed);
    Problem problem;
    const int upstream = 1 + dice.up_to(3), sub_problems = 1 + dice.up_to(2), fanout = 1 + dice.up_to(4);
    const bool colocated = dice.up_to(4) == 0, chain = dice.up_to(3) == 0;
    const int groups = sub_problems * fanout, batch = 1 + dice.up_to(4);
    const int samples = 1 + dice.up_to(24), pictures = dice.up_to(5);
    int lane = 0;
    for (int s = 0; s <= upstream; ++s) {
        const bool loss = s == upstream;
        const int count = loss || colocated ? groups : sub_problems;
        // Wide enough for fifo, which feeds the groups of a sub-problem in turn.
        problem.stages.push_back({.section = s,
                                  .groups = count,
                                  .first_lane = colocated ? 0 : lane,
                                  .micro_batch = loss ? batch : 1 + dice.up_to(4),
                                  .window = loss ? 1 : fanout * batch + 8,
                                  .backward = loss || dice.up_to(3) != 0,
                                  .loss = loss});
        lane += count;
    }
    problem.lanes = colocated ? groups : lane;
    for (int s = 0; s < upstream; ++s) {
        const int to = chain ? s + 1 : upstream;
        if (chain && s > 0 && problem.stages[static_cast<std::size_t>(s - 1)].backward)
            problem.stages[static_cast<std::size_t>(s)].backward = true;
        problem.edges.push_back({s, to, problem.stages[static_cast<std::size_t>(s)].backward});
    }
    for (int i = 0; i < samples; ++i) {
        SampleCost cost{.id = 100 + i, .stages = {}};
        const bool pictured = dice.up_to(4) < pictures;
        for (int s = 0; s <= upstream; ++s) {
            const bool active = s == upstream || (pictured && (chain || dice.up_to(2) == 0));
            const bool backward = problem.stages[static_cast<std::size_t>(s)].backward;
            cost.stages.push_back(
                {active ? dice.cost() : 0, active && backward ? 2 * dice.cost() : 0, active});
        }
        problem.samples.push_back(cost);
    }
    return problem;
}

Problem two_lanes(std::uint64_t seed, double load, double share) {
    Dice dice(seed);
    Problem problem{.stages = {{.groups = 1, .first_lane = 0, .micro_batch = 2, .window = 8},
                               {.section = 1,
                                .groups = 1,
                                .first_lane = 1,
                                .micro_batch = 4,
                                .window = 1,
                                .backward = true,
                                .loss = true}},
                    .edges = {{0, 1, true}},
                    .lanes = 2,
                    .samples = {}};
    double language = 0;
    for (int i = 0; i < 64; ++i) {
        const double forward = dice.cost();
        language += 3 * forward;
        const bool pictured = dice.up_to(1000) < static_cast<int>(1000 * share);
        problem.samples.push_back(
            {.id = i, .stages = {{pictured ? dice.cost() : 0, 0, pictured}, {forward, 2 * forward, true}}});
    }
    double vision = 0;
    for (const auto& s : problem.samples) vision += 3 * s.stages[0].forward_s;
    for (auto& s : problem.samples) {
        s.stages[0].forward_s *= load * language / vision;
        s.stages[0].backward_s = 2 * s.stages[0].forward_s;
    }
    return problem;
}

Problem hard_problem(std::uint64_t seed) {
    Problem problem = random_problem(seed);
    Dice dice(seed + 1'000'000);
    const int last = static_cast<int>(problem.stages.size()) - 1;
    const bool colocated = problem.stages.front().first_lane == problem.stages.back().first_lane;
    const bool chain = last > 1 && problem.edges.front().to == 1;
    if (chain && dice.up_to(2) == 0) problem.edges.push_back({0, last, problem.stages.front().backward});
    if (!colocated && dice.up_to(4) == 0) {
        StageShape second = problem.stages.back();
        second.first_lane = problem.lanes;
        ++second.section;
        second.groups = problem.stages.front().groups;
        second.micro_batch = 1 + dice.up_to(3);
        problem.lanes += second.groups;
        problem.stages.push_back(second);
        problem.edges.push_back({0, last + 1, problem.stages.front().backward});
        for (SampleCost& sample : problem.samples) {
            const bool active = sample.stages.front().active && dice.up_to(2) == 0;
            sample.stages.push_back({active ? dice.cost() : 0, active ? dice.cost() : 0, active});
        }
    }
    if (dice.up_to(2) == 0)
        for (StageShape& s : problem.stages)
            if (!s.loss) s.window = 1 + dice.up_to(3);
    if (dice.up_to(2) == 0) {
        for (EdgeShape& e : problem.edges) {
            e.latency_s = 0.1 * dice.cost();
            e.colocated = colocated;
        }
        for (SampleCost& sample : problem.samples)
            for (TaskCost& cost : sample.stages)
                if (cost.active) cost.transfer_s = 0.2 * dice.cost();
    }
    if (dice.up_to(3) == 0) {
        problem.zero_is_none = true;
        for (SampleCost& sample : problem.samples)
            for (TaskCost& cost : sample.stages)
                if (dice.up_to(3) == 0) cost.backward_s = 0;
    }
    return problem;
}

Problem with_fan_in(Problem problem, std::uint64_t seed) {
    if (problem.stages.front().first_lane == problem.stages.back().first_lane) return problem;
    Dice dice(seed + 2'000'000);
    const auto loss = std::find_if(problem.stages.begin(), problem.stages.end(),
                                   [](const StageShape& s) { return s.loss; });
    for (auto s = problem.stages.begin(); s != loss; ++s) s->groups = loss->groups << dice.up_to(3);
    problem.lanes = 0;
    for (StageShape& s : problem.stages) {
        s.first_lane = problem.lanes;
        problem.lanes += s.groups;
    }
    return problem;
}

Problem with_parts(Problem problem, std::uint64_t seed) {
    Dice dice(seed + 3'000'000);
    for (StageShape& s : problem.stages) {
        s.parts = 1 + dice.up_to(4);
        s.micro_batch *= s.parts;
    }
    if (dice.up_to(2) == 0)
        for (SampleCost& sample : problem.samples)
            for (TaskCost& cost : sample.stages) cost.common = 0.25 * dice.up_to(4);
    return problem;
}

Problem side_by_side(Problem problem, const Problem& other) {
    const int sections = problem.sections(), stages = static_cast<int>(problem.stages.size());
    for (StageShape stage : other.stages) {
        stage.section += sections;
        stage.first_lane += problem.lanes;
        problem.stages.push_back(stage);
    }
    for (schedule::EdgeShape edge : other.edges) {
        edge.from += stages;
        edge.to += stages;
        problem.edges.push_back(edge);
    }
    problem.lanes += other.lanes;
    problem.zero_is_none = problem.zero_is_none || other.zero_is_none;
    for (std::size_t i = 0; i < std::max(problem.samples.size(), other.samples.size()); ++i) {
        if (i == problem.samples.size())
            problem.samples.push_back({.id = other.samples[i].id,
                                       .stages = std::vector<TaskCost>(static_cast<std::size_t>(stages))});
        const std::vector<TaskCost> costs =
            i < other.samples.size() ? other.samples[i].stages : std::vector<TaskCost>(other.stages.size());
        problem.samples[i].stages.insert(problem.samples[i].stages.end(), costs.begin(), costs.end());
    }
    return problem;
}

Problem any_problem(std::uint64_t seed) {
    Problem problem = seed % 2 == 0 ? random_problem(seed) : hard_problem(seed);
    if (seed % 5 < 2) problem = with_fan_in(std::move(problem), seed);
    if (seed % 3 == 0 && !problem.zero_is_none) {
        Dice dice(seed + 4'000'000);
        for (StageShape& s : problem.stages) {
            s.lacking_forward_s = dice.cost() / 10;
            s.lacking_backward_s = dice.cost() / 5;
        }
    }
    return seed / 2 % 4 == 0 ? with_parts(std::move(problem), seed) : problem;
}

Problem in_pipelines(const Problem& single, const std::vector<Pipeline>& pipelines) {
    Problem problem{.stages = {},
                    .edges = {},
                    .lanes = 0,
                    .samples = single.samples,
                    .zero_is_none = single.zero_is_none};
    std::vector<int> first(single.stages.size()), last(first);
    for (SampleCost& sample : problem.samples) sample.stages.clear();
    std::map<int, int> lanes;  // first lane in `single` -> in the problem
    for (std::size_t s = 0; s < single.stages.size(); ++s) {
        const auto [ranks, chunks] = pipelines[s];
        const int count = ranks * chunks;
        first[s] = static_cast<int>(problem.stages.size());
        last[s] = first[s] + count - 1;
        const auto [lane, added] = lanes.emplace(single.stages[s].first_lane, problem.lanes);
        if (added) problem.lanes += ranks * single.stages[s].groups;
        for (int k = 0; k < count; ++k) {
            StageShape shape = single.stages[s];
            shape.first_lane = lane->second + k % ranks;
            shape.lane_stride = ranks;
            shape.chunks = chunks;
            // In a section with a loss the gradient comes back from the last stage, elsewhere from the
            // sections that follow.
            const int within = schedule::interleaved_window(ranks, chunks, k);
            if (k + 1 < count && shape.loss) shape.window = within;
            if (k + 1 < count && !shape.loss && shape.window > 0) shape.window += within - 1;
            shape.loss = shape.loss && k + 1 == count;
            problem.stages.push_back(shape);
            for (std::size_t i = 0; i < problem.samples.size(); ++i) {
                TaskCost cost = single.samples[i].stages[s];
                cost.forward_s /= count;
                cost.backward_s /= count;
                problem.samples[i].stages.push_back(cost);
            }
            if (k + 1 < count) problem.edges.push_back({first[s] + k, first[s] + k + 1, shape.backward});
        }
    }
    for (EdgeShape edge : single.edges) {
        const Pipeline& from = pipelines[static_cast<std::size_t>(edge.from)];
        edge.colocated = edge.colocated && from.ranks == 1;
        edge.from = last[static_cast<std::size_t>(edge.from)];
        edge.to = first[static_cast<std::size_t>(edge.to)];
        problem.edges.push_back(edge);
    }
    return problem;
}

Problem in_stages(const Problem& single, const std::vector<int>& stages) {
    std::vector<Pipeline> pipelines;
    for (const int count : stages) pipelines.push_back({.ranks = count});
    return in_pipelines(single, pipelines);
}

Problem text_pipeline(Pipeline pipeline, int micro_batches, double forward_s, double backward_s) {
    Problem single{.stages = {{.groups = 1, .window = 1, .backward = backward_s > 0, .loss = true}},
                   .edges = {},
                   .lanes = 1,
                   .samples = {}};
    for (int i = 0; i < micro_batches; ++i)
        single.samples.push_back(
            {.id = i, .stages = {{pipeline.ranks * forward_s, pipeline.ranks * backward_s, true}}});
    return in_pipelines(single, {pipeline});
}

}  // namespace maestro::schedule_test
