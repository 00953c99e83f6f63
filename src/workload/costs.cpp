#include "workload/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "workload/models.hpp"

namespace maestro::workload {

namespace {

constexpr std::int64_t kMostProbed = 64;  ///< samples of a micro-batch
constexpr double kNominalRate = 1e11;     ///< FLOP/s; only ratios matter to a plan

/// A cost per token or patch at some lengths; between them it is linear in the length, which is exact for
/// costs that are polynomials of degree two.
struct LengthCost {
    std::vector<double> lengths, forward, backward;

    double at(const std::vector<double>& each, double n) const {
        if (lengths.size() == 1 || n <= lengths.front()) return n * each.front();
        std::size_t k = 1;
        while (k + 1 < lengths.size() && lengths[k] < n) ++k;
        const double share = (n - lengths[k - 1]) / (lengths[k] - lengths[k - 1]);
        return n * (each[k - 1] + share * (each[k] - each[k - 1]));
    }
};

/// Of micro-batches of equal samples, by the model's own code on the meta backend.
LengthCost probe(const config::Deck& deck, int section, std::int32_t marker,
                 const backend::DeviceRates* rates, double longest) {
    const model::ModelSpec spec = spec_of(deck, section);
    const model::Role role = role_of(deck, section, marker);
    // Counts are polynomials; times are not, since rates depend on shapes: more lengths, and whole
    // micro-batches.
    const auto batch = rates ? static_cast<std::size_t>(std::min<std::int64_t>(
                                   deck.sections[static_cast<std::size_t>(section)].micro_batch, kMostProbed))
                             : 1;
    LengthCost cost;
    for (int i = 0;; ++i) {
        model::SampleShape shape;
        double length = 0;
        if (spec.kind == model::ModelSpec::Kind::vision) {
            const int side = spec.patch * spec.merge * (rates ? 1 << i : (i == 0 ? 2 : 6));
            shape = {.tokens = 1, .pictures = {{side, side}}, .weight = 1};
            length = std::pow(side / spec.patch, 2);
        } else {
            length = rates ? 16.0 * std::pow(2, i) : (i == 0 ? 32 : 256);
            shape = {.tokens = static_cast<std::int64_t>(length), .pictures = {}, .weight = 1};
        }
        const std::vector<model::SampleShape> samples(batch, shape);
        const model::Footprint f =
            model::measure(spec, role, samples, true, rates ? *rates : backend::DeviceRates{});
        const double all = length * static_cast<double>(batch);
        cost.lengths.push_back(length);
        cost.forward.push_back(rates ? f.forward_s / all : f.forward_flops / kNominalRate / all);
        cost.backward.push_back(rates ? f.backward_s / all : f.backward_flops / kNominalRate / all);
        if (i > 0 && (!rates || length >= longest)) return cost;
    }
}

}  // namespace

backend::DeviceRates rates_of(const config::Device& device) {
    backend::DeviceRates rates{.products = {},
                               .element_flops = device.element_flops,
                               .bytes = device.memory_bandwidth,
                               .operation_s = device.operation_s};
    for (const config::ProductRate& p : device.products)
        rates.products.push_back({p.side, p.fp32_flops, p.bf16_flops});
    return rates;
}

schedule::Problem problem_of(const graph::SectionGraph& graph) {
    schedule::Problem problem;
    problem.world = graph.world;
    for (const graph::Section& s : graph.sections)
        problem.sections.push_back({.replicas = s.layout.dp,
                                    .first_rank = s.first_rank,
                                    .micro_batch = s.micro_batch,
                                    .window = s.window,
                                    .backward = s.backward,
                                    .loss = s.loss});
    for (const graph::Edge& e : graph.edges) problem.edges.push_back({e.from, e.to, e.gradient});
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
                                               const SampleTable& table, const config::Cluster* cluster) {
    const auto count = static_cast<int>(deck.sections.size());
    std::vector<double> longest(deck.sections.size(), 1.0);
    // Of a picture, for a vision section.
    const auto pictures_of = [&](std::int64_t i, int s, const auto& each) {
        const model::Geometry geometry = geometry_of(deck, s);
        for (const auto& p : table.shape(i).pictures)
            each(static_cast<double>(model::picture_tokens(p.height, p.width, geometry)) * geometry.merge *
                 geometry.merge);
    };
    const auto lengths_of = [&](std::int64_t i, int s, const auto& each) {
        if (geometry_of(deck, s).patch > 0)
            pictures_of(i, s, each);
        else
            each(static_cast<double>(table.length(i, s)));
    };
    for (std::int64_t i = 0; i < table.size(); ++i)
        for (int s = 0; s < count; ++s)
            lengths_of(i, s, [&](double n) {
                longest[static_cast<std::size_t>(s)] = std::max(longest[static_cast<std::size_t>(s)], n);
            });
    std::optional<backend::DeviceRates> rates;
    if (cluster) rates = rates_of(cluster->device);
    std::vector<LengthCost> sections;
    for (int s = 0; s < count; ++s)
        sections.push_back(
            probe(deck, s, marker, rates ? &*rates : nullptr, longest[static_cast<std::size_t>(s)]));
    std::vector<schedule::SampleCost> costs(static_cast<std::size_t>(table.size()));
    for (std::int64_t i = 0; i < table.size(); ++i) {
        auto& cost = costs[static_cast<std::size_t>(i)];
        cost.id = i;
        for (int s = 0; s < count; ++s) {
            const LengthCost& own = sections[static_cast<std::size_t>(s)];
            schedule::TaskCost task;
            task.active = table.activates(i, s);
            lengths_of(i, s, [&](double n) {
                task.forward_s += own.at(own.forward, n);
                if (deck.graph.sections[static_cast<std::size_t>(s)].backward)
                    task.backward_s += own.at(own.backward, n);
            });
            if (cluster && !deck.graph.sections[static_cast<std::size_t>(s)].loss) {
                const model::Role role = role_of(deck, s, marker);
                task.transfer_s = static_cast<double>(table.output_rows(i, s) * role.output_width) *
                                  static_cast<double>(size_of(role.compute)) /
                                  link_of(deck, *cluster).bandwidth;
            }
            cost.sections.push_back(task);
        }
    }
    return costs;
}

const config::Link& link_of(const config::Deck& deck, const config::Cluster& cluster) {
    return deck.graph.world <= cluster.ranks_per_node ? cluster.node : cluster.network;
}

}  // namespace maestro::workload
