#include "workload/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "workload/models.hpp"

namespace maestro::workload {

namespace {

constexpr double kNominalRate = 1e11;  ///< FLOP/s; only ratios matter to the plan

struct Polynomial {
    double linear = 0, square = 0;
    double operator()(double n) const { return (linear * n + square * n * n) / kNominalRate; }
};

/// Through (a, fa) and (b, fb), and through the origin.
Polynomial fit(double a, double fa, double b, double fb) {
    const double square = (fb / b - fa / a) / (b - a);
    return {fa / a - square * a, square};
}

struct SectionCost {
    Polynomial forward, backward;
};

SectionCost probe(const config::Deck& deck, int section, std::int32_t marker) {
    const model::ModelSpec spec = spec_of(deck, section);
    model::Role role = role_of(deck, section, marker);
    double lengths[2];
    model::Footprint counts[2];
    for (int i = 0; i < 2; ++i) {
        model::SampleShape shape;
        if (spec.kind == model::ModelSpec::Kind::vision) {
            const int side = spec.patch * spec.merge * (i == 0 ? 2 : 6);
            shape = {.tokens = 1, .pictures = {{side, side}}, .weight = 1};
            lengths[i] = std::pow(side / spec.patch, 2);
        } else {
            shape = {.tokens = i == 0 ? 32 : 256, .pictures = {}, .weight = 1};
            lengths[i] = static_cast<double>(shape.tokens);
        }
        counts[i] = model::measure(spec, role, std::span(&shape, 1));
    }
    return {fit(lengths[0], counts[0].forward_flops, lengths[1], counts[1].forward_flops),
            fit(lengths[0], counts[0].backward_flops, lengths[1], counts[1].backward_flops)};
}

}  // namespace

schedule::Problem problem_of(const config::Deck& deck, const std::vector<int>& windows) {
    schedule::Problem problem;
    problem.world = deck.graph.world;
    for (std::size_t s = 0; s < deck.graph.sections.size(); ++s) {
        const graph::Section& section = deck.graph.sections[s];
        problem.sections.push_back({.replicas = section.layout.dp,
                                    .first_rank = section.first_rank,
                                    .micro_batch = section.micro_batch,
                                    .window = windows[s],
                                    .backward = section.backward,
                                    .loss = section.loss});
    }
    for (const graph::Edge& e : deck.graph.edges) problem.edges.push_back({e.from, e.to, e.gradient});
    return problem;
}

std::string describe_load(const config::Deck& deck, const std::vector<schedule::SampleCost>& costs) {
    std::vector<double> loads(deck.sections.size(), 0.0);
    for (const schedule::SampleCost& cost : costs)
        for (std::size_t s = 0; s < loads.size(); ++s)
            loads[s] += (cost.sections[s].forward_s + cost.sections[s].backward_s) /
                        deck.graph.sections[s].layout.ranks();
    const double largest = std::max(*std::max_element(loads.begin(), loads.end()), 1e-300);
    std::string text;
    for (std::size_t s = 0; s < loads.size(); ++s)
        text += fmt::format("{}{} {:.2f}{}", s == 0 ? "" : ", ", deck.graph.sections[s].name,
                            loads[s] / largest, loads[s] == largest ? " (critical)" : "");
    return "work per rank, by the cost model: " + text;
}

std::vector<schedule::SampleCost> sample_costs(const config::Deck& deck, std::int32_t marker,
                                               const SampleTable& table) {
    std::vector<SectionCost> sections;
    for (std::size_t s = 0; s < deck.sections.size(); ++s)
        sections.push_back(probe(deck, static_cast<int>(s), marker));
    std::vector<schedule::SampleCost> costs(static_cast<std::size_t>(table.size()));
    for (std::int64_t i = 0; i < table.size(); ++i) {
        auto& cost = costs[static_cast<std::size_t>(i)];
        cost.id = i;
        for (std::size_t s = 0; s < sections.size(); ++s) {
            schedule::TaskCost task;
            task.active = table.activates(i, static_cast<int>(s));
            const auto count = [&](double n) {
                task.forward_s += sections[s].forward(n);
                if (deck.graph.sections[s].backward) task.backward_s += sections[s].backward(n);
            };
            const model::Geometry geometry = geometry_of(deck, static_cast<int>(s));
            if (geometry.patch == 0)
                count(static_cast<double>(table.length(i, static_cast<int>(s))));
            else
                for (const auto& p : table.shape(i).pictures)
                    count(static_cast<double>(model::picture_tokens(p.height, p.width, geometry)) *
                          geometry.merge * geometry.merge);
            cost.sections.push_back(task);
        }
    }
    return costs;
}

}  // namespace maestro::workload
