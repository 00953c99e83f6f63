#include "plan/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "graph/grid.hpp"
#include "ops/dispatch.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
/// Times that are the same but for rounding.
constexpr double kRounding = 1e-9;

/// Each section on separate ranks.
std::vector<int> apart(std::size_t sections) {
    std::vector<int> host_of(sections);
    std::iota(host_of.begin(), host_of.end(), 0);
    return host_of;
}

/// The layers of stages as they are balanced, once for each number of stages of a section.
class Balance {
public:
    explicit Balance(const Subject& subject) : subject_(subject) {}

    /// Returns the layers of each stage of a section with this choice.
    const std::vector<int>& layers_of(std::size_t section, const Choice& choice) {
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
    /// Returns the scenario of the choices with balanced stages; see with_choices().
    workload::Scenario scenario(std::vector<Choice> choices, const std::vector<int>& host_of,
                                std::vector<graph::Refusal>& refusals) {
        for (std::size_t s = 0; s < choices.size(); ++s)
            if (choices[s].layout.stage_count() > 1) choices[s].layout.layers = layers_of(s, choices[s]);
        return with_choices(subject_.scenario, choices, host_of, refusals);
    }

private:
    using Key = std::tuple<std::size_t, int, Recompute, int>;
    const Subject& subject_;
    std::map<Key, std::vector<int>> layers_;
};

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

namespace {

/// Choices of the sections of a set, which share ranks.
struct Row {
    double work_s = 0;    ///< of a lane, at least
    double others_s = 0;  ///< sum of the work of all sections: of equal bounds the lower comes first
    int ranks = 0;
    std::vector<const Rated*> rated;  ///< by section of the set
};

/// A way to put the sections into sets of colocated ones, with the rows of each set, by work_s.
struct Partition {
    std::vector<std::vector<int>> sets;
    std::vector<int> hosts;  ///< by set: the section whose ranks it has
    std::vector<std::vector<Row>> rows;
};

/// Choices of all sections, and the bound by which they are taken.
struct Candidate {
    double bound_s = 0, others_s = 0;
    int ranks = 0;
    std::int64_t number = 0;          ///< in the order of their making: the last criterion
    std::vector<const Rated*> rated;  ///< by section
    std::vector<int> host_of;
    bool later_than(const Candidate& other) const {
        return std::tie(bound_s, others_s, ranks, number) >
               std::tie(other.bound_s, other.others_s, other.ranks, other.number);
    }
};
struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.later_than(b); }
};
using Queue = std::priority_queue<Candidate, std::vector<Candidate>, Later>;

/// The partitions of the sections into sets. Of more than four sections: each by itself, one pair that an
/// edge joins, all together, or as in the deck.
std::vector<std::vector<std::vector<int>>> partitions_of(const graph::SectionGraph& graph) {
    const int sections = static_cast<int>(graph.sections.size());
    std::vector<std::vector<std::vector<int>>> found;
    if (sections > 4) {
        std::vector<std::vector<int>> each;
        for (int s = 0; s < sections; ++s) each.push_back({s});
        found.push_back(each);
        for (const graph::Edge& e : graph.edges) {
            std::vector<std::vector<int>> sets{{std::min(e.from, e.to), std::max(e.from, e.to)}};
            for (int s = 0; s < sections; ++s)
                if (s != e.from && s != e.to) sets.push_back({s});
            found.push_back(std::move(sets));
        }
        std::vector<int> all(static_cast<std::size_t>(sections));
        std::iota(all.begin(), all.end(), 0);
        found.push_back({all});
        std::map<std::string, std::vector<int>> of_deck;
        for (int s = 0; s < sections; ++s) {
            const graph::Section& section = graph.sections[s];
            of_deck[section.colocate_with.empty() ? section.name : section.colocate_with].push_back(s);
        }
        std::vector<std::vector<int>> sets;
        for (auto& [host, set] : of_deck) sets.push_back(std::move(set));
        std::sort(sets.begin(), sets.end());
        for (auto& others : found) std::sort(others.begin(), others.end());
        if (std::find(found.begin(), found.end(), sets) == found.end()) found.push_back(std::move(sets));
        return found;
    }
    found.emplace_back();
    for (int s = 0; s < sections; ++s) {
        std::vector<std::vector<std::vector<int>>> longer;
        for (const auto& sets : found) {
            for (std::size_t k = 0; k < sets.size(); ++k) {
                longer.push_back(sets);
                longer.back()[k].push_back(s);
            }
            longer.push_back(sets);
            longer.back().push_back({s});
        }
        found = std::move(longer);
    }
    return found;
}

/// Whether a partition keeps the deck's colocation of the sections in which it is fixed.
bool keeps_colocation(const Subject& subject, const std::vector<std::vector<int>>& sets) {
    const graph::SectionGraph& graph = subject.scenario.graph;
    const auto host_of = [&](int section) {
        const graph::Section& s = graph.sections[section];
        return s.colocate_with.empty() ? s.name : s.colocate_with;
    };
    for (std::size_t set = 0; set < sets.size(); ++set)
        for (const int s : sets[set]) {
            if (!subject.is_fixed("section." + graph.sections[s].name + ".colocate_with")) continue;
            for (std::size_t other = 0; other < sets.size(); ++other)
                for (const int o : sets[other])
                    if ((set == other) != (host_of(s) == host_of(o))) return false;
        }
    return true;
}

/// What sections in one layout have in common.
std::tuple<int, int, int, ContextKind, int, int, int> common_layout(const Choice& choice) {
    const graph::Layout& l = choice.layout;
    return {l.dp, l.tp, l.cp, l.cp_kind, l.pp, l.chunks, choice.micro_batch};
}

/// Whether lanes that hold whole replicas of all sections of a set, and all ranks that share experts, divide
/// their ranks.
bool lanes_fit(const std::vector<const Rated*>& rated) {
    std::int64_t lane = 1;
    for (const Rated* r : rated)
        for (const int ranks : {r->choice.layout.stage_ranks(), r->choice.layout.expert_ranks()})
            lane = std::lcm(lane, std::int64_t{ranks});
    return std::all_of(rated.begin(), rated.end(), [&](const Rated* r) {
        return r->choice.layout.dp * std::int64_t{r->choice.layout.stage_ranks()} % lane == 0;
    });
}

/// The rows of one set of sections.
struct Rows {
    std::vector<Row> rows;      ///< by work_s
    double left_out_s = kNone;  ///< the least work of rows that were left out, because there are too many
};

Rows rows_of(const Subject& subject, const Ratings& ratings, const std::vector<int>& set, bool one_layout,
             int ranks) {
    Rows found;
    const auto fits = [&](const Rated& r) { return r.choice.layout.ranks() <= ranks; };
    if (set.size() == 1) {
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set.front())])
            if (fits(r)) found.rows.push_back({r.busiest_s, r.busiest_s, r.choice.layout.ranks(), {&r}});
        return found;
    }
    // Colocated sections have equal numbers of ranks, and in one layout more in common.
    using Key = std::pair<int, decltype(common_layout(Choice()))>;
    std::map<Key, std::vector<std::vector<const Rated*>>> alike;  // of each section
    for (std::size_t k = 0; k < set.size(); ++k)
        for (const Rated& r : ratings.sections[static_cast<std::size_t>(set[k])]) {
            if (!fits(r)) continue;
            auto& lists = alike[{r.choice.layout.ranks(),
                                 one_layout ? common_layout(r.choice) : decltype(common_layout(Choice()))()}];
            lists.resize(set.size());
            lists[k].push_back(&r);
        }
    constexpr double kMostRows = 1 << 21;
    const double each = kMostRows / static_cast<double>(std::max<std::size_t>(alike.size(), 1));
    const auto most =
        static_cast<std::size_t>(std::max(1.0, std::pow(each, 1.0 / static_cast<double>(set.size()))));
    const double memory = most_memory(subject.device), reserve = subject.device.libraries.reserve;
    for (auto& [key, lists] : alike) {
        if (std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list.empty(); })) continue;
        double least_s = 0;
        for (auto& list : lists) {
            std::stable_sort(list.begin(), list.end(),
                             [](const Rated* a, const Rated* b) { return a->mean_s < b->mean_s; });
            least_s += list.front()->mean_s;
        }
        for (auto& list : lists)
            if (list.size() > most) {
                found.left_out_s =
                    std::min(found.left_out_s, least_s - list.front()->mean_s + list[most]->mean_s);
                list.resize(most);
            }
        std::vector<const Rated*> chosen;
        const auto extend = [&](const auto& self) -> void {
            if (chosen.size() < set.size()) {
                for (const Rated* r : lists[chosen.size()]) {
                    chosen.push_back(r);
                    self(self);
                    chosen.pop_back();
                }
                return;
            }
            if (!lanes_fit(chosen)) return;
            Row row{.ranks = key.first, .rated = chosen};
            double busiest_s = 0, least_bytes = 0, more = 0;
            for (const Rated* r : chosen) {
                row.work_s += r->mean_s;
                busiest_s = std::max(busiest_s, r->busiest_s);
                least_bytes += r->least_bytes;
                more = std::max(more, r->bytes - r->least_bytes);
            }
            if (least_bytes + more - static_cast<double>(set.size() - 1) * reserve > memory) return;
            row.others_s = row.work_s;
            row.work_s = std::max(row.work_s, busiest_s);
            found.rows.push_back(std::move(row));
        };
        extend(extend);
    }
    std::stable_sort(found.rows.begin(), found.rows.end(),
                     [](const Row& a, const Row& b) { return a.work_s < b.work_s; });
    return found;
}

/// Makes candidates in the order of their bounds: the largest work of any set.
class Candidates {
public:
    Candidates(const Subject& subject, const Ratings& ratings, const Limits& limits)
        : ranks_(limits.ranks), graph_(subject.scenario.graph) {
        for (const auto& sets : partitions_of(subject.scenario.graph)) {
            if (limits.one_layout ? sets.size() > 1 : !keeps_colocation(subject, sets)) continue;
            Partition& partition = partitions_.emplace_back();
            partition.sets = sets;
            for (const std::vector<int>& set : sets) {
                Rows rows = rows_of(subject, ratings, set, limits.one_layout, ranks_);
                partition.rows.push_back(std::move(rows.rows));
                left_out_s_ = std::min(left_out_s_, rows.left_out_s);
                partition.hosts.push_back(host_in(set));
            }
        }
        for (std::size_t p = 0; p < partitions_.size(); ++p) {
            count_ += count_of(partitions_[p]);
            for (std::size_t set = 0; set < partitions_[p].rows.size(); ++set)
                for (std::size_t row = 0; row < partitions_[p].rows[set].size(); ++row)
                    events_.push_back({partitions_[p].rows[set][row].work_s, p, set, row});
        }
        std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
            return std::tie(a.work_s, a.partition, a.set, a.row) <
                   std::tie(b.work_s, b.partition, b.set, b.row);
        });
        for (const Partition& partition : partitions_) open_.emplace_back(partition.rows.size(), 0);
    }

    double count() const { return count_; }
    /// No plan that was left out has a shorter step.
    double left_out_s() const { return left_out_s_; }
    /// There are no more.
    void stop() { next_ = events_.size(); }
    /// No candidate that is still to come has a smaller bound. Infinite where none is left.
    double next_bound() const { return next_ < events_.size() ? events_[next_].work_s : kNone; }
    /// Appends the candidates of the next bound.
    void next(Queue& queue) {
        const Event& event = events_[next_++];
        const Partition& partition = partitions_[event.partition];
        std::vector<const Row*> rows(partition.rows.size());
        rows[event.set] = &partition.rows[event.set][event.row];
        extend(partition, event, rows, 0, rows[event.set]->ranks, queue);
        open_[event.partition][event.set] = event.row + 1;
    }

private:
    struct Event {
        double work_s;
        std::size_t partition, set, row;
    };

    /// Counts the combinations of rows that fit the ranks.
    double count_of(const Partition& partition) const {
        std::vector<double> counts(static_cast<std::size_t>(ranks_) + 1, 0);
        counts[0] = 1;
        for (const std::vector<Row>& rows : partition.rows) {
            std::map<int, std::int64_t> by_ranks;
            for (const Row& row : rows) ++by_ranks[row.ranks];
            std::vector<double> more(counts.size(), 0);
            for (const auto& [ranks, count] : by_ranks)
                for (std::size_t used = 0; used + static_cast<std::size_t>(ranks) < counts.size(); ++used)
                    more[used + static_cast<std::size_t>(ranks)] += counts[used] * static_cast<double>(count);
            counts = std::move(more);
        }
        return std::accumulate(counts.begin(), counts.end(), 0.0);
    }

    /// The section whose ranks a set has: the deck's, where it is one of the set, or the first.
    int host_in(const std::vector<int>& set) const {
        for (const int s : set)
            for (const int host : set)
                if (graph_.sections[s].colocate_with == graph_.sections[host].name) return host;
        return set.front();
    }

    /// Whether the fanout or fan-in of each edge between sections that share no ranks is whole.
    bool edges_fit(const Partition& partition, const std::vector<const Row*>& rows) const {
        const auto groups_of = [&](int section) {
            for (std::size_t set = 0; set < partition.sets.size(); ++set)
                if (partition.sets[set].front() == section && partition.sets[set].size() == 1) {
                    const graph::Layout& l = rows[set]->rated.front()->choice.layout;
                    return l.dp / (std::lcm(l.stage_ranks(), l.expert_ranks()) / l.stage_ranks());
                }
            return 0;
        };
        for (const graph::Edge& e : graph_.edges) {
            const int from = groups_of(e.from), to = groups_of(e.to);
            if (from > 0 && to > 0 && from % to != 0 && to % from != 0) return false;
        }
        return true;
    }

    void extend(const Partition& partition, const Event& event, std::vector<const Row*>& rows,
                std::size_t set, int ranks, Queue& queue) {
        if (ranks > ranks_) return;
        if (set == rows.size()) {
            if (!edges_fit(partition, rows)) return;
            Candidate made{.bound_s = event.work_s,
                           .ranks = ranks,
                           .number = made_++,
                           .rated = std::vector<const Rated*>(graph_.sections.size()),
                           .host_of = std::vector<int>(graph_.sections.size())};
            for (std::size_t k = 0; k < rows.size(); ++k) {
                made.others_s += rows[k]->others_s;
                for (std::size_t i = 0; i < partition.sets[k].size(); ++i) {
                    const auto section = static_cast<std::size_t>(partition.sets[k][i]);
                    made.rated[section] = rows[k]->rated[i];
                    made.host_of[section] = partition.hosts[k];
                }
            }
            queue.push(std::move(made));
            return;
        }
        if (set == event.set) return extend(partition, event, rows, set + 1, ranks, queue);
        // The rows that came before: each combination is made at the last of its rows.
        for (std::size_t row = 0; row < open_[event.partition][set]; ++row) {
            rows[set] = &partition.rows[set][row];
            if (ranks + rows[set]->ranks > ranks_) continue;
            extend(partition, event, rows, set + 1, ranks + rows[set]->ranks, queue);
        }
    }

    int ranks_;
    const graph::SectionGraph& graph_;
    std::vector<Partition> partitions_;
    std::vector<Event> events_;  ///< all rows, by their work
    std::size_t next_ = 0;
    std::vector<std::vector<std::size_t>> open_;  ///< [partition][set], rows that came before
    double count_ = 0, left_out_s_ = kNone;
    std::int64_t made_ = 0;
};

/// Returns a time that no step is shorter than in which the tasks of the estimate run, sums and updates
/// included.
double bound_of(const workload::StepEstimate& step, const graph::SectionGraph& graph) {
    double tasks_s = schedule::lower_bound(step.problem);
    std::vector<double> update_s(static_cast<std::size_t>(graph.lanes), 0.0);
    for (std::size_t s = 0; s < step.ends.size(); ++s) {
        if (step.ends[s].empty()) continue;
        const schedule::StageShape& shape = step.problem.stages[s];
        double sums_s = 0, updates_s = 0, work_s = 0;
        for (const workload::GroupTimes& group : step.ends[s]) {
            sums_s += group.sum_s;
            updates_s += group.update_s;
        }
        for (int g = 0; g < shape.groups; ++g) update_s[static_cast<std::size_t>(shape.lane(g))] += updates_s;
        // The sums of a stage begin after the start of its last backward at the earliest.
        std::vector<double> backwards;
        for (const schedule::SampleCost& sample : step.problem.samples) {
            work_s += sample.stages[s].forward_s + sample.stages[s].backward_s;
            backwards.push_back(sample.stages[s].backward_s);
        }
        const auto longest =
            std::min<std::size_t>(static_cast<std::size_t>(shape.micro_batch), backwards.size());
        std::partial_sort(backwards.begin(), backwards.begin() + static_cast<std::ptrdiff_t>(longest),
                          backwards.end(), std::greater<>());
        const double last_s =
            std::accumulate(backwards.begin(), backwards.begin() + static_cast<std::ptrdiff_t>(longest), 0.0);
        tasks_s = std::max(tasks_s, work_s / shape.machines() - last_s + sums_s);
    }
    const double norm_s =
        2 * step.latency_s * std::ceil(std::log2(std::max(1.0, static_cast<double>(graph.world))));
    return tasks_s + norm_s + *std::max_element(update_s.begin(), update_s.end());
}

std::vector<Choice> choices_of(const Candidate& candidate) {
    std::vector<Choice> choices;
    for (const Rated* rated : candidate.rated) choices.push_back(rated->choice);
    return choices;
}

/// Sets the plan's figures that follow from a simulated step, the k-th of all.
void simulate_step(const Subject& subject, Plan& plan, std::size_t k, const std::string& policy) {
    const workload::StepEstimate step = workload::estimate(plan.scenario, subject.table, subject.probes,
                                                           subject.device, subject.options, subject.steps[k]);
    const graph::SectionGraph& graph = plan.scenario.graph;
    const schedule::StepPlan made =
        schedule::make_plan(policy, step.problem, static_cast<std::int64_t>(k) + 1, subject.moves);
    const schedule::Timeline timeline = schedule::simulate(step.problem, made, subject.dispatch);
    plan.step_s += workload::running_step_seconds(step.problem, made, timeline, graph, step.ends,
                                                  step.latency_s, subject.dispatch);
    plan.tokens += step.tokens;
    plan.busy.resize(graph.sections.size(), 0.0);
    for (const schedule::TimedTask& t : timeline.tasks) {
        const int section = graph.stages[t.task.stage].section;
        plan.busy[static_cast<std::size_t>(section)] +=
            (t.end_s - t.start_s) / graph.sections[section].lanes();
    }
    if (k > 0) return;
    for (const workload::StageMemory& stage : step.memory.stages) plan.windows.push_back(stage.window);
    plan.memory.assign(graph.sections.size(), 0.0);
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s) {
        double& most = plan.memory[static_cast<std::size_t>(graph.stages[s].section)];
        most =
            std::max(most, workload::memory_of(step.memory, graph, graph::first_rank_of(graph, s)).needed());
    }
}

}  // namespace

Plan simulated(const Subject& subject, Plan plan, const std::string& policy) {
    plan.step_s = plan.tokens = 0;
    plan.windows.clear();
    plan.busy.clear();
    for (std::size_t k = 0; k < subject.steps.size(); ++k) simulate_step(subject, plan, k, policy);
    for (double& busy : plan.busy) busy /= plan.step_s;
    return plan;
}

bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of) {
    std::map<int, std::vector<int>> sets;
    for (std::size_t s = 0; s < host_of.size(); ++s) sets[host_of[s]].push_back(static_cast<int>(s));
    std::vector<std::vector<int>> listed;
    for (auto& [host, set] : sets) listed.push_back(std::move(set));
    return keeps_colocation(subject, listed);
}

std::optional<Plan> plan_of(const Subject& subject, std::vector<Choice> choices, std::vector<int> host_of,
                            const std::string& policy) {
    Balance balance(subject);
    std::vector<graph::Refusal> refusals;
    Plan plan{.choices = std::move(choices), .host_of = std::move(host_of)};
    plan.scenario = balance.scenario(plan.choices, plan.host_of, refusals);
    if (!refusals.empty()) return {};
    plan.ranks = plan.scenario.graph.world;
    try {
        const workload::StepEstimate step =
            workload::estimate(plan.scenario, subject.table, subject.probes, subject.device, subject.options,
                               subject.steps.front());
        if (!step.shortage.empty()) return {};
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_deck) throw;
        return {};
    }
    return simulated(subject, std::move(plan), policy);
}

std::pair<std::vector<Choice>, std::vector<int>> choices_of(const workload::Scenario& scenario) {
    std::vector<Choice> choices;
    std::vector<int> host_of;
    for (std::size_t s = 0; s < scenario.graph.sections.size(); ++s) {
        const graph::Section& section = scenario.graph.sections[s];
        choices.push_back({.layout = section.layout,
                           .micro_batch = section.micro_batch,
                           .recompute = scenario.tuning[s].recompute,
                           .recompute_layers = scenario.tuning[s].recompute_layers});
        int host = static_cast<int>(s);
        for (std::size_t other = 0; other < scenario.graph.sections.size(); ++other)
            if (scenario.graph.sections[other].name == section.colocate_with) host = static_cast<int>(other);
        host_of.push_back(host);
    }
    return {choices, host_of};
}

Found search(const Subject& subject, const Ratings& ratings, const Limits& limits, std::vector<Plan> known) {
    Found found{.bound_s = kNone};
    Balance balance(subject);
    Candidates candidates(subject, ratings, limits);
    found.layouts = candidates.count();
    Queue rated, bounded;  // by the work of their lanes; by the bound with places and memory
    // The time of the best plan so far: what cannot be shorter is left out.
    const auto best_s = [&] {
        return found.plans.empty() || limits.all ? kNone : found.plans.front().step_s;
    };
    double least_lack = kNone;
    const auto keep = [&](Plan plan) {
        const auto slower = std::find_if(found.plans.begin(), found.plans.end(), [&](const Plan& other) {
            return plan.step_s < other.step_s * (1 - kRounding) ||
                   (plan.step_s < other.step_s * (1 + kRounding) && plan.ranks < other.ranks);
        });
        const bool again = std::any_of(found.plans.begin(), found.plans.end(), [&](const Plan& other) {
            return plan.choices == other.choices && plan.host_of == other.host_of;
        });
        if (again) return;
        found.plans.insert(slower, std::move(plan));
        if (!limits.all && found.plans.size() > static_cast<std::size_t>(limits.keep)) found.plans.pop_back();
    };
    for (Plan& plan : known)
        if (plan.ranks <= limits.ranks) keep(std::move(plan));
    const auto refine = [&](Candidate candidate) {
        ++found.bounded;
        std::vector<graph::Refusal> refusals;
        const workload::Scenario scenario =
            balance.scenario(choices_of(candidate), candidate.host_of, refusals);
        if (!refusals.empty()) return;
        double bound_s = 0;
        try {
            for (const std::vector<std::int64_t>& ids : subject.steps) {
                const workload::StepEstimate step = workload::estimate(
                    scenario, subject.table, subject.probes, subject.device, subject.options, ids);
                if (!step.shortage.empty()) {
                    ++found.no_room;
                    double most = 0;
                    for (int s = 0; s < static_cast<int>(scenario.graph.stages.size()); ++s)
                        most = std::max(most, workload::memory_of(step.memory, scenario.graph,
                                                                  graph::first_rank_of(scenario.graph, s))
                                                  .needed());
                    if (most < least_lack) {
                        least_lack = found.least_memory = most;
                        found.shortage = step.shortage;
                    }
                    return;
                }
                bound_s += bound_of(step, scenario.graph);
            }
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_deck) throw;
            return;  // its micro-batches are too large to be numbered
        }
        candidate.bound_s = std::max(candidate.bound_s, bound_s * (1 - kRounding));
        bounded.push(std::move(candidate));
    };
    for (;;) {
        // Every candidate whose first bound is below the least second bound may still have a smaller one.
        const double least = std::min(best_s(), bounded.empty() ? kNone : bounded.top().bound_s);
        if (!rated.empty() && rated.top().bound_s < least && rated.top().bound_s <= candidates.next_bound()) {
            if (found.bounded == limits.bounded) {  // goes on with those that are bounded
                found.bound_s = rated.top().bound_s;
                rated = {};
                candidates.stop();
                continue;
            }
            Candidate candidate = rated.top();
            rated.pop();
            refine(std::move(candidate));
            continue;
        }
        if (candidates.next_bound() < least) {
            candidates.next(rated);
            continue;
        }
        // Plans that cannot be the best are simulated only to fill the list.
        if (bounded.empty() || (bounded.top().bound_s >= best_s() &&
                                found.plans.size() >= static_cast<std::size_t>(limits.keep)))
            break;
        if (found.simulated == limits.simulated) {
            found.bound_s = std::min(found.bound_s, bounded.top().bound_s);
            break;
        }
        const Candidate candidate = bounded.top();
        bounded.pop();
        std::vector<graph::Refusal> refusals;
        Plan plan{.choices = choices_of(candidate),
                  .host_of = candidate.host_of,
                  .ranks = candidate.ranks,
                  .bound_s = candidate.bound_s,
                  .scenario = balance.scenario(choices_of(candidate), candidate.host_of, refusals)};
        plan = simulated(subject, std::move(plan), limits.policy);
        ++found.simulated;
        keep(std::move(plan));
    }
    found.bound_s = std::min(found.bound_s, candidates.left_out_s());
    if (!found.plans.empty()) {
        const double step_s = found.plans.front().step_s;
        found.proved = found.bound_s >= step_s * (1 - kRounding);
        found.bound_s = std::min(found.bound_s, step_s);
    }
    return found;
}

}  // namespace maestro::plan
