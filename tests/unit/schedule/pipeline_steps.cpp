#include "unit/schedule/pipeline_steps.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "unit/schedule/problems.hpp"

namespace maestro::schedule_test {

using schedule::Problem;
using schedule::SampleCost;
using schedule::StageShape;
using schedule::TaskCost;

FedStep fed_step(std::uint64_t seed) {
    const Random random(seed, "fed");
    std::uint64_t next = 0;
    const auto below = [&](int n) {
        return static_cast<int>(random.bits(next++) % static_cast<std::uint64_t>(n));
    };
    FedStep step{.stages = 1 + below(8), .micro_batches = 3 + below(30), .seed = seed};
    const int m = step.micro_batches;
    step.stage_backward_s = step.stage_forward_s * (1 + below(3));
    const double c = step.stage_forward_s + step.stage_backward_s;
    // A picture cannot be the first, nor the last, or it would delay the step.
    std::vector<int> places;
    for (int x = 1; x + 1 < m; ++x)
        if (below(3) == 0) places.push_back(x);
    if (places.empty()) places.push_back(1 + below(m - 2));
    step.pictures = static_cast<int>(places.size());
    double most_forward = 1e9, most_backward = 1e9;
    for (int i = 1; i <= step.pictures; ++i) {
        const int x = places[static_cast<std::size_t>(i - 1)];
        most_forward = std::min(most_forward, x * c / i);
        most_backward = std::min(most_backward, (m - 1 - x) * c / (step.pictures - i + 1));
    }
    const auto at_least_half = [&] { return 0.5 + random.uniform(next++) / 2; };
    step.forward_s = most_forward * at_least_half();
    step.backward_s = most_backward * at_least_half();
    const double most = (m + step.stages - 1) * c / step.pictures;
    const double scale = std::min(1.0, most / (step.forward_s + step.backward_s));
    step.forward_s *= scale;
    step.backward_s *= scale;
    return step;
}

Problem FedStep::problem() const {
    Problem single{.stages = {{.groups = 1, .window = 0},
                              {.section = 1, .groups = 1, .first_lane = 1, .window = 1, .loss = true}},
                   .edges = {{0, 1, true}},
                   .lanes = 2,
                   .samples = {}};
    const TaskCost language{stages * stage_forward_s, stages * stage_backward_s, true};
    for (int i = 0; i < micro_batches; ++i)
        single.samples.push_back(
            {.id = i,
             .stages = {i < pictures ? TaskCost{forward_s, backward_s, true} : TaskCost{}, language}});
    // In any order of the data.
    for (std::size_t i = single.samples.size(); i > 1; --i)
        std::swap(single.samples[i - 1], single.samples[(seed * 31 + i * 17) % i]);
    return in_stages(single, {1, stages});
}

double UnlikeStep::in_flight() const {
    // In units of what a stage takes for a micro-batch.
    const double on_encoder = load / (pipelines * share);
    return pipelines * share * (stages + wider + on_encoder);
}

Problem UnlikeStep::problem(std::uint64_t seed) const {
    const Random random(seed, "unlike");
    std::uint64_t next = 0;
    const auto log_normal = [&] { return std::exp(sigma * random.normal(next++)); };
    const int groups = sub_problems * pipelines, samples = micro_batches * size * groups;
    Problem single{
        .stages = {{.section = 0, .groups = sub_problems, .micro_batch = encoder_size, .window = 0},
                   {.section = 1,
                    .groups = groups,
                    .first_lane = sub_problems,
                    .micro_batch = size,
                    .window = 1,
                    .loss = true}},
        .edges = {{0, 1, true}},
        .lanes = sub_problems + groups,
        .samples = {}};
    if (encoder_window > 0)
        single.stages[0].window =
            (static_cast<int>(std::ceil(encoder_window * in_flight())) + encoder_spare) * size / encoder_size;
    double language = 0, vision = 0;
    for (int i = 0; i < samples; ++i) {
        const double text = log_normal(), picture = log_normal();
        const bool pictured = static_cast<int>((i + 1) * share) > static_cast<int>(i * share);
        single.samples.push_back({.id = i, .stages = {{}, {text, 2 * text, true}}});
        language += text;
        if (!pictured) continue;
        single.samples.back().stages[0] = {picture, 2 * picture, true};
        vision += picture;
    }
    for (std::size_t i = single.samples.size(); i > 1; --i)
        std::swap(single.samples[i - 1], single.samples[random.bits(next++) % i]);
    for (SampleCost& sample : single.samples) {
        const double scale = load * language / (stages * groups) / (vision / sub_problems);
        sample.stages[0].forward_s *= scale;
        sample.stages[0].backward_s *= scale;
    }
    Problem problem = in_stages(single, {1, stages});
    for (StageShape& shape : problem.stages)
        if (shape.section == 1 && !shape.loss) shape.window += wider;
    return problem;
}

Problem text_alone(Problem problem) {
    for (SampleCost& sample : problem.samples) sample.stages[0] = {};
    return problem;
}

}  // namespace maestro::schedule_test
