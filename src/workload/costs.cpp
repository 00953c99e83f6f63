#include "workload/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "workload/models.hpp"

namespace maestro::workload {

namespace {

constexpr double kMostProbed = 256;                 ///< samples of a micro-batch
constexpr int kProbedSide = 16, kProbedText = 256;  ///< tokens of a picture's side, and beside it
constexpr double kProbedPicture = kProbedSide * kProbedSide;
constexpr double kNominalRate = 1e11;  ///< FLOP/s; only ratios matter to a plan

/// Of the lengths that a section meets in the samples.
struct Lengths {
    double longest = 1;
    double sum = 0;
    std::int64_t samples = 0;  ///< with work for the section
};

/// A cost per token or patch at some lengths; between them it is linear in the length, which is exact for
/// costs that are polynomials of degree two.
struct LengthCost {
    std::vector<double> lengths, forward, backward;
    double picture_forward = 0, picture_backward = 0;  ///< more for each of them that is a picture's

    double at(const std::vector<double>& each, double n) const {
        if (lengths.size() == 1 || n <= lengths.front()) return n * each.front();
        std::size_t k = 1;
        while (k + 1 < lengths.size() && lengths[k] < n) ++k;
        const double share = (n - lengths[k - 1]) / (lengths[k] - lengths[k - 1]);
        return n * (each[k - 1] + share * (each[k] - each[k - 1]));
    }
};

/// 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: four to an octave.
int quarter_octave(int i) {
    return i < 3 ? i + 1 : (4 + (i + 1) % 4) << ((i + 1) / 4 - 1);
}

/// Runs a section's own code on the meta backend, over micro-batches of equal samples.
class Probe {
public:
    Probe(const config::Deck& deck, int section, std::int32_t marker, const backend::DeviceRates* rates,
          const Lengths& lengths)
        : spec_(spec_of(deck, section)),
          role_(role_of(deck, section, marker)),
          expansion_(expansion_of(deck, section)),
          rates_(rates),
          longest_(std::max(lengths.longest, expansion_.patch > 0 ? kProbedText + kProbedPicture : 0.0)),
          others_(static_cast<double>(deck.sections[static_cast<std::size_t>(section)].micro_batch - 1) *
                  lengths.sum / static_cast<double>(std::max<std::int64_t>(lengths.samples, 1))) {}

    LengthCost run() const {
        LengthCost cost;
        for (int i = 0;; ++i) {
            const double length = add(cost, i);
            if (i > 0 && (!rates_ || length >= longest_)) break;
        }
        if (expansion_.patch > 0) add_picture_tokens(cost);
        return cost;
    }

private:
    struct Seconds {
        double forward, backward;
    };
    /// Of one sample. Counts are polynomials in its length; times are not, since rates depend on shapes and
    /// an operation costs something in itself: others of its length fill the micro-batch to its usual size.
    Seconds measure(const model::SampleShape& shape, double length) const {
        const double count = rates_ ? std::round(std::min(1 + others_ / length, kMostProbed)) : 1;
        const std::vector<model::SampleShape> samples(static_cast<std::size_t>(count), shape);
        const model::Footprint f =
            model::measure(spec_, role_, samples, true, rates_ ? *rates_ : backend::DeviceRates{});
        if (rates_) return {f.forward_s / count, f.backward_s / count};
        return {f.forward_flops / kNominalRate / count, f.backward_flops / kNominalRate / count};
    }

    /// Appends the i-th length; returns it.
    double add(LengthCost& cost, int i) const {
        model::SampleShape shape;
        double length = 0;
        if (spec_.kind == model::ModelSpec::Kind::vision) {
            const int side = spec_.patch * spec_.merge * (rates_ ? quarter_octave(i) : (i == 0 ? 2 : 6));
            shape = {.tokens = 1, .pictures = {{side, side}}, .weight = 1};
            length = std::pow(side / spec_.patch, 2);
        } else {
            length = rates_ ? 4.0 * quarter_octave(2 * i) : (i == 0 ? 32 : 256);
            shape = {.tokens = static_cast<std::int64_t>(length), .pictures = {}, .weight = 1};
        }
        const Seconds seconds = measure(shape, length);
        cost.lengths.push_back(length);
        cost.forward.push_back(seconds.forward / length);
        cost.backward.push_back(seconds.backward / length);
        return length;
    }

    /// A token that stands for a part of a picture is neither embedded nor predicted.
    void add_picture_tokens(LengthCost& cost) const {
        const int pixels = kProbedSide * expansion_.patch * expansion_.merge;
        constexpr double kWhole = kProbedText + kProbedPicture;
        const Seconds seconds =
            measure({.tokens = kProbedText + 1, .pictures = {{pixels, pixels}}, .weight = 1}, kWhole);
        cost.picture_forward = (seconds.forward - cost.at(cost.forward, kWhole)) / kProbedPicture;
        cost.picture_backward = (seconds.backward - cost.at(cost.backward, kWhole)) / kProbedPicture;
    }

    model::ModelSpec spec_;
    model::Role role_;
    model::Geometry expansion_;
    const backend::DeviceRates* rates_;
    double longest_;
    double others_;  ///< length of the other samples of a micro-batch, on average
};

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

schedule::Problem problem_of(const graph::SectionGraph& graph, const config::Cluster* cluster) {
    schedule::Problem problem;
    problem.world = graph.world;
    for (const graph::Section& s : graph.sections)
        problem.sections.push_back({.replicas = s.layout.dp,
                                    .first_rank = s.first_rank,
                                    .micro_batch = s.micro_batch,
                                    .window = s.window,
                                    .backward = s.backward,
                                    .loss = s.loss});
    for (const graph::Edge& e : graph.edges)
        problem.edges.push_back({e.from, e.to, e.gradient,
                                 cluster ? link_from(graph, *cluster, e.from).latency_s : 0, e.colocated});
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
    std::vector<Lengths> lengths(deck.sections.size());
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
        for (int s = 0; s < count; ++s) {
            Lengths& met = lengths[static_cast<std::size_t>(s)];
            if (table.activates(i, s)) ++met.samples;
            lengths_of(i, s, [&](double n) {
                met.longest = std::max(met.longest, n);
                met.sum += n;
            });
        }
    std::optional<backend::DeviceRates> rates;
    if (cluster) rates = rates_of(cluster->device);
    std::vector<LengthCost> sections;
    struct Output {
        std::int64_t width = 0;
        double element_bytes = 0, bandwidth = 0;
    };
    std::vector<Output> outputs(deck.sections.size());  // of the sections that send on, with a cluster
    for (int s = 0; s < count; ++s) {
        sections.push_back(
            Probe(deck, s, marker, rates ? &*rates : nullptr, lengths[static_cast<std::size_t>(s)]).run());
        if (!cluster || deck.graph.sections[static_cast<std::size_t>(s)].loss) continue;
        const model::Role role = role_of(deck, s, marker);
        outputs[static_cast<std::size_t>(s)] = {role.output_width, static_cast<double>(size_of(role.compute)),
                                                link_from(deck.graph, *cluster, s).bandwidth};
    }
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
                task.backward_s += own.at(own.backward, n);
            });
            if (const model::Geometry expansion = expansion_of(deck, s); expansion.patch > 0) {
                double pictures = 0;
                for (const auto& p : table.shape(i).pictures)
                    pictures += static_cast<double>(model::picture_tokens(p.height, p.width, expansion));
                task.forward_s += pictures * own.picture_forward;
                task.backward_s += pictures * own.picture_backward;
            }
            if (!deck.graph.sections[static_cast<std::size_t>(s)].backward) task.backward_s = 0;
            if (const Output& out = outputs[static_cast<std::size_t>(s)]; out.bandwidth > 0)
                task.transfer_s = static_cast<double>(table.output_rows(i, s) * out.width) *
                                  out.element_bytes / out.bandwidth;
            cost.sections.push_back(task);
        }
    }
    return costs;
}

const config::Link& link_among(const config::Cluster& cluster, int first, int last) {
    const auto node_of = [&](int rank) { return rank / static_cast<int>(cluster.ranks_per_node); };
    return node_of(first) == node_of(last) ? cluster.node : cluster.network;
}

const config::Link& link_from(const graph::SectionGraph& graph, const config::Cluster& cluster, int section) {
    int first = graph.world, last = 0;
    const auto reach = [&](int s) {
        const graph::Section& other = graph.sections[static_cast<std::size_t>(s)];
        first = std::min(first, other.first_rank);
        last = std::max(last, other.first_rank + other.layout.ranks() - 1);
    };
    reach(section);
    for (const graph::Edge& e : graph.edges)
        if (e.from == section) reach(e.to);
    return link_among(cluster, first, last);
}

}  // namespace maestro::workload
