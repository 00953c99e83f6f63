#include "plan/rating.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "collective/process_group.hpp"
#include "ops/dispatch.hpp"
#include "workload/costs.hpp"
#include "workload/layer_costs.hpp"
#include "workload/layout.hpp"
#include "workload/memory.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"
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

/// What a rank of a stage takes and needs, whatever dp is.
struct StageTimes {
    std::vector<double> seconds;  ///< of each sample of all steps, forward and backward
    double fixed_bytes = 0;       ///< weights and gradients, without masters
    double shared_elements = 0;  ///< trainable ones, of which ranks along dp and cp share masters and moments
    double groups = 0;           ///< of parameters, whose gradients are summed together
    double saved_bytes = 0;      ///< of as many micro-batches of the longest samples as must be in flight
    double window_bytes = 0;     ///< of one such micro-batch
    double least_windows = 1;    ///< how many must be in flight
    double scratch_bytes = 0;    ///< of such a micro-batch, in the whole section
};

/// The bytes of the master copy of a weight, in the precision of its updates, where the model computes in
/// another.
double master_bytes(const Subject& subject) {
    const DType compute = subject.scenario.compute, master = ops::accumulate_type(compute);
    return compute == master ? 0 : static_cast<double>(size_of(master));
}

/// The times of the stages of a section, by its choices.
class Work {
public:
    Work(const Subject& subject, int section, Balance& balance)
        : subject_(subject), section_(section), balance_(balance) {
        for (const std::vector<std::int64_t>& ids : subject.steps)
            samples_.insert(samples_.end(), ids.begin(), ids.end());
    }

    /// Returns them for each stage of the choice. Empty where the choice does not fit.
    std::vector<StageTimes> of(const Choice& choice) {
        Choice shape = choice;
        shape.layout.dp =
            std::lcm(choice.layout.stage_ranks(), choice.layout.expert_ranks()) / choice.layout.stage_ranks();
        shape.layout.pp = shape.layout.chunks = 1;
        shape.layout.layers.clear();
        shape.layout.first_rank = -1;
        shape.recompute_layers = 0;
        if (!(shape == shape_)) {
            shape_ = shape;
            recomputed_ = measure(shape);
            kept_.reset();
        }
        if (!recomputed_) return {};
        // The first layers of each stage recompute, all of them by default.
        const bool some = choice.recompute_layers > 0 && choice.recompute != Recompute::none;
        if (some && !kept_) {
            shape.recompute = Recompute::none;
            kept_ = measure(shape);
        }
        std::vector<int> layers{subject_.scenario.models[index()].layers};
        if (choice.layout.stage_count() > 1) layers = balance_.layers_of(index(), choice);
        std::vector<StageTimes> stages;
        std::int64_t begin = 0;
        for (const int n : layers) {
            StageTimes& stage = stages.emplace_back(
                parameters_of(*recomputed_, {begin, begin + n}, stages.size(), layers.size()));
            stage.seconds.assign(samples_.size(), 0.0);
            const std::int64_t border = begin + (some ? std::min(n, choice.recompute_layers) : n);
            add(*recomputed_, choice.layout, {begin, border}, stages.size() - 1, stage);
            if (border < begin + n) add(*kept_, choice.layout, {border, begin + n}, stages.size() - 1, stage);
            begin += n;
        }
        return stages;
    }

    /// The mesh of one stage of the last choice, with as few replicas as it may have.
    parallel::MeshShape mesh() const {
        const graph::SectionGraph& graph = recomputed_->scenario.graph;
        return workload::mesh_shape_of(recomputed_->scenario, graph.stage_of(section_, 0));
    }

private:
    /// The section as one stage.
    struct Measured {
        workload::Scenario scenario;
        model::Footprint longest;  ///< of a micro-batch of the longest samples
        std::optional<workload::LayerCosts> costs = {};
    };

    std::size_t index() const { return static_cast<std::size_t>(section_); }
    std::unique_ptr<Measured> measure(const Choice& shape) {
        std::vector<Choice> choices(subject_.scenario.graph.sections.size());
        choices[index()] = shape;
        workload::Scenario open = subject_.scenario;
        for (graph::Section& section : open.graph.sections) section.window = 0;
        std::vector<graph::Refusal> refusals;
        auto measured = std::make_unique<Measured>(
            Measured{.scenario = with_choices(std::move(open), choices, apart(choices.size()), refusals),
                     .longest = {}});
        if (!refusals.empty()) return {};
        const workload::Scenario& scenario = measured->scenario;
        const int stage = scenario.graph.stage_of(section_, 0);
        if (!weights_)
            weights_.emplace(
                subject_.table, section_, samples_,
                workload::StageProbe(scenario, section_, stage, workload::best_links(scenario, stage),
                                     subject_.table.lengths(section_), subject_.probes)
                    .grid());
        measured->costs.emplace(scenario, section_, workload::best_links(scenario, stage), subject_.table,
                                subject_.probes, *weights_);
        workload::Probe probe = probe_of(scenario, workload::role_of(scenario, stage));
        probe.options.worst_case = shape.layout.cp > 1;
        for (const model::SampleShape& sample :
             subject_.table.longest_micro_batch(scenario.full_micro_batch(section_), section_))
            probe.add(sample);
        measured->longest = subject_.probes.footprint(probe);
        return measured;
    }
    workload::Probe probe_of(const workload::Scenario& scenario, model::Role role) const {
        return {.spec = scenario.models[index()],
                .role = std::move(role),
                .shape = workload::mesh_shape_of(scenario, scenario.graph.stage_of(section_, 0)),
                .options = {.train = subject_.options.train, .traits = subject_.device.traits}};
    }
    void add(const Measured& measured, const graph::Layout& layout, Range layers, std::size_t stage,
             StageTimes& times) {
        const auto count = static_cast<std::size_t>(layout.stage_count());
        measured.costs->add_seconds(layers, static_cast<int>(stage), static_cast<int>(count), times.seconds);
        // A stage of a pipeline keeps at least the micro-batches without which its loss section would stall.
        const auto [least, is_new] =
            least_windows_.try_emplace(std::tuple(layout.pp, layout.chunks, static_cast<int>(stage)), 1);
        if (is_new) {
            const workload::StageWindows windows =
                workload::windows_of(layout, subject_.scenario.graph.sections[index()].loss,
                                     static_cast<int>(stage), subject_.scenario.global_batch);
            if (windows.most > 0) least->second = std::max(1, windows.least);
        }
        times.least_windows = least->second;
        const double saved = measured.costs->saved(measured.longest, layers);
        times.window_bytes += saved;
        times.saved_bytes += times.least_windows * saved;
        times.scratch_bytes = static_cast<double>(measured.longest.scratch);
    }
    /// Stages of the same layers, first or last or neither, have the same parameters.
    StageTimes parameters_of(const Measured& measured, Range layers, std::size_t stage, std::size_t count) {
        const model::ModelSpec& model = subject_.scenario.models[index()];
        const bool alike = subject_.scenario.tuning[index()].frozen.empty();
        const graph::Layout& l = measured.scenario.graph.sections[index()].layout;
        std::vector<int> key{l.tp, l.cp, l.ep, l.etp, stage == 0, stage + 1 == count};
        for (auto layer = static_cast<int>(layers.begin); layer < layers.end; ++layer)
            key.push_back(alike ? model.first_like(layer) : layer);
        const auto [known, is_new] = parameters_.try_emplace(std::move(key));
        if (!is_new) return known->second;
        const int k = static_cast<int>(stage), stages = static_cast<int>(count);
        workload::Probe probe =
            probe_of(measured.scenario, workload::role_of(measured.scenario, section_,
                                                          {.index = k,
                                                           .count = stages,
                                                           .first_layer = static_cast<int>(layers.begin),
                                                           .layers = static_cast<int>(layers.size())}));
        if (workload::is_tied(measured.scenario, section_, k, stages)) probe.shape.tied = {k == 0 ? 0 : 1, 2};
        const model::Footprint& footprint = subject_.probes.parameters(probe);
        known->second.fixed_bytes = static_cast<double>(footprint.parameters) -
                                    master_bytes(subject_) * static_cast<double>(footprint.optimizer);
        known->second.shared_elements =
            static_cast<double>(footprint.gradients) /
            static_cast<double>(size_of(ops::accumulate_type(subject_.scenario.compute)));
        known->second.groups = static_cast<double>(footprint.group_layers.size());
        return known->second;
    }

    const Subject& subject_;
    int section_;
    Balance& balance_;
    std::vector<std::int64_t> samples_;  ///< of all steps
    std::optional<workload::SampleWeights> weights_;
    Choice shape_ = {.layout = {.dp = 0}};
    /// Of this shape: with its recomputation in all layers, and without any.
    std::unique_ptr<Measured> recomputed_, kept_;
    std::map<std::vector<int>, StageTimes> parameters_;
    std::map<std::tuple<int, int, int>, int> least_windows_;  ///< by pp, chunks and stage
};

/// Bounds of a section with a choice but for dp.
class Bounds {
public:
    /// `mesh`: of a stage, but for dp.
    Bounds(const Subject& subject, int section, const Choice& choice, const parallel::MeshShape& mesh,
           const std::vector<StageTimes>& stages)
        : subject_(subject), section_(section), mesh_(mesh) {
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
            step.busiest_s = std::accumulate(step.busiest.begin(), step.busiest.end(), 0.0);
            step.all_s = std::accumulate(chains.begin() + begin, chains.begin() + end, 0.0);
            step.longest_s = *std::max_element(chains.begin() + begin, chains.begin() + end);
            step.active = static_cast<int>(std::count_if(chains.begin() + begin, chains.begin() + end,
                                                         [](double seconds) { return seconds > 0; }));
        }
        for (std::size_t r = 0; r < pp; ++r) {
            StageTimes rank;
            for (std::size_t k = r; k < stages.size(); k += pp) {
                rank.fixed_bytes += stages[k].fixed_bytes;
                rank.shared_elements += stages[k].shared_elements;
                rank.groups += stages[k].groups;
                rank.saved_bytes += stages[k].saved_bytes;
                rank.window_bytes += stages[k].window_bytes;
                rank.least_windows = std::max(rank.least_windows, stages[k].least_windows);
            }
            memory_.push_back(std::move(rank));
        }
        scratch_bytes_ = stages.front().scratch_bytes;
    }

    Rated with(const Choice& choice) {
        const double dp = choice.layout.dp;
        Rated rated{.choice = choice};
        for (Step& step : steps_) {
            double least_s = step.busiest_s / dp;
            if (alone_) {
                least_s = std::max(least_s, step.longest_s);
                // Of dp + 1 samples, two are on one replica.
                const auto n = static_cast<std::size_t>(dp);
                if (step.busiest.size() > n && 2 * step.longest_s > least_s)
                    least_s = std::max(least_s, step.shortest_two(n));
            }
            rated.busiest_s += least_s;
            rated.mean_s += step.all_s / (dp * rated.choice.layout.pp);
            rated.rank_s += step.all_s * rated.choice.layout.stage_ranks();
            rated.likely_s += least_s + outside(rated.choice, step);
            rated.chain_s += step.all_s / (dp * micro_batches(rated.choice, step));
            rated.micro_batches += micro_batches(rated.choice, step) / static_cast<double>(steps_.size());
        }
        const workload::Scenario& scenario = subject_.scenario;
        const graph::Layout& layout = rated.choice.layout;
        const double shared = master_bytes(subject_) +
                              2.0 * static_cast<double>(size_of(ops::accumulate_type(scenario.compute)));
        // The most ranks that may hold the same weights.
        double copies = dp * layout.cp;
        if (scenario.models[static_cast<std::size_t>(section_)].experts.count > 0)
            copies = std::max(copies, dp * layout.stage_ranks() / layout.expert_ranks());
        // For each of the chunks of a rank.
        parallel::MeshShape mesh = mesh_;
        mesh.dp = layout.dp;
        const double connections = layout.chunks * subject_.device.libraries.link * workload::links_of(mesh);
        rated.least_bytes = kNone;
        rated.windows = kNone;
        const double memory = subject_.device.window_bytes();
        for (const StageTimes& rank : memory_) {
            const double bytes = rank.fixed_bytes + rank.saved_bytes + connections +
                                 shared * rank.shared_elements / copies +
                                 subject_.device.libraries.workspace + subject_.device.libraries.reserve;
            rated.bytes = std::max(rated.bytes, bytes);
            rated.least_bytes = std::min(rated.least_bytes, bytes);
            if (rank.window_bytes > 0)
                rated.windows = std::min(
                    rated.windows, rank.least_windows +
                                       std::max(0.0, (memory - bytes - scratch_bytes_) / rank.window_bytes));
        }
        rated.likely_bytes = rated.bytes + scratch_bytes_;
        return rated;
    }

private:
    struct Step {
        int active = 0;                   ///< samples with work for the section
        std::vector<double> busiest;      ///< seconds of each sample on the busiest pipeline rank
        double busiest_s = 0, all_s = 0;  ///< sums over the samples, there and over all pipeline ranks
        double longest_s = 0;             ///< of a sample on all pipeline ranks, one after another
        bool sorted = false;

        /// Returns the seconds of the two shortest of the n + 1 longest samples.
        double shortest_two(std::size_t n) {
            if (!sorted) std::sort(busiest.begin(), busiest.end(), std::greater<>());
            sorted = true;
            return busiest[n - 1] + busiest[n];
        }
    };
    /// The micro-batches of a replica.
    static double micro_batches(const Choice& choice, const Step& step) {
        const double samples = std::ceil(static_cast<double>(step.active) / choice.layout.dp);
        return std::max(1.0, std::ceil(samples / choice.micro_batch));
    }
    /// Estimates the seconds of a step outside of the work of the busiest rank.
    double outside(const Choice& choice, const Step& step) const {
        const graph::Layout& l = choice.layout;
        const config::Cluster& cluster = *subject_.scenario.cluster;
        const graph::Section& section = subject_.scenario.graph.sections[section_];
        // A micro-batch on one pipeline rank, of which the backward takes two thirds.
        const double task_s = step.all_s / (l.dp * micro_batches(choice, step) * l.pp);
        double outside_s = (l.pp - 1) * task_s / l.chunks;
        if (!section.train) return outside_s;
        const double element = static_cast<double>(size_of(ops::accumulate_type(subject_.scenario.compute)));
        // Ranks with the same weights exchange them within their nodes first, and each then a part with the
        // other nodes.
        const auto copies = static_cast<double>(l.dp) * l.cp,
                   here = std::min(copies, std::max(1.0, static_cast<double>(cluster.ranks_per_node) / l.tp)),
                   nodes = copies / here;
        const double byte_s = (here - 1) / here / cluster.node.of_collectives().bandwidth +
                              (nodes - 1) / nodes / here / cluster.network.of_collectives().bandwidth;
        double most_s = 0;
        for (const StageTimes& rank : memory_) {
            const double gradients = element * rank.shared_elements;
            // Among nodes with several ranks each, the sum of a group is many operations.
            const double groups = std::max(rank.groups, 1.0),
                         sums = groups *
                                collective::sums_by_nodes(nodes, here, rank.shared_elements / groups / copies,
                                                          ops::accumulate_type(subject_.scenario.compute)),
                         sum_s = byte_s * gradients + sums * cluster.device.operation_s;
            most_s =
                std::max(most_s, std::max(0.0, sum_s - 2 * task_s / 3) +
                                     std::max(0.0, byte_s * (rank.fixed_bytes - gradients) - task_s / 3) +
                                     7 * gradients / copies / cluster.device.memory_bandwidth);
        }
        return outside_s + most_s;
    }

    const Subject& subject_;
    int section_;
    parallel::MeshShape mesh_;
    bool alone_ = true;
    std::vector<Step> steps_;
    std::vector<StageTimes> memory_;  ///< by pipeline rank, without seconds
    double scratch_bytes_ = 0;
};

}  // namespace

double most_memory(const workload::RankDevice& device) {
    return device.gpu ? device.memory : std::max(device.ranks_per_node, 1) * device.memory;
}

namespace {

/// The order in which choices are rated: those of one shape, but for dp, follow each other.
auto key_of(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch, c.recompute, c.recompute_layers,
                      l.pp, l.chunks, l.dp);
}
/// Choices that differ in their recomputation, pipelines and replicas.
auto shape_of(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch);
}

/// Choices that differ in their recomputation alone.
auto but_recomputation(const Choice& c) {
    const graph::Layout& l = c.layout;
    return std::tuple(l.tp, l.cp, l.cp_kind, l.ep, l.etp, c.micro_batch, l.pp, l.chunks, l.dp);
}

/// Rates the choices of a section.
class Rating {
public:
    Rating(const Subject& subject, int section, int ranks, Balance& balance)
        : subject_(subject),
          section_(section),
          ranks_(ranks),
          choices_(choices_of(subject.scenario, section, ranks, subject.is_fixed)),
          work_(subject, section, balance) {
        std::sort(choices_.begin(), choices_.end(),
                  [](const Choice& a, const Choice& b) { return key_of(a) < key_of(b); });
        least_recompute_ = Recompute::layer;
        for (const Choice& choice : choices_) least_recompute_ = std::min(least_recompute_, choice.recompute);
        smallest_.bytes = kNone;
    }

    /// Rates the choices with the least recomputation, which takes the least time.
    void rate_fastest() {
        for (const Choice& choice : choices_)
            if (choice.recompute == least_recompute_ && !is_hopeless(choice)) rate(choice);
    }
    /// Rates the others, but for those that take longer than `limit_s` without recomputation, and those that
    /// need little memory without it.
    void rate_others(double limit_s) {
        for (const Choice& choice : choices_) {
            if (choice.recompute == least_recompute_) continue;
            const auto fastest = fastest_.find(but_recomputation(choice));
            if (fastest == fastest_.end()) continue;
            const Fastest& least = fastest->second;
            if (least.busiest_s > limit_s || (ranks_ > kFewRanks && least.is_small))
                left_out_.push_back(least);
            else
                rate(choice);
        }
    }
    /// The least work of all ranks of any choice together.
    double rank_s() const {
        double least_s = kNone;
        for (const auto& [shape, seconds] : rank_s_) least_s = std::min(least_s, seconds);
        return least_s;
    }
    /// No plan with a choice that was left out has shorter steps. `others_s`: the least work of all ranks of
    /// the other sections.
    double left_out_s(double others_s) const {
        double least_s = kNone;
        for (const Fastest& choice : left_out_)
            least_s = std::min(least_s, std::max(choice.busiest_s, (choice.rank_s + others_s) / ranks_));
        return least_s;
    }
    /// The least likely time of a choice that fits so far. Infinite where none does.
    double likely_s() const { return least_likely_s_; }
    std::vector<Rated> take() {
        std::stable_sort(rated_.begin(), rated_.end(), [](const Rated& a, const Rated& b) {
            return std::pair(a.busiest_s, key_of(a.choice)) < std::pair(b.busiest_s, key_of(b.choice));
        });
        return std::move(rated_);
    }
    const Rated& smallest() const { return smallest_; }

private:
    static constexpr int kFewRanks = 32;  // on which all choices are rated in little time

    /// What a choice takes with the least recomputation.
    struct Fastest {
        double busiest_s = 0, rank_s = 0;  ///< as of Rated
        bool is_small = false;             ///< as many sections as there are fit on one rank so
    };
    /// Whether the choice shares sequences among so many ranks that it takes far more than others: a sequence
    /// takes twice as many ranks no less work together.
    bool is_hopeless(const Choice& choice) {
        constexpr double kHopeless = 4;
        if (ranks_ <= kFewRanks || choice.layout.cp == 1 || least_likely_s_ == kNone) return false;
        Choice half = choice;
        half.layout.cp /= 2;
        if (half.layout.cp == 1) half.layout.cp_kind = ContextKind::ring;
        const auto known = rank_s_.find(shape_of(half));
        if (known == rank_s_.end()) return false;
        const double least_s = known->second / ranks_;
        if (least_s <= kHopeless * least_likely_s_) return false;
        rank_s_.try_emplace(shape_of(choice), known->second);
        left_out_.push_back({.rank_s = known->second});
        return true;
    }

    double small_bytes() const {
        return most_memory(subject_.device) / static_cast<double>(subject_.scenario.graph.sections.size());
    }

    void rate(const Choice& choice) {
        Choice pipeline = choice;
        pipeline.layout.dp = 1;
        if (!(pipeline == last_)) {
            last_ = pipeline;
            bounds_.reset();
            if (const std::vector<StageTimes> stages = work_.of(choice); !stages.empty())
                bounds_.emplace(subject_, section_, choice, work_.mesh(), stages);
        }
        if (!bounds_) return;
        Rated rated = bounds_->with(choice);
        const auto [work, is_first] = rank_s_.try_emplace(shape_of(choice), rated.rank_s);
        work->second = std::min(work->second, rated.rank_s);
        if (choice.recompute == least_recompute_)
            fastest_[but_recomputation(choice)] = {.busiest_s = rated.busiest_s,
                                                   .rank_s = rated.rank_s,
                                                   .is_small = rated.likely_bytes <= small_bytes()};
        if (rated.bytes < smallest_.bytes) smallest_ = rated;
        if (rated.bytes > most_memory(subject_.device)) return;
        least_likely_s_ = std::min(least_likely_s_, rated.likely_s);
        rated_.push_back(std::move(rated));
    }

    const Subject& subject_;
    int section_, ranks_;
    std::vector<Choice> choices_;
    Recompute least_recompute_ = Recompute::none;
    Work work_;
    std::map<decltype(shape_of(Choice())), double> rank_s_;
    std::map<decltype(but_recomputation(Choice())), Fastest> fastest_;
    std::vector<Fastest> left_out_;
    double least_likely_s_ = kNone;
    std::vector<Rated> rated_;
    Rated smallest_ = {};
    Choice last_ = {.layout = {.dp = 0}};
    std::optional<Bounds> bounds_;
};

}  // namespace

Ratings rate(const Subject& subject, int ranks, bool all) {
    // Plans are seldom slower than this multiple of what all sections take together, one after another.
    constexpr double kSlow = 1.5;
    Balance balance(subject);
    std::vector<std::unique_ptr<Rating>> sections;
    double limit_s = 0;
    for (int s = 0; s < static_cast<int>(subject.scenario.graph.sections.size()); ++s) {
        sections.push_back(std::make_unique<Rating>(subject, s, ranks, balance));
        sections.back()->rate_fastest();
        limit_s += kSlow * sections.back()->likely_s();
    }
    Ratings ratings;
    double rank_s = 0;
    for (const std::unique_ptr<Rating>& section : sections) rank_s += section->rank_s();
    for (const std::unique_ptr<Rating>& section : sections) {
        section->rate_others(all ? kNone : limit_s);
        ratings.left_out_s = std::min(ratings.left_out_s, section->left_out_s(rank_s - section->rank_s()));
        ratings.smallest.push_back(section->smallest());
        ratings.sections.push_back(section->take());
    }
    return ratings;
}

}  // namespace maestro::plan
