// Measures plans of pipelines with synthetic costs: how much longer steps with pictures take than the same
// steps without, gaps to the lower bound, which windows are needed, and the time of planning.
// docs/scheduling.md names its results.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "schedule/policies/policies.hpp"
#include "unit/schedule/pipeline_steps.hpp"

using namespace maestro::schedule;
using maestro::schedule_test::UnlikeStep;

namespace {

struct Result {
    double bound = 0, text_bound = 0;     ///< gaps to the lower bound, of the step and of text alone
    double text = 0, worst_text = 0;      ///< over text alone
    double larger = 0, worst_larger = 0;  ///< over the larger of text alone and the bound
    double fifo = 0;                      ///< fifo over text alone
};

Result measure(const UnlikeStep& step, int seeds) {
    Result mean;
    for (int seed = 0; seed < seeds; ++seed) {
        const Problem problem = step.problem(static_cast<std::uint64_t>(seed));
        const StepPlan plan = make_plan("wavefront", problem, 1),
                       alone = make_plan("wavefront", maestro::schedule_test::text_alone(problem), 1);
        const double over_text = plan.makespan_s / alone.makespan_s - 1;
        const double over_larger = plan.makespan_s / std::max(alone.makespan_s, plan.lower_bound_s) - 1;
        mean.bound += (plan.makespan_s / plan.lower_bound_s - 1) / seeds;
        mean.text_bound += (alone.makespan_s / alone.lower_bound_s - 1) / seeds;
        mean.text += over_text / seeds;
        mean.worst_text = std::max(mean.worst_text, over_text);
        mean.larger += over_larger / seeds;
        mean.worst_larger = std::max(mean.worst_larger, over_larger);
        mean.fifo += (make_plan("fifo", problem, 1).makespan_s / alone.makespan_s - 1) / seeds;
    }
    return mean;
}

void heading(std::string_view title) {
    fmt::print("\n{}\n{:>3}{:>4}{:>6}{:>4}{:>6}{:>7}{:>8}{:>9}{:>12}{:>8}{:>12}{:>8}{:>8}{:>12}{:>8}\n",
               title, "p", "m", "size", "k", "load", "sigma", "window+", "encoder", "over text", "worst",
               "over larger", "worst", "bound", "text bound", "fifo");
}

void row(const UnlikeStep& step, int seeds) {
    const Result r = measure(step, seeds);
    const int encoder = step.problem(0).stages[0].window * step.encoder_size / step.size;
    fmt::print("{:>3}{:>4}{:>6}{:>4}{:>6.1f}{:>7.1f}{:>8}{:>9}", step.stages, step.micro_batches, step.size,
               step.pipelines, step.load, step.sigma, step.wider,
               encoder > 0 ? fmt::format("{}", encoder) : "-");
    fmt::print("{:>11.1f}%{:>7.1f}%{:>11.1f}%{:>7.1f}%{:>7.1f}%{:>11.1f}%{:>7.1f}%\n", 100 * r.text,
               100 * r.worst_text, 100 * r.larger, 100 * r.worst_larger, 100 * r.bound, 100 * r.text_bound,
               100 * r.fifo);
}

/// Steps in which the encoder can keep the pipeline fed (unit/schedule/pipeline_steps.hpp).
void feeding() {
    constexpr int kSteps = 1000;
    int as_text = 0;
    double worst = 0, fifo = 0;
    for (int seed = 0; seed < kSteps; ++seed) {
        const auto step = maestro::schedule_test::fed_step(static_cast<std::uint64_t>(seed));
        const double over = make_plan("wavefront", step.problem(), 1).makespan_s / step.text_alone_s() - 1;
        as_text += over <= 1e-9 ? 1 : 0;
        worst = std::max(worst, over);
        fifo += (make_plan("fifo", step.problem(), 1).makespan_s / step.text_alone_s() - 1) / kSteps;
    }
    fmt::print(
        "{} of {} steps that meet the conditions end with text alone (the worst {:.2g}% later; fifo {:.1f}% "
        "later on average)\n",
        as_text, kSteps, 100 * worst, 100 * fifo);
}

void gaps(int seeds) {
    heading("micro-batches of unlike samples");
    for (const int p : {4, 8})
        for (const int m : {16, 32})
            for (const int k : {1, 4})
                for (const double load : {0.5, 0.7, 0.9})
                    row({.stages = p, .micro_batches = m, .pipelines = k, .load = load}, seeds);
    heading("encoder micro-batches of two and four samples");
    for (const int size : {2, 4})
        for (const int k : {1, 4})
            for (const double load : {0.5, 0.9})
                row({.pipelines = k, .load = load, .encoder_size = size}, seeds);
    heading("short steps");
    for (const int m : {4, 8})
        for (const int k : {1, 4})
            for (const double load : {0.5, 0.9})
                row({.micro_batches = m, .pipelines = k, .load = load}, seeds);
    heading("micro-batches of one sample");
    for (const double sigma : {0.1, 0.2, 0.6})
        for (const int k : {1, 4}) row({.size = 1, .pipelines = k, .sigma = sigma}, seeds);
}

void windows(int seeds) {
    heading("windows of the stages");
    for (const int wider : {0, 1, 2, 4}) {
        for (const int k : {1, 4}) row({.pipelines = k, .wider = wider}, seeds);
        for (const double sigma : {0.1, 0.6}) row({.size = 1, .sigma = sigma, .wider = wider}, seeds);
    }
    heading("windows of the encoder");
    for (const int k : {1, 4})
        for (const double window : {2.0 / 3, 1.0, 4.0 / 3, 2.0, 0.0})
            for (const int spare : {0, 1})
                if (window > 0 || spare == 0)
                    row({.micro_batches = 32,
                         .pipelines = k,
                         .encoder_window = window,
                         .encoder_spare = spare},
                        seeds);
}

void planning_times() {
    fmt::print("\ntime of planning, one core, four encoders\n");
    for (const int k : {1, 4, 16})
        for (const int size : {1, 4})
            for (const int m : {4, 16, 64}) {
                fmt::print("{:>5} samples, k {:>2}, m {:>2}, size {}:", 4 * k * size * m, k, m, size);
                for (const int p : {1, 4, 8}) {
                    const UnlikeStep step{
                        .stages = p, .micro_batches = m, .size = size, .sub_problems = 4, .pipelines = k};
                    const Problem problem = step.problem(1);
                    double best = 1e9;
                    for (int i = 0; i < 3; ++i) {
                        const auto start = std::chrono::steady_clock::now();
                        make_plan("wavefront", problem, 1);
                        const std::chrono::duration<double> elapsed_s =
                            std::chrono::steady_clock::now() - start;
                        best = std::min(best, elapsed_s.count());
                    }
                    fmt::print("   p {}: {:>7.2f} ms", p, best * 1e3);
                }
                fmt::print("\n");
            }
}

}  // namespace

int main(int argc, char** argv) {
    const int seeds = argc > 1 ? std::atoi(argv[1]) : 10;
    const std::string_view only = argc > 2 ? argv[2] : "";
    if (seeds < 1) {
        fmt::print(stderr, "usage: pipeline_bench [SEEDS] [feeding | gaps | windows | times]\n");
        return 64;
    }
    if (only.empty() || only == "feeding") feeding();
    if (only.empty() || only == "gaps") gaps(seeds);
    if (only.empty() || only == "windows") windows(seeds);
    if (only.empty() || only == "times") planning_times();
    return 0;
}
