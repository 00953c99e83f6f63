// Measures the gap of wavefront plans to the lower bound, and the time that planning takes, for
// vision-language steps with log-normal synthetic costs. docs/benchmarks.md has the results.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <random>
#include <string>
#include <string_view>

#include "schedule/execution/simulate.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"

using namespace maestro::schedule;

namespace {

struct Family {
    const char* name;
    const char* target;  ///< gap that the plans should stay below
    int per_replica;     ///< samples of a language replica
    double load;         ///< work of an encoder rank over that of a language rank
    double share;        ///< of samples with pictures
    double sigma;        ///< of the log-normal costs
    int window_fanouts;  ///< window of an encoder, in fan-outs; 0: no window
    bool frozen;
    int sub_problems_from, sub_problems_to;
};

constexpr Family kFamilies[] = {
    {"mix of a third", "0.5%", 16, 0.9, 1.0 / 3, 0.6, 0, false, 1, 4},
    {"  window of 4 fan-outs", "0.5%", 16, 0.9, 1.0 / 3, 0.6, 4, false, 1, 4},
    {"  3 a replica, load 0.5", "3%", 3, 0.5, 1.0 / 3, 0.6, 0, false, 1, 4},
    {"all with pictures", "1.5%", 16, 0.9, 1.0, 0.6, 0, false, 1, 4},
    {"  frozen encoder", "0.8%", 16, 0.9, 1.0, 0.6, 0, true, 1, 4},
    {"mix, sigma 1", "2.5%", 16, 0.9, 1.0 / 3, 1.0, 0, false, 2, 2},
};

class RandomNumbers {
public:
    explicit RandomNumbers(std::uint64_t seed) : engine_(seed) {}
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    double log_normal(double sigma) {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform()));
    }

private:
    std::mt19937_64 engine_;
};

/// Returns a step with `encoders` upstream sections of sub-problems x fan_in replicas each, before one
/// language section of sub-problems x fanout replicas. One of fanout and fan_in is 1. With fan-in a language
/// replica has that many times the samples, so that each encoder replica has as many of them as without.
Problem make_problem(const Family& f, int encoders, int sub_problems, int fanout, std::uint64_t seed,
                     int fan_in = 1) {
    RandomNumbers random(seed * 7919 +
                         static_cast<std::uint64_t>(encoders * 1000 + sub_problems * 100 + fanout));
    Problem problem;
    const int replicas = sub_problems * fanout, language = encoders, producers = sub_problems * fan_in;
    for (int e = 0; e < encoders; ++e) {
        problem.stages.push_back({.section = e,
                                  .groups = producers,
                                  .first_lane = e * producers,
                                  .micro_batch = 1,
                                  .window = f.window_fanouts * fanout,
                                  .backward = !f.frozen});
        problem.edges.push_back({e, language, !f.frozen});
    }
    problem.stages.push_back({.section = encoders,
                              .groups = replicas,
                              .first_lane = encoders * producers,
                              .micro_batch = 1,
                              .window = 0,
                              .backward = true,
                              .loss = true});
    problem.lanes = encoders * producers + replicas;
    std::vector<double> work(static_cast<std::size_t>(encoders) + 1, 0.0);
    for (int i = 0; i < replicas * fan_in * f.per_replica; ++i) {
        SampleCost sample{.id = i, .stages = {}};
        for (int s = 0; s <= encoders; ++s) {
            const bool backward = s == language || !f.frozen;
            const bool active = s == language || random.uniform() < f.share;
            const double forward = active ? random.log_normal(f.sigma) : 0;
            sample.stages.push_back({forward, backward ? 2 * forward : 0, active});
            work[static_cast<std::size_t>(s)] += forward * (backward ? 3 : 1);
        }
        problem.samples.push_back(std::move(sample));
    }
    for (auto& sample : problem.samples)
        for (int e = 0; e < encoders; ++e) {
            const auto s = static_cast<std::size_t>(e);
            if (!sample.stages[s].active) continue;
            const double scale = f.load * work.back() / replicas / (work[s] / producers);
            sample.stages[s].forward_s *= scale;
            sample.stages[s].backward_s *= scale;
        }
    return problem;
}

double gap(const StepPlan& plan) {
    return std::max(0.0, plan.makespan_s / plan.lower_bound_s - 1);
}

/// The gaps of all policies, summed over problems.
struct GapSums {
    double wavefront = 0, lpt = 0, fifo = 0, ratio = 0;
    int count = 0;

    void add(const Problem& problem, std::int64_t moves = 0) {
        const StepPlan ours = make_plan("wavefront", problem, 1, {.moves = moves}),
                       data = make_plan("fifo", problem, 1);
        wavefront += gap(ours);
        lpt += gap(make_plan("lpt", problem, 1));
        fifo += gap(data);
        ratio += data.makespan_s / ours.makespan_s;
        ++count;
    }
};

void gaps(int seeds, bool detail, std::int64_t moves) {
    fmt::print("mean gap to the lower bound over {} seeds, fan-outs 1, 2, 4, 8, 16, sub-problems 1, 2, 4{}\n",
               seeds, moves > 0 ? fmt::format(", {} moves", moves) : "");
    fmt::print("{:<26}{:>9}{:>8}{:>11}{:>9}{:>9}{:>9}{:>16}\n", "family", "encoders", "target", "wavefront",
               "worst", "lpt", "fifo", "fifo/wavefront");
    for (const Family& f : kFamilies)
        for (const int encoders : {1, 2}) {
            GapSums sums;
            double worst = 0;
            for (int sub_problems = f.sub_problems_from; sub_problems <= f.sub_problems_to; sub_problems *= 2)
                for (const int fanout : {1, 2, 4, 8, 16}) {
                    const double before = sums.wavefront;
                    for (int seed = 0; seed < seeds; ++seed)
                        sums.add(
                            make_problem(f, encoders, sub_problems, fanout, static_cast<std::uint64_t>(seed)),
                            moves);
                    const double here = sums.wavefront - before;
                    worst = std::max(worst, here / seeds);
                    if (detail)
                        fmt::print("    {} encoders, {} sub-problems, fan-out {}: {:.2f}%\n", encoders,
                                   sub_problems, fanout, 100 * here / seeds);
                }
            fmt::print("{:<26}{:>9}{:>8}{:>10.2f}%{:>8.2f}%{:>8.1f}%{:>8.1f}%{:>16.2f}\n", f.name, encoders,
                       f.target, 100 * sums.wavefront / sums.count, 100 * worst, 100 * sums.lpt / sums.count,
                       100 * sums.fifo / sums.count, sums.ratio / sums.count);
        }
}

void fan_in_gaps(int seeds) {
    fmt::print("\nmean gap to the lower bound over {} seeds, fan-in 2, 4, 8, language replicas 1, 2, 4\n",
               seeds);
    fmt::print("{:<26}{:>9}{:>11}{:>9}{:>9}{:>16}\n", "family", "encoders", "wavefront", "lpt", "fifo",
               "fifo/wavefront");
    for (const Family& f : kFamilies)
        for (const int encoders : {1, 2}) {
            GapSums sums;
            for (const int fan_in : {2, 4, 8})
                for (int sub_problems = f.sub_problems_from; sub_problems <= f.sub_problems_to;
                     sub_problems *= 2)
                    for (int seed = 0; seed < seeds; ++seed)
                        sums.add(make_problem(f, encoders, sub_problems, 1, static_cast<std::uint64_t>(seed),
                                              fan_in));
            fmt::print("{:<26}{:>9}{:>10.2f}%{:>8.1f}%{:>8.1f}%{:>16.2f}\n", f.name, encoders,
                       100 * sums.wavefront / sums.count, 100 * sums.lpt / sums.count,
                       100 * sums.fifo / sums.count, sums.ratio / sums.count);
        }
}

/// The same step with so many language replicas on a lane, its parts, as where replicas share experts.
Problem with_language_parts(Problem problem, int parts) {
    StageShape& language = problem.stages.back();
    language.groups /= parts;
    language.parts = parts;
    language.micro_batch *= parts;
    problem.lanes = language.first_lane + language.groups;
    return problem;
}

/// The same step with each encoder on the lanes of the language model, of which it has several parts: one for
/// each tp rank of the language model, say.
Problem with_encoder_parts(Problem problem, int parts) {
    problem.lanes = problem.stages.back().groups;
    for (StageShape& shape : problem.stages) {
        shape.first_lane = 0;
        if (shape.loss) continue;
        shape.parts = parts;
        shape.micro_batch = parts;
        // It did not compete for its lane, and an even share of it was another.
        for (SampleCost& sample : problem.samples) {
            TaskCost& cost = sample.stages[shape.section];
            cost.forward_s *= parts;
            cost.backward_s *= parts;
        }
    }
    return problem;
}

void part_gaps(int seeds) {
    fmt::print("\nmean gap to the lower bound over {} seeds, sub-problems 1, 2, 4, fan-outs 8, 16\n", seeds);
    fmt::print("{:<26}{:>24}{:>11}{:>9}{:>9}{:>16}\n", "family", "parts of a lane", "wavefront", "lpt",
               "fifo", "fifo/wavefront");
    for (const Family& f : kFamilies)
        for (const bool language : {true, false})
            for (const int parts : {2, 4, 8}) {
                GapSums sums;
                for (int sub_problems = f.sub_problems_from; sub_problems <= f.sub_problems_to;
                     sub_problems *= 2)
                    for (const int fanout : {8, 16})
                        for (int seed = 0; seed < seeds; ++seed) {
                            const auto number = static_cast<std::uint64_t>(seed);
                            if (language)
                                sums.add(with_language_parts(make_problem(f, 1, sub_problems, fanout, number),
                                                             parts));
                            else if (f.window_fanouts == 0)
                                sums.add(
                                    with_encoder_parts(make_problem(f, 1, sub_problems, 1, number), parts));
                        }
                if (sums.count == 0) continue;
                fmt::print("{:<26}{:>24}{:>10.2f}%{:>8.1f}%{:>8.1f}%{:>16.2f}\n", f.name,
                           fmt::format("{} {}", parts, language ? "language" : "encoder, shared"),
                           100 * sums.wavefront / sums.count, 100 * sums.lpt / sums.count,
                           100 * sums.fifo / sums.count, sums.ratio / sums.count);
            }
}

/// Returns the lower bound of a step of these samples on one of `parts` equal parts of the problem's ranks.
double part_bound(const Problem& problem, int parts, std::vector<SampleCost> samples) {
    Problem part{.stages = problem.stages, .edges = problem.edges, .lanes = 0, .samples = std::move(samples)};
    for (StageShape& shape : part.stages) {
        shape.groups = std::max(shape.groups / parts, 1);
        shape.first_lane = part.lanes;
        part.lanes += shape.groups;
    }
    return part.samples.empty() ? 0 : lower_bound(part);
}

/// Returns a lower bound for all orders of the plan's assignment of samples to replicas: the largest bound of
/// any sub-problem, and of any language replica if it had the upstream sections to itself.
double assignment_bound(const Problem& problem, const StepPlan& plan) {
    const auto& replicas = plan.batches.back();
    const int sub_problems = problem.stages.front().groups;
    const std::size_t fanout = replicas.size() / static_cast<std::size_t>(sub_problems);
    double bound = 0;
    std::vector<SampleCost> sub_problem;
    for (std::size_t r = 0; r < replicas.size(); ++r) {
        std::vector<SampleCost> samples;
        for (const MicroBatch& batch : replicas[r])
            for (const std::int64_t sample : batch.samples)
                samples.push_back(problem.samples[static_cast<std::size_t>(sample)]);
        sub_problem.insert(sub_problem.end(), samples.begin(), samples.end());
        bound = std::max(bound, part_bound(problem, static_cast<int>(replicas.size()), std::move(samples)));
        if ((r + 1) % fanout != 0) continue;
        bound = std::max(bound, part_bound(problem, sub_problems, std::move(sub_problem)));
        sub_problem.clear();
    }
    return bound;
}

/// Adds 20% noise to the task times of a plan that was made without it, and prints the gaps to the lower
/// bound of the noisy times. "fixed" is the gap of assignment_bound(), which no dispatch can undercut without
/// changing the assignment.
void noise(int seeds) {
    fmt::print("\n20% noise on task times, mean gap over {} seeds\n{:<26}{:>9}{:>8}{:>9}{:>9}{:>9}\n", seeds,
               "family", "encoders", "target", "ready", "planned", "fixed");
    for (const Family& f : kFamilies)
        for (const int encoders : {1, 2}) {
            double gaps[3] = {0, 0, 0};
            int count = 0;
            for (int sub_problems = f.sub_problems_from; sub_problems <= f.sub_problems_to; sub_problems *= 2)
                for (const int fanout : {1, 2, 4, 8, 16})
                    for (int seed = 0; seed < seeds; ++seed, ++count) {
                        const auto number = static_cast<std::uint64_t>(seed);
                        const Problem problem = make_problem(f, encoders, sub_problems, fanout, number);
                        const StepPlan plan = make_plan("wavefront", problem, 1);
                        const Problem noisy = with_noise(problem, plan, 0.2, number);
                        const double bound = lower_bound(noisy);
                        gaps[0] += simulate(noisy, plan, Dispatch::ready).makespan_s / bound - 1;
                        gaps[1] += simulate(noisy, plan).makespan_s / bound - 1;
                        gaps[2] += std::max(0.0, assignment_bound(noisy, plan) / bound - 1);
                    }
            fmt::print("{:<26}{:>9}{:>8}{:>8.1f}%{:>8.1f}%{:>8.1f}%\n", f.name, encoders,
                       f.share < 1 ? "8%" : "11%", 100 * gaps[0] / count, 100 * gaps[1] / count,
                       100 * gaps[2] / count);
        }
}

void planning_times() {
    fmt::print("\ntime of planning, one core\n");
    struct Case {
        int family, encoders, sub_problems, fanout;
    };
    for (const auto& [family, encoders, sub_problems, fanout] :
         {Case{0, 1, 4, 4}, Case{0, 1, 8, 8}, Case{0, 1, 4, 16}, Case{0, 1, 16, 4}, Case{0, 1, 1, 64},
          Case{0, 2, 8, 8}, Case{1, 1, 8, 8}, Case{1, 2, 8, 8}, Case{3, 1, 8, 8}, Case{3, 2, 8, 8},
          Case{3, 2, 4, 16}, Case{0, 1, 32, 16}, Case{1, 2, 32, 16}, Case{3, 2, 32, 16}}) {
        const Problem problem = make_problem(kFamilies[family], encoders, sub_problems, fanout, 1);
        double best = 1e9;
        StepPlan plan;
        for (int i = 0; i < 5; ++i) {
            const auto start = std::chrono::steady_clock::now();
            plan = make_plan("wavefront", problem, 1);
            best = std::min(best,
                            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        fmt::print(
            "{:>6} samples, {:>2} sub-problems of {:>2}, encoders {}, {:<24}: {:>7.2f} ms, gap {:.2f}%\n",
            problem.samples.size(), sub_problems, fanout, encoders, kFamilies[family].name, best * 1e3,
            100 * gap(plan));
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int seeds = argc > 1 ? std::atoi(argv[1]) : 10;
    if (seeds < 1) {
        fmt::print(stderr, "usage: schedule_bench [SEEDS] [--detail | MOVES]\n");
        return 64;
    }
    const bool detail = argc > 2 && std::string_view(argv[2]) == "--detail";
    if (argc > 2 && !detail) {  // with more moves than the default: gaps only
        gaps(seeds, false, std::atoll(argv[2]));
        return 0;
    }
    gaps(seeds, detail, 0);
    fan_in_gaps(seeds);
    part_gaps(seeds);
    noise(seeds);
    planning_times();
    return 0;
}
