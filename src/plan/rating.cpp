#include "plan/rating.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "ops/dispatch.hpp"
#include "workload/cost_model.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {

namespace {

/// Each section on separate ranks.
std::vector<int> apart(std::size_t sections) {
    std::vector<int> host_of(sections);
    std::iota(host_of.begin(), host_of.end(), 0);
    return host_of;
}

}  // namespace

const std::vector<int>& Balance::layers_of(std::size_t section, const Choice& choice) {
    if (!choice.layout.layers.empty()) return choice.layout.layers;
    const auto [known, is_new] = layers_.try_emplace(
        Key(section, choice.layout.stage_count(), choice.recompute, choice.recompute_layers));
    if (!is_new) return known->second;
    // They depend on neither the other degrees nor the other sections.
    std::vector<Choice> choices(subject_.scenario.graph.sections.size());
    choices[section].layout.pp = choice.layout.stage_count();
    choices[section].recompute = choice.recompute;
    choices[section].recompute_layers = choice.recompute_layers;
    std::vector<graph::Refusal> refusals;
    workload::Scenario made = with_choices(subject_.scenario, choices, apart(choices.size()), refusals);
    if (!refusals.empty()) return known->second;
    workload::balance_stages(made, subject_.table);
    for (int k = 0; k < choice.layout.stage_count(); ++k)
        known->second.push_back(
            static_cast<int>(made.layers[made.graph.stage_of(static_cast<int>(section), k)].size()));
    return known->second;
}

workload::Scenario Balance::scenario(std::vector<Choice> choices, const std::vector<int>& host_of,
                                     std::vector<graph::Refusal>& refusals) {
    for (std::size_t s = 0; s < choices.size(); ++s)
        if (choices[s].layout.stage_count() > 1) choices[s].layout.layers = layers_of(s, choices[s]);
    return with_choices(subject_.scenario, choices, host_of, refusals);
}

namespace {

/// The links of a stage where its ranks are laid on nodes as well as they can be.
parallel::MeshLinks best_links(const workload::Scenario& scenario, int stage) {
    const config::Cluster& cluster = *scenario.cluster;
    const graph::Layout& layout = scenario.graph.section_of(stage).layout;
    const auto cost = [&](std::int64_t ranks) {
        const config::Link link =
            (ranks <= cluster.ranks_per_node ? cluster.node : cluster.network).of_collectives();
        return parallel::LinkCost{link.latency_s, link.bandwidth};
    };
    parallel::MeshLinks links = workload::mesh_links_of(scenario, stage);
    links.tp = cost(layout.tp);
    links.cp = cost(layout.stage_ranks());
    if (!cluster.collectives.empty()) {
        const auto nodes = [&](int ranks) {
            const auto each = static_cast<int>(cluster.ranks_per_node);
            return (ranks + each - 1) / each;
        };
        links.tp_nodes = nodes(layout.tp);
        links.cp_nodes = std::min(nodes(layout.stage_ranks()), layout.cp);
        links.fewest_nodes = true;
    }
    if (const int ranks = layout.expert_ranks(); ranks > 1 && ranks <= cluster.ranks_per_node)
        links.expert_nodes.assign(static_cast<std::size_t>(ranks), 0);
    return links;
}

/// What a rank of a stage takes and needs, whatever dp is.
struct StageTimes {
    std::vector<double> seconds;  ///< of each sample of all steps, forward and backward
    double fixed_bytes = 0;       ///< weights and gradients
    double shared_elements = 0;   ///< trainable ones, of which the ranks along dp and cp share the moments
    double saved_bytes = 0;       ///< of a micro-batch of the longest samples
};

/// Each layer's share, or what stands before or after the layers: a + factor * b.
StageTimes added(StageTimes a, const StageTimes& b, double factor) {
    for (std::size_t i = 0; i < a.seconds.size(); ++i) a.seconds[i] += factor * b.seconds[i];
    a.fixed_bytes += factor * b.fixed_bytes;
    a.shared_elements += factor * b.shared_elements;
    a.saved_bytes += factor * b.saved_bytes;
    return a;
}

/// The times of the stages of a section, by its choices.
class Work {
public:
    Work(const Subject& subject, int section, Balance& balance)
        : subject_(subject), section_(section), balance_(balance), alike_(alike()) {
        for (const std::vector<std::int64_t>& ids : subject.steps)
            samples_.insert(samples_.end(), ids.begin(), ids.end());
    }

    /// Returns them for each stage of the choice. Empty where the choice does not fit.
    std::vector<StageTimes> of(Choice choice) {
        const graph::Layout layout = choice.layout;
        choice.layout.dp = std::lcm(layout.stage_ranks(), layout.expert_ranks()) / layout.stage_ranks();
        if (!alike_) return measure(subject_.scenario, choice);
        // A stage takes what its layers take, each of them the same, and what stands before the first and
        // after the last layer of the model.
        Choice shape = choice;
        shape.layout.pp = shape.layout.chunks = 1;
        shape.layout.layers.clear();
        if (!(shape == last_shape_)) {
            last_shape_ = shape;
            parts_.clear();
            const std::vector<StageTimes> one = measure(with_layers(1), shape),
                                          two = measure(with_layers(2), shape);
            Choice halves = shape;
            halves.layout.pp = 2;
            halves.layout.layers = {1, 1};
            if (!one.empty() && !two.empty()) parts_ = measure(with_layers(2), halves);
            if (parts_.size() == 2) {
                const StageTimes layer = added(two[0], one[0], -1);
                parts_ = {layer, added(parts_[0], layer, -1), added(parts_[1], layer, -1), one[0]};
                // A stage keeps the rows that it sends or receives as well.
                parts_[1].saved_bytes = parts_[2].saved_bytes = 0;
            }
        }
        if (parts_.size() != 4) return {};
        if (layout.stage_count() == 1)
            return {added(parts_[3], parts_[0], subject_.scenario.models[index()].layers - 1.0)};
        const std::vector<int> layers = balance_.layers_of(index(), choice);
        std::vector<StageTimes> stages;
        for (const int n : layers) {
            stages.push_back(added(parts_[0], parts_[0], n - 1.0));
            if (stages.size() == 1) stages.back() = added(std::move(stages.back()), parts_[1], 1);
            if (stages.size() == layers.size()) stages.back() = added(std::move(stages.back()), parts_[2], 1);
        }
        return stages;
    }

private:
    std::size_t index() const { return static_cast<std::size_t>(section_); }
    /// Whether all layers of the section are built alike and take the same.
    bool alike() const {
        const workload::Scenario& scenario = subject_.scenario;
        const model::ModelSpec& model = scenario.models[index()];
        const workload::Tuning& tuning = scenario.tuning[index()];
        bool alike = tuning.frozen.empty() && tuning.recompute_layers == 0 && model.deepstack.empty();
        for (int layer = 0; layer < model.layers; ++layer) alike = alike && model.first_like(layer) == 0;
        for (const graph::Edge& e : scenario.graph.edges)
            if (e.to == section_) alike = alike && scenario.models[e.from].deepstack.empty();
        return alike;
    }
    workload::Scenario with_layers(int layers) const {
        workload::Scenario scenario = subject_.scenario;
        model::ModelSpec& model = scenario.models[index()];
        model.mixers = {model.mixer(0)};
        model.mixer_of_layer.clear();
        model.layers = layers;
        return scenario;
    }
    std::vector<StageTimes> measure(workload::Scenario scenario, const Choice& choice) {
        const std::size_t sections = scenario.graph.sections.size();
        for (graph::Section& section : scenario.graph.sections) section.window = 0;
        std::vector<Choice> choices(sections);
        choices[index()] = choice;
        choices[index()].layout.first_rank = -1;
        if (choice.layout.stage_count() > 1 && choice.layout.layers.empty())
            choices[index()].layout.layers = balance_.layers_of(index(), choice);
        std::vector<graph::Refusal> refusals;
        scenario = with_choices(std::move(scenario), choices, apart(sections), refusals);
        if (!refusals.empty()) return {};
        const workload::CostModel costs(scenario, subject_.table, subject_.probes,
                                        {.links = [&](int stage) { return best_links(scenario, stage); },
                                         .section = section_,
                                         .samples = samples_});
        std::vector<StageTimes> stages(static_cast<std::size_t>(choice.layout.stage_count()));
        for (const std::int64_t id : samples_) {
            const schedule::SampleCost cost = costs.of(id);
            for (std::size_t k = 0; k < stages.size(); ++k)
                stages[k].seconds.push_back(cost.stages[k].forward_s + cost.stages[k].backward_s);
        }
        const auto longest =
            subject_.table.longest_micro_batch(scenario.full_micro_batch(section_), section_);
        for (std::size_t k = 0; k < stages.size(); ++k) {
            const int stage = scenario.graph.stage_of(section_, static_cast<int>(k));
            workload::Probe probe{.spec = scenario.models[index()],
                                  .role = workload::role_of(scenario, stage),
                                  .shape = workload::mesh_shape_of(scenario, stage),
                                  .options = {.train = subject_.options.train,
                                              .traits = subject_.device.traits,
                                              .worst_case = choice.layout.cp > 1}};
            for (const model::SampleShape& shape : longest) probe.add(shape);
            const model::Footprint& footprint = subject_.probes.footprint(probe);
            stages[k].fixed_bytes = static_cast<double>(footprint.parameters);
            stages[k].shared_elements = static_cast<double>(footprint.gradients) /
                                        static_cast<double>(size_of(ops::accumulate_type(scenario.compute)));
            stages[k].saved_bytes = static_cast<double>(footprint.saved);
        }
        return stages;
    }

    const Subject& subject_;
    int section_;
    Balance& balance_;
    bool alike_;
    std::vector<std::int64_t> samples_;  ///< of all steps
    Choice last_shape_ = {.layout = {.dp = 0}};
    /// A layer, what stands before the first and after the last one of several stages, and one stage of one
    /// layer.
    std::vector<StageTimes> parts_;
};

/// Bounds of a section with a choice but for dp.
class Bounds {
public:
    Bounds(const Subject& subject, int section, const Choice& choice, const std::vector<StageTimes>& stages)
        : subject_(subject), section_(section) {
        const graph::Layout& l = choice.layout;
        const auto pp = static_cast<std::size_t>(l.pp);
        // Where replicas share experts, the part of the lane that has a sample does not work alone.
        alone_ = l.stage_ranks() % l.expert_ranks() == 0;
        std::vector<std::vector<double>> ranks(pp, std::vector<double>(stages.front().seconds.size(), 0.0));
        std::vector<double> chains(stages.front().seconds.size(), 0.0);
        for (std::size_t k = 0; k < stages.size(); ++k)
            for (std::size_t i = 0; i < chains.size(); ++i) {
                ranks[k % pp][i] += stages[k].seconds[i];
                chains[i] += stages[k].seconds[i];
            }
        std::size_t busiest = 0;
        double most_s = -1;
        for (std::size_t r = 0; r < pp; ++r)
            if (const double sum = std::accumulate(ranks[r].begin(), ranks[r].end(), 0.0); sum > most_s) {
                most_s = sum;
                busiest = r;
            }
        std::size_t first = 0;
        for (const std::vector<std::int64_t>& ids : subject.steps) {
            const auto begin = static_cast<std::ptrdiff_t>(first),
                       end = begin + static_cast<std::ptrdiff_t>(ids.size());
            first += ids.size();
            Step& step = steps_.emplace_back();
            step.busiest.assign(ranks[busiest].begin() + begin, ranks[busiest].begin() + end);
            std::sort(step.busiest.begin(), step.busiest.end(), std::greater<>());
            step.busiest_s = std::accumulate(step.busiest.begin(), step.busiest.end(), 0.0);
            step.all_s = std::accumulate(chains.begin() + begin, chains.begin() + end, 0.0);
            step.longest_s = *std::max_element(chains.begin() + begin, chains.begin() + end);
        }
        for (std::size_t r = 0; r < pp; ++r) {
            StageTimes rank;
            for (std::size_t k = r; k < stages.size(); k += pp) {
                rank.fixed_bytes += stages[k].fixed_bytes;
                rank.shared_elements += stages[k].shared_elements;
                rank.saved_bytes += stages[k].saved_bytes;
            }
            memory_.push_back(std::move(rank));
        }
    }

    Rated with(Choice choice) const {
        const double dp = choice.layout.dp;
        Rated rated{.choice = std::move(choice)};
        for (const Step& step : steps_) {
            double least_s = step.busiest_s / dp;
            if (alone_) {
                least_s = std::max(least_s, step.longest_s);
                // Of dp + 1 samples, two are on one replica.
                const auto n = static_cast<std::size_t>(dp);
                if (step.busiest.size() > n)
                    least_s = std::max(least_s, step.busiest[n - 1] + step.busiest[n]);
            }
            rated.busiest_s += least_s;
            rated.mean_s += step.all_s / (dp * rated.choice.layout.pp);
        }
        const workload::Scenario& scenario = subject_.scenario;
        const graph::Layout& layout = rated.choice.layout;
        const double moments = 2.0 * static_cast<double>(size_of(ops::accumulate_type(scenario.compute)));
        // The most ranks that may hold the same weights.
        double copies = dp * layout.cp;
        if (scenario.models[static_cast<std::size_t>(section_)].experts.count > 0)
            copies = std::max(copies, dp * layout.stage_ranks() / layout.expert_ranks());
        rated.least_bytes = kNone;
        for (const StageTimes& rank : memory_) {
            const double bytes = rank.fixed_bytes + rank.saved_bytes +
                                 moments * rank.shared_elements / copies +
                                 subject_.device.libraries.workspace + subject_.device.libraries.reserve;
            rated.bytes = std::max(rated.bytes, bytes);
            rated.least_bytes = std::min(rated.least_bytes, bytes);
        }
        return rated;
    }

private:
    struct Step {
        std::vector<double> busiest;      ///< seconds of each sample on the busiest pipeline rank, descending
        double busiest_s = 0, all_s = 0;  ///< sums over the samples, there and over all pipeline ranks
        double longest_s = 0;             ///< of a sample on all pipeline ranks, one after another
    };
    const Subject& subject_;
    int section_;
    bool alone_ = true;
    std::vector<Step> steps_;
    std::vector<StageTimes> memory_;  ///< by pipeline rank, without seconds
};

}  // namespace

double most_memory(const workload::RankDevice& device) {
    return device.gpu ? device.memory : std::max(device.ranks_per_node, 1) * device.memory;
}

Ratings rate(const Subject& subject, int ranks) {
    Ratings ratings;
    Balance balance(subject);
    const double memory = most_memory(subject.device);
    for (int s = 0; s < static_cast<int>(subject.scenario.graph.sections.size()); ++s) {
        std::vector<Rated>& rated = ratings.sections.emplace_back();
        Rated& smallest = ratings.smallest.emplace_back();
        smallest.bytes = kNone;
        std::vector<Choice> choices = choices_of(subject.scenario, s, ranks, subject.is_fixed);
        const auto key_of = [](const Choice& c) {
            const graph::Layout& l = c.layout;
            return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch, c.recompute,
                              c.recompute_layers, l.pp, l.chunks, l.dp);
        };
        std::sort(choices.begin(), choices.end(),
                  [&](const Choice& a, const Choice& b) { return key_of(a) < key_of(b); });
        Work work(subject, s, balance);
        Choice last = {.layout = {.dp = 0}};
        std::optional<Bounds> bounds;
        for (const Choice& choice : choices) {
            Choice shape = choice;
            shape.layout.dp = 1;
            if (!(shape == last)) {
                last = shape;
                bounds.reset();
                if (const std::vector<StageTimes> stages = work.of(choice); !stages.empty())
                    bounds.emplace(subject, s, choice, stages);
            }
            if (!bounds) continue;
            Rated of_choice = bounds->with(choice);
            if (of_choice.bytes < smallest.bytes) smallest = of_choice;
            if (of_choice.bytes <= memory) rated.push_back(std::move(of_choice));
        }
        std::stable_sort(rated.begin(), rated.end(),
                         [](const Rated& a, const Rated& b) { return a.busiest_s < b.busiest_s; });
    }
    return ratings;
}

}  // namespace maestro::plan
