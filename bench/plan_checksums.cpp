// A checksum of the plans and executions of many random problems, a line for each family and policy. Two
// builds that print the same lines make the same plans, bit for bit: run both and compare with diff.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numbers>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "unit/schedule/problems.hpp"

using namespace maestro::schedule;

namespace {

class Dice {
public:
    explicit Dice(std::uint64_t seed) : engine_(seed) {}
    int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    double log_normal(double sigma) {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform()));
    }
    /// One of `values`.
    int of(const std::vector<int>& values) { return values[below(static_cast<int>(values.size()))]; }

private:
    std::mt19937_64 engine_;
};

/// FNV-1a over 64-bit words.
class Checksum {
public:
    void add(std::int64_t word) { hash_ = (hash_ ^ static_cast<std::uint64_t>(word)) * 0x100000001b3; }
    void add(double value) { add(std::bit_cast<std::int64_t>(value)); }
    void add(const Timeline& timeline) {
        add(std::int64_t{timeline.stuck});
        for (const TimedTask& t : timeline.tasks) {
            for (const int word : {t.lane, t.group, t.task.stage, t.task.micro_batch})
                add(std::int64_t{word});
            add(t.start_s);
            add(t.end_s);
        }
    }
    std::uint64_t value() const { return hash_; }

private:
    std::uint64_t hash_ = 0xcbf29ce484222325;
};

struct Family {
    const char* name;
    int problems;
    std::function<Problem(std::uint64_t)> make;
    std::int64_t moves;
};

/// One to three encoders, perhaps of unlike groups, before a language section of up to `fanout` times as
/// many; `levels`: times are whole numbers up to that many, so that many are equal; 0: log-normal.
Problem encoders(std::uint64_t seed, const std::vector<int>& sub_problems_of, const std::vector<int>& fanouts,
                 const std::vector<int>& per_group, int levels) {
    Dice dice(seed);
    const int sub_problems = dice.of(sub_problems_of), fanout = dice.of(fanouts), upstream = dice.below(4);
    const bool shared_lanes = dice.below(8) == 0, batches = dice.below(3) == 0, windows = dice.below(2) == 0;
    const double share = dice.of({10, 33, 33, 60, 100}) / 100.0, sigma = dice.of({2, 6, 6, 10}) / 10.0;
    Problem problem;
    const int groups = sub_problems * fanout;
    for (int e = 0; e <= upstream; ++e) {
        const bool loss = e == upstream;
        StageShape shape{.section = e,
                         .groups = loss || shared_lanes ? groups : sub_problems,
                         .first_lane = shared_lanes ? 0 : problem.lanes,
                         .micro_batch = batches ? 1 + dice.below(4) : 1,
                         .window = !loss && windows ? (1 + dice.below(4)) * fanout : 0,
                         .backward = loss || dice.below(4) != 0,
                         .loss = loss};
        if (!loss && !shared_lanes && e > 0 && fanout % 2 == 0 && dice.below(3) == 0)
            shape.groups *= fanout / 2;
        problem.stages.push_back(shape);
        problem.lanes = shared_lanes ? groups : problem.lanes + shape.groups;
        if (!loss) problem.edges.push_back({e, upstream, shape.backward, dice.below(4) == 0 ? 0.05 : 0});
    }
    const int samples = std::max(1, groups * dice.of(per_group) - dice.below(3));
    for (int i = 0; i < samples; ++i) {
        SampleCost sample{.id = 7 * i, .stages = {}};
        for (const StageShape& shape : problem.stages) {
            const bool active = shape.loss || dice.uniform() < share;
            double forward = levels > 0 ? 1 + dice.below(levels) : dice.log_normal(sigma);
            if (!shape.loss) forward *= shape.groups * 0.3 / groups;
            sample.stages.push_back({active ? forward : 0, active && shape.backward ? 2 * forward : 0, active,
                                     active ? 0.01 : 0});
        }
        problem.samples.push_back(std::move(sample));
    }
    return problem;
}

/// Sections without an upstream one: every replica group is a sub-problem.
Problem text_only(std::uint64_t seed) {
    Dice dice(seed);
    const int groups = dice.of({1, 3, 32, 200, 700});
    Problem problem{.stages = {{.groups = groups, .micro_batch = dice.of({1, 4}), .window = 0, .loss = true}},
                    .edges = {},
                    .lanes = groups,
                    .samples = {}};
    const bool equal = dice.below(2) == 0;
    for (int i = 0; i < groups * dice.of({2, 16}); ++i) {
        const double forward = equal ? 1 + dice.below(3) : dice.log_normal(1);
        problem.samples.push_back({.id = i, .stages = {{forward, 2 * forward, true}}});
    }
    return problem;
}

void print(const Family& family) {
    for (const char* policy : {"wavefront", "fifo", "lpt"}) {
        Checksum plans, executions;
        double sum_s = 0;
        for (int seed = 0; seed < family.problems; ++seed) {
            const Problem problem = family.make(static_cast<std::uint64_t>(seed));
            const StepPlan plan = make_plan(policy, problem, 1, {.moves = family.moves});
            for (const std::int64_t word : encode(plan)) plans.add(word);
            sum_s += plan.makespan_s;
            const Problem noisy = with_noise(problem, plan, 0.2, static_cast<std::uint64_t>(seed));
            executions.add(lower_bound(noisy));
            executions.add(simulate(noisy, plan));
            executions.add(simulate(noisy, plan, Dispatch::ready));
            executions.add(simulate_one_size(noisy));
            executions.add(one_size_bound(noisy));
        }
        fmt::print("{:<32} {:<10} {:>5} problems, makespans {:.9g} s, plans {:016x}, executions {:016x}\n",
                   family.name, policy, family.problems, sum_s, plans.value(), executions.value());
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view only = argc > 1 ? argv[1] : "";
    const std::vector<Family> families{
        {"random graphs", 2000, maestro::schedule_test::random_problem, 20},
        {"hard graphs", 2000, maestro::schedule_test::hard_problem, 20},
        {"hard graphs, full search", 40, maestro::schedule_test::hard_problem, 0},
        {"few samples", 60,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 4}, {1, 2, 4}, {3, 6}, 0);
         },
         0},
        {"few samples, equal times", 60,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 4}, {1, 2, 4}, {3, 6}, 2);
         },
         0},
        {"hundreds of samples", 120,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 4, 8}, {1, 4, 8, 16}, {6, 16}, 0);
         },
         0},
        {"hundreds, equal times", 120,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 4, 8}, {1, 4, 8, 16}, {6, 16}, 3);
         },
         0},
        {"many sub-problems", 40,
         [](std::uint64_t seed) {
             return encoders(seed, {60, 250}, {1, 4, 8}, {14}, 0);
         },
         0},
        {"many sub-problems, equal times", 40,
         [](std::uint64_t seed) {
             return encoders(seed, {60, 250}, {1, 4, 8}, {14}, 2);
         },
         0},
        {"large fanouts", 30,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 3}, {60, 200}, {4, 14}, 0);
         },
         0},
        {"large fanouts, equal times", 30,
         [](std::uint64_t seed) {
             return encoders(seed, {1, 2, 3}, {60, 200}, {4, 14}, 2);
         },
         0},
        {"text only", 60, text_only, 0},
    };
    for (const Family& family : families)
        if (std::string_view(family.name).find(only) != std::string_view::npos) print(family);
    return 0;
}
