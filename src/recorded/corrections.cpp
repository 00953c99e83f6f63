#include "recorded/corrections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "recorded/rows.hpp"
#include "workload/corrected_work.hpp"
#include "workload/cost_model.hpp"
#include "workload/data_order.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/rank_device.hpp"
#include "workload/stages.hpp"
#include "workload/task_factors.hpp"
#include "workload/training_samples.hpp"

namespace maestro::recorded {

namespace {

using config::Correction;

constexpr const char* kOption = "--measured";
/// Steps after a start in which memory is touched for the first time, and libraries choose their kernels.
constexpr std::int64_t kWarmUp = 3;
/// More steps tell no more of a machine, and those long ago less.
constexpr std::size_t kMostSteps = 100;
/// Of the measured time, at least so much was computation, whatever communication a cluster file predicts.
constexpr double kLeastComputed = 0.1;

/// `run`: its directory.
[[noreturn]] void refuse(const std::string& run, const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("{} {}: {}", kOption, run, what), Scope::all_ranks);
}

/// Sums over tasks of a stage, forward and backward.
struct Seconds {
    std::array<double, 2> measured = {}, predicted = {};
    std::array<double, 2> computed = {};  ///< the part of the predicted ones without communication
};

/// Sequences of a section whose lengths are within an octave.
struct Class {
    double rows = 0;        ///< of these sequences
    double squares = 0;     ///< of their lengths: each row counts the length of its sequence
    double batch_rows = 0;  ///< each row counts the rows of its micro-batch
    std::map<int, Seconds> stages = {};
};

int octave(double rows) {
    return static_cast<int>(std::lround(std::log2(std::max(rows, 1.0))));
}

/// Collects what tasks took, by section and class.
class Collector {
public:
    Collector(const workload::Scenario& scenario, const workload::SampleTable& table,
              workload::Probes& probes, std::span<const std::int64_t> samples)
        : scenario_(scenario),
          table_(table),
          whole_(scenario, table, probes, {.samples = samples}),
          computed_(scenario, table, probes,
                    {.links = [&](int stage) { return free_links(stage); }, .samples = samples}),
          classes_(scenario.graph.sections.size()) {}

    /// A micro-batch of a section: the samples of each replica of the lane.
    using Parts = std::vector<std::vector<std::int64_t>>;

    /// The samples of a replica in a micro-batch, which all its stages run.
    void add_batch(int section, std::span<const std::int64_t> samples) {
        double batch_rows = 0;
        each_sequence(section, samples, [&](std::int64_t, double rows, double) { batch_rows += rows; });
        each_sequence(section, samples, [&](std::int64_t, double rows, double) {
            Class& of = classes_[section][octave(rows)];
            of.rows += rows;
            of.squares += rows * rows;
            of.batch_rows += rows * batch_rows;
        });
    }

    /// A task of a stage on the samples of one part of its lane. Its sequences share its times in proportion
    /// to what is computed for them.
    void add_task(int stage, std::size_t phase, const Parts& parts, std::size_t part, double measured_s) {
        const int section = scenario_.graph.stages[stage].section;
        double own_s = 0, samples_s = 0;
        for (const std::int64_t id : parts[part]) {
            own_s += of(whole_, id, stage, phase);
            samples_s += of(computed_, id, stage, phase);
        }
        if (!(samples_s > 0)) return;
        own_s += lacking_seconds(whole_, stage, phase, parts[part]);
        const double computed_s = samples_s + lacking_seconds(computed_, stage, phase, parts[part]),
                     predicted_s = lane_seconds(stage, phase, parts, own_s);
        each_sequence(section, parts[part], [&](std::int64_t id, double rows, double share_of_sample) {
            const double share = share_of_sample * of(computed_, id, stage, phase) / samples_s;
            Seconds& seconds = classes_[section][octave(rows)].stages[stage];
            seconds.measured[phase] += share * measured_s;
            seconds.predicted[phase] += share * predicted_s;
            seconds.computed[phase] += share * predicted_s * computed_s / own_s;
        });
    }

    std::vector<Correction> corrections() const {
        std::vector<Correction> corrections;
        for (std::size_t s = 0; s < classes_.size(); ++s)
            for (const auto& [key, of] : classes_[s])
                for (const auto& [stage, seconds] : of.stages)
                    if (seconds.measured[0] > 0)
                        corrections.push_back(correction(static_cast<int>(s), stage, of, seconds));
        return corrections;
    }

private:
    struct Costs {
        schedule::SampleCost whole, computed;
    };

    parallel::MeshLinks free_links(int stage) const {
        parallel::MeshLinks links = workload::mesh_links_of(scenario_, stage);
        for (parallel::LinkCost* link :
             {&links.tp, &links.cp, &links.data, &links.tied, &links.network, &links.ep})
            *link = {};
        return links;
    }

    double of(const workload::CostModel& model, std::int64_t id, int stage, std::size_t phase) {
        const schedule::TaskCost& cost = costs_of(model, id).stages[stage];
        return phase == 0 ? cost.forward_s : cost.backward_s;
    }
    const schedule::SampleCost& costs_of(const workload::CostModel& model, std::int64_t id) {
        const auto [at, is_new] = costs_.try_emplace(id);
        if (is_new) at->second = {whole_.of(id), computed_.of(id)};
        return &model == &whole_ ? at->second.whole : at->second.computed;
    }

    /// Calls each(sample, rows of a sequence, its share of the sample's rows).
    template <class Each>
    void each_sequence(int section, std::span<const std::int64_t> samples, const Each& each) const {
        for (const std::int64_t id : samples) {
            const std::vector<workload::Sequence> sequences = workload::sequences_of(table_, section, id);
            const double all =
                std::accumulate(sequences.begin(), sequences.end(), 0.0,
                                [](double sum, const auto& s) { return sum + static_cast<double>(s.rows); });
            for (const workload::Sequence& sequence : sequences)
                if (const auto rows = static_cast<double>(sequence.rows); rows > 0)
                    each(id, rows, rows / all);
        }
    }

    /// What a task takes for the samples that its micro-batch lacks.
    double lacking_seconds(const workload::CostModel& model, int stage, std::size_t phase,
                           std::span<const std::int64_t> samples) const {
        const int section = scenario_.graph.stages[stage].section,
                  lacking = scenario_.graph.sections[section].micro_batch - static_cast<int>(samples.size());
        const schedule::TaskCost cost = model.lacking(stage);
        return std::max(0, lacking) * (phase == 0 ? cost.forward_s : cost.backward_s);
    }

    /// The predicted seconds of a task, `own_s` if its part works alone. Where the parts of a lane work in
    /// common, the one with most work holds up the others, as in schedule::Machine.
    double lane_seconds(int stage, std::size_t phase, const Parts& parts, double own_s) {
        double longest_s = 0, common_s = 0;
        for (const std::vector<std::int64_t>& samples : parts) {
            double alone_s = lacking_seconds(whole_, stage, phase, samples);
            for (const std::int64_t id : samples) {
                const double seconds = of(whole_, id, stage, phase),
                             common = costs_of(whole_, id).stages[stage].common;
                alone_s += (1 - common) * seconds;
                common_s += common * seconds / static_cast<double>(parts.size());
            }
            longest_s = std::max(longest_s, alone_s);
        }
        return common_s > 0 ? longest_s + common_s : own_s;
    }

    Correction correction(int section, int stage, const Class& of, const Seconds& seconds) const {
        const parallel::MeshShape mesh = workload::task_mesh(workload::mesh_shape_of(scenario_, stage));
        const workload::TaskShape layout = workload::task_shape({}, mesh);
        const model::ModelSpec& spec = scenario_.models[section];
        const Range& layers = scenario_.layers[stage];
        Correction made{.section = scenario_.graph.sections[section].name,
                        .precision = scenario_.compute == DType::bf16 ? "bf16" : "fp32",
                        .width = spec.width,
                        .part = "stage",
                        .begin = static_cast<double>(layers.begin) / spec.layers,
                        .end = static_cast<double>(layers.end) / spec.layers,
                        .rows = of.batch_rows / of.rows,
                        .length = of.squares / of.rows,
                        .tp = layout.tp,
                        .cp = layout.cp,
                        .ep = layout.ep};
        const auto ratio = [&](std::size_t phase) {
            const double measured_s = seconds.measured[phase],
                         sent_s = seconds.predicted[phase] - seconds.computed[phase],
                         least_s = kLeastComputed * measured_s;
            if (measured_s - sent_s < least_s)
                log::info(
                    "section {}: its tasks were {} than what the cluster file predicts for their messages "
                    "alone, {:.3g} s; {:.0f}% of their time counts as computation",
                    made.section, measured_s < sent_s ? "shorter" : "hardly longer", sent_s,
                    100 * kLeastComputed);
            return std::max(measured_s - sent_s, least_s) / seconds.computed[phase];
        };
        made.forward_s = seconds.computed[0];
        made.forward = ratio(0);
        // A section that had no backward: the forward tells more than the rates do.
        const bool backward = seconds.measured[1] > 0 && seconds.computed[1] > 0;
        made.backward_s = seconds.computed[backward ? 1 : 0];
        made.backward = backward ? ratio(1) : made.forward;
        return made;
    }

    const workload::Scenario& scenario_;
    const workload::SampleTable& table_;
    workload::CostModel whole_, computed_;
    std::unordered_map<std::int64_t, Costs> costs_;
    std::vector<std::map<int, Class>> classes_;  ///< by section
};

}  // namespace

std::vector<Correction> corrections_of(const std::string& run, workload::Scenario scenario,
                                       const workload::SampleTable& table, workload::Probes& probes,
                                       const io::Rows& rows, const std::set<std::int64_t>& steps) {
    scenario.cluster->corrections.clear();
    const graph::SectionGraph& graph = scenario.graph;
    using Key = std::tuple<std::int64_t, int, int, int>;  // step, section, replica group, micro-batch
    std::map<Key, Collector::Parts> batches;
    std::set<std::int64_t> ids;
    for (const io::AssignmentRow& a : rows.assignment) {
        if (!steps.contains(a.step)) continue;
        const graph::Section& section = graph.sections[a.section];
        if (a.replica < 0 || a.replica >= section.layout.dp || a.sample < 0 || a.sample >= table.size())
            refuse(run,
                   fmt::format("/assignment has sample {} in replica {} of section {}, which the run's deck "
                               "does not have",
                               a.sample, a.replica, section.name));
        Collector::Parts& parts =
            batches[{a.step, a.section, a.replica / section.lane_replicas, a.micro_batch}];
        parts.resize(static_cast<std::size_t>(section.lane_replicas));
        parts[static_cast<std::size_t>(a.replica % section.lane_replicas)].push_back(a.sample);
        ids.insert(a.sample);
    }
    const std::vector<std::int64_t> samples(ids.begin(), ids.end());
    Collector collector(scenario, table, probes, samples);
    for (const auto& [key, parts] : batches)
        for (const std::vector<std::int64_t>& part : parts) collector.add_batch(std::get<1>(key), part);
    for (const io::TaskRow& t : rows.tasks) {
        if (!steps.contains(t.step)) continue;
        const graph::Section& section = graph.sections[t.section];
        const auto found =
            batches.find({t.step, t.section, t.replica / section.lane_replicas, t.micro_batch});
        const auto part = static_cast<std::size_t>(t.replica % section.lane_replicas);
        if (t.replica < 0 || t.stage >= section.layout.stage_count() || found == batches.end() ||
            found->second[part].empty())
            refuse(run,
                   fmt::format("/timeline has a task of step {} in stage {} and replica {} of section {}, of "
                               "which the run's deck or /assignment knows nothing",
                               t.step, t.stage, t.replica, section.name));
        collector.add_task(graph.stage_of(t.section, t.stage), static_cast<std::size_t>(t.phase),
                           found->second, part, t.work_s());
    }
    return collector.corrections();
}

namespace {

/// The recorded steps that count.
std::set<std::int64_t> steps_of(const io::Rows& rows, const Run& run) {
    const std::string path = metrics_of(run.path, kOption);
    const std::optional<std::int64_t> first = io::read_first_step(path);
    if (!first)
        log::info(
            "{}: an older build wrote it, which does not say where the run was resumed; all its steps "
            "count as those of its last deck",
            path);
    std::set<std::int64_t> recorded, steps;
    for (const io::TaskRow& t : rows.tasks) recorded.insert(t.step);
    if (recorded.empty())
        refuse(run.path, "no tasks are recorded there; train with metrics.timeline_every of 1 or more");
    for (const std::int64_t step : recorded)
        if (step >= first.value_or(1) + kWarmUp) steps.insert(step);
    if (steps.empty())
        refuse(run.path,
               fmt::format("of the steps since its last start, the first {} do not count, and no tasks "
                           "of others are recorded; its last start began with step {}, its last recorded "
                           "step is {}",
                           kWarmUp, first.value_or(1), *recorded.rbegin()));
    while (steps.size() > kMostSteps) steps.erase(steps.begin());
    return steps;
}

/// Each of these steps had samples that the deck's order gives it, of the file that is there now.
void check_order(const io::Rows& rows, const std::set<std::int64_t>& steps, workload::DataOrder order,
                 const Run& run) {
    std::map<std::int64_t, std::set<std::int64_t>> due;
    for (const std::int64_t step : steps) {
        const std::span<const std::int64_t> batch = order.batch(step - 1);
        due[step].insert(batch.begin(), batch.end());
    }
    for (const io::AssignmentRow& a : rows.assignment)
        if (const auto at = due.find(a.step); at != due.end() && !at->second.contains(a.sample))
            refuse(run.path,
                   fmt::format("step {} had sample {}, which it would not have with the samples of the "
                               "run's deck as they are now",
                               a.step, a.sample));
}

/// The model without what may differ: layers that are built alike cost the same, however many there are.
model::ModelSpec of_any_depth(model::ModelSpec spec) {
    spec.name.clear();
    spec.layers = 1;
    spec.mixer_of_layer.clear();
    spec.deepstack.clear();
    return spec;
}

/// Why what was measured of a run's section tells nothing of a scenario; empty: it does.
std::string difference(const workload::Scenario& scenario, const Run& run, int section) {
    const std::string& name = run.scenario.graph.sections[section].name;
    const auto& sections = scenario.graph.sections;
    const auto at = std::find_if(sections.begin(), sections.end(),
                                 [&](const graph::Section& s) { return s.name == name; });
    if (at == sections.end()) return "the deck has no such section";
    const model::ModelSpec &theirs = run.scenario.models[section],
                           &ours = scenario.models[static_cast<std::size_t>(at - sections.begin())];
    if (run.scenario.compute != scenario.compute) {
        const auto precision = [](DType type) { return type == DType::bf16 ? "bf16" : "fp32"; };
        return fmt::format("it computed in {}, the deck does in {}", precision(run.scenario.compute),
                           precision(scenario.compute));
    }
    if (theirs.width != ours.width)
        return fmt::format("its model has width {}, the deck's {}", theirs.width, ours.width);
    if (of_any_depth(theirs) != of_any_depth(ours))
        return "its model differs from the deck's in more than the number of layers";
    return "";
}

void check_device(const config::Cluster& cluster, const config::Deck& deck, const Run& run) {
    if (run.deck.run.device == "emulated")
        refuse(run.path,
               "run.device is emulated there: its tasks slept for as long as a cluster file says, which "
               "measures nothing");
    if (run.deck.run.precision == "fp64")
        refuse(run.path, "run.precision is fp64 there, for which cluster files have no rates");
    const bool gpu = workload::rank_device_of(cluster, deck.run).gpu;
    if (run.deck.run.device == (gpu ? "cpu" : "cuda"))
        refuse(run.path, fmt::format("run.device is {} there, and the ranks of cluster {} are {}",
                                     run.deck.run.device, cluster.name, gpu ? "GPUs" : "CPUs"));
}

/// Opens the samples that the run was trained on.
std::unique_ptr<data::Samples> samples_of(const Run& run) {
    try {
        return workload::training_samples(run.deck, run.scenario);
    } catch (const Error& error) {
        throw Error(error.code(),
                    fmt::format("{} {}: the samples of the run: {}", kOption, run.path, error.what()),
                    Scope::all_ranks);
    }
}

/// A line for each stage: the ratio of all its sums, and of those of each class.
void log_corrections(std::span<const Correction> corrections, const std::string& run) {
    std::vector<std::vector<const Correction*>> stages;
    for (const Correction& of : corrections) {
        const auto at = std::find_if(stages.begin(), stages.end(), [&](const auto& stage) {
            const Correction& first = *stage.front();
            return first.section == of.section && first.begin == of.begin;
        });
        (at == stages.end() ? stages.emplace_back() : *at).push_back(&of);
    }
    for (const std::vector<const Correction*>& classes : stages) {
        const auto ratio = [&](auto seconds, auto factor) {
            double measured_s = 0, predicted_s = 0;
            for (const Correction* of : classes) {
                measured_s += of->*seconds * of->*factor;
                predicted_s += of->*seconds;
            }
            return measured_s / predicted_s;
        };
        std::string text;
        for (const Correction* of : classes)
            text += fmt::format("{} {:.0f} rows in sequences of {:.0f}: {:.3g}, {:.3g}",
                                text.empty() ? ";" : ",", of->rows, of->length, of->forward, of->backward);
        const Correction& any = *classes.front();
        const std::string part =
            any.begin > 0 || any.end < 1
                ? fmt::format(", {:.0f}% to {:.0f}% of the layers", 100 * any.begin, 100 * any.end)
                : "";
        log::info(
            "{}: section {}{}, tp {}, cp {}, ep {}: measured over predicted time {:.3f} forward, {:.3f} "
            "backward{}",
            run, any.section, part, any.tp, any.cp, any.ep,
            ratio(&Correction::forward_s, &Correction::forward),
            ratio(&Correction::backward_s, &Correction::backward), classes.size() > 1 ? text : "");
    }
}

}  // namespace

void add_corrections(workload::Scenario& scenario, const config::Deck& deck, const Run& run) {
    check_device(*scenario.cluster, deck, run);
    const io::Rows rows = read_rows(run.path, kOption, run.scenario.graph);
    const std::set<std::int64_t> steps = steps_of(rows, run);
    workload::Scenario of_run = run.scenario;
    const std::unique_ptr<data::Samples> samples = samples_of(run);
    of_run.markers = samples->markers();
    workload::check_samples(of_run, *samples);
    of_run = workload::on_cluster(std::move(of_run), *scenario.cluster);
    const workload::SampleTable table = workload::table_of(of_run, *samples);
    workload::check_lengths(of_run, table, samples->name());
    workload::balance_stages(of_run, table);
    check_order(rows, steps, workload::DataOrder(of_run.seed, table.size(), of_run.global_batch), run);
    workload::Probes probes;
    std::vector<Correction> corrections =
        corrections_of(run.path, std::move(of_run), table, probes, rows, steps);
    std::vector<std::string> ignored;
    for (int s = 0; s < static_cast<int>(run.scenario.graph.sections.size()); ++s) {
        const std::string& name = run.scenario.graph.sections[s].name;
        const std::string why = difference(scenario, run, s);
        if (why.empty()) continue;
        std::erase_if(corrections, [&](const Correction& of) { return of.section == name; });
        ignored.push_back(fmt::format("section {} does not count: {}", name, why));
    }
    if (corrections.empty())
        refuse(run.path,
               ignored.empty() ? "no task took any time" : fmt::format("{}", fmt::join(ignored, "; ")));
    for (const std::string& line : ignored) log::info("{}: {}", run.path, line);
    log::info("{}: recorded steps that count: {}, from {} to {}", run.path, steps.size(), *steps.begin(),
              *steps.rbegin());
    log_corrections(corrections, run.path);
    for (const graph::Section& section : scenario.graph.sections)
        if (std::none_of(corrections.begin(), corrections.end(),
                         [&](const Correction& of) { return of.section == section.name; }))
            log::info("{}: nothing is measured of section {}", run.path, section.name);
    std::vector<Correction>& all = scenario.cluster->corrections;
    all.insert(all.end(), corrections.begin(), corrections.end());
}

}  // namespace maestro::recorded
