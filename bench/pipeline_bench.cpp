// How well the wavefront plans pipelines, with synthetic costs: steps with pictures against the same steps
// without, and against the lower bound. docs/benchmarks.md has the results.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <random>
#include <string_view>
#include <vector>

#include "schedule/bounds.hpp"
#include "schedule/policies.hpp"
#include "schedule/simulate.hpp"
#include "unit/schedule/problems.hpp"

using namespace maestro::schedule;

namespace {

class RandomNumbers {
public:
    explicit RandomNumbers(std::uint64_t seed) : engine_(seed) {}
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
    double log_normal(double sigma) {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform()));
    }

private:
    std::mt19937_64 engine_;
};

/// A language section of `pipelines` replicas that one encoder rank serves.
struct Step {
    int stages = 4, micro_batches = 16, size = 4;  ///< of a language replica; samples
    int pipelines = 1;
    double share = 1.0 / 3;           ///< of samples with pictures
    double load = 0.7;                ///< work of the encoder over that of a stage
    double sigma = 0.6;               ///< of the log-normal costs of samples
    int encoder_size = 1;             ///< samples of an encoder micro-batch
    int wider = 0;                    ///< windows of the stages, more than stages are left
    double encoder_window = 4.0 / 3;  ///< of what is in flight on average; 0: no window
};

Problem make_problem(const Step& step, std::uint64_t seed) {
    RandomNumbers random(seed * 7919 + 17);
    const int samples = step.micro_batches * step.size * step.pipelines;
    Problem single{.stages = {{.section = 0, .replicas = 1, .micro_batch = step.encoder_size},
                              {.section = 1,
                               .replicas = step.pipelines,
                               .first_lane = 1,
                               .micro_batch = step.size,
                               .window = 1,
                               .loss = true}},
                   .edges = {{0, 1, true}},
                   .lanes = 1 + step.pipelines,
                   .samples = {}};
    double language = 0, vision = 0;
    for (int i = 0; i < samples; ++i) {
        const double text = random.log_normal(step.sigma), picture = random.log_normal(step.sigma);
        const bool pictured = static_cast<int>((i + 1) * step.share) > static_cast<int>(i * step.share);
        single.samples.push_back({.id = i,
                                  .stages = {{pictured ? picture : 0, pictured ? 2 * picture : 0, pictured},
                                             {text, 2 * text, true}}});
        language += text;
        vision += pictured ? picture : 0;
    }
    std::shuffle(single.samples.begin(), single.samples.end(), std::mt19937_64(seed));
    const double scale = vision > 0 ? step.load * language / step.stages / step.pipelines / vision : 0;
    for (SampleCost& sample : single.samples) {
        sample.stages[0].forward_s *= scale;
        sample.stages[0].backward_s *= scale;
    }
    // What is in flight upstream of one pipeline, while its stages and the encoder have it: Little's law.
    const double c = 3 * language / (step.micro_batches * step.pipelines) / step.stages;
    const double encoder =
        3 * vision * scale / std::max(step.share, 1e-9) / (step.micro_batches * step.pipelines);
    const double in_flight = step.pipelines * step.share * (step.stages + step.wider + encoder / c) * step.size;
    single.stages[0].window =
        static_cast<int>((std::ceil(step.encoder_window * in_flight / step.size) + 1) * step.size / step.encoder_size);
    Problem problem = maestro::schedule_test::in_stages(single, {1, step.stages});
    for (StageShape& shape : problem.stages)
        if (shape.section == 1 && !shape.loss) shape.window += step.wider;
    return problem;
}

/// The same step without pictures.
Problem text_alone(const Step& step, const Problem& problem) {
    Problem single{.stages = {problem.stages.back()}, .edges = {}, .lanes = step.pipelines, .samples = {}};
    single.stages[0].section = single.stages[0].first_lane = 0;
    single.stages[0].lane_stride = 1;
    for (const SampleCost& sample : problem.samples) {
        TaskCost cost = sample.stages[1];
        cost.forward_s *= step.stages;
        cost.backward_s *= step.stages;
        single.samples.push_back({.id = sample.id, .stages = {cost}});
    }
    Problem text = maestro::schedule_test::in_stages(single, {step.stages});
    for (StageShape& shape : text.stages)
        if (!shape.loss) shape.window += step.wider;
    return text;
}

struct Result {
    double over_text = 0, worst = 0, over_bound = 0, over_larger = 0, worst_larger = 0, fifo = 0,
           text_bound = 0;
};

Result measure(const Step& step, int seeds, std::int64_t moves = 0) {
    Result result;
    for (int seed = 0; seed < seeds; ++seed) {
        const Problem problem = make_problem(step, static_cast<std::uint64_t>(seed)),
                      text = text_alone(step, problem);
        const StepPlan ours = make_plan("wavefront", problem, 1, moves),
                       alone = make_plan("wavefront", text, 1, moves);
        const StepPlan fifo = make_plan("fifo", problem, 1);
        const double over_text = ours.makespan_s / alone.makespan_s - 1,
                     larger = ours.makespan_s / std::max(alone.makespan_s, ours.lower_bound_s) - 1;
        result.over_text += over_text / seeds;
        result.worst = std::max(result.worst, over_text);
        result.over_bound += (ours.makespan_s / ours.lower_bound_s - 1) / seeds;
        result.over_larger += larger / seeds;
        result.worst_larger = std::max(result.worst_larger, larger);
        result.fifo += (fifo.makespan_s / alone.makespan_s - 1) / seeds;
        result.text_bound += (alone.makespan_s / alone.lower_bound_s - 1) / seeds;
    }
    return result;
}

void row(const char* name, const Step& step, int seeds, std::int64_t moves) {
    const Result r = measure(step, seeds, moves);
    fmt::print(
        "{:<22}{:>3}{:>4}{:>5}{:>3}{:>6.1f}{:>7.1f}{:>8}{:>10.1f}%{:>8.1f}%{:>9.1f}%{:>8.1f}%{:>8.1f}%{:>8."
        "1f}%{:>8.1f}%\n",
        name, step.stages, step.micro_batches, step.size, step.pipelines, step.load, step.sigma, step.wider,
        100 * r.over_text, 100 * r.worst, 100 * r.over_larger, 100 * r.worst_larger, 100 * r.over_bound,
        100 * r.text_bound, 100 * r.fifo);
}

void gaps(int seeds, std::int64_t moves) {
    fmt::print("{:<22}{:>3}{:>4}{:>5}{:>3}{:>6}{:>7}{:>8}{:>11}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}\n", "", "p",
               "m", "size", "k", "load", "sigma", "window+", "over text", "worst", "over max", "worst",
               "bound", "text bd", "fifo");
    for (const int wider : {0, 2})
        for (const int m : {16, 32})
            for (const int k : {1, 4})
                for (const double load : {0.5, 0.7, 0.9})
                    row("four samples", {.micro_batches = m, .pipelines = k, .load = load, .wider = wider},
                        seeds, moves);
    for (const double sigma : {0.1, 0.6})
        for (const int wider : {0, 1, 2, 4})
            for (const int k : {1, 4})
                row("one sample", {.size = 1, .pipelines = k, .load = 0.7, .sigma = sigma, .wider = wider},
                    seeds, moves);
    for (const int wider : {0, 2})
        for (const int m : {4, 8})
            for (const int k : {1, 4})
                for (const double load : {0.5, 0.9})
                    row("short step", {.micro_batches = m, .pipelines = k, .load = load, .wider = wider},
                        seeds, moves);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 9) {
        Step step{.stages = 4, .micro_batches = std::atoi(argv[3]), .size = std::atoi(argv[2]), .pipelines = std::atoi(argv[4]), .share = std::atof(argv[9]), .load = std::atof(argv[5]), .sigma = std::atof(argv[6]), .wider = std::atoi(argv[7]), .encoder_window = std::atof(argv[8])};
        if (std::getenv("SHOW")) {
            const Problem problem = make_problem(step, std::atoi(std::getenv("SHOW")));
            const StepPlan plan = make_plan("wavefront", problem, 1);
            double c = 0;
            for (auto& sample : problem.samples) c += sample.stages[1].forward_s + sample.stages[1].backward_s;
            c /= step.micro_batches * step.pipelines;
            fmt::print("makespan {:.2f} c, window {}\n", plan.makespan_s / c, problem.stages[0].window);
            for (const TimedTask& t : simulate(problem, plan).tasks)
                if (t.task.stage <= 1 && t.replica == 0) {
                    const auto& batch = plan.batches[t.task.stage][t.replica][t.task.micro_batch].samples;
                    int pics = 0; for (auto id : batch) for (auto& x : problem.samples) if (x.id == id) pics += x.stages[0].active;
                    fmt::print("{} {}{} {:>3} pics {} {:.2f} - {:.2f}\n", t.task.stage, t.task.stage == 0 ? "        " : "", t.task.phase == Phase::forward ? "F" : "B", t.task.micro_batch, pics, t.start_s / c, t.end_s / c);
                }
            return 0;
        }
        row("", step, 5, argc > 10 ? std::atoll(argv[10]) : 0);
        return 0;
    }
    const int seeds = argc > 1 ? std::atoi(argv[1]) : 5;
    gaps(seeds, argc > 2 ? std::atoll(argv[2]) : 0);
    return 0;
}
