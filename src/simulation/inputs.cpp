#include "simulation/inputs.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "io/metrics_file.hpp"
#include "workload/costs.hpp"
#include "workload/data_order.hpp"
#include "workload/models.hpp"
#include "workload/sample_table.hpp"

namespace maestro::simulation {

namespace {

/// Scales the costs, so that their sums over the steps of the run are what its tasks took. The first steps,
/// in which memory is touched for the first time, do not count if there are more.
void correct(std::vector<schedule::SampleCost>& costs, const config::Deck& deck, workload::DataOrder& order,
             const std::string& run) {
    constexpr std::int64_t kWarmUp = 3;
    const std::string path = run + "/metrics.h5";
    if (!std::filesystem::exists(path))
        throw Error(ExitCode::input_missing,
                    fmt::format("--measured {}: there is no metrics.h5; name the directory of a run", run),
                    Scope::all_ranks);
    const std::vector<io::TaskRow> tasks = io::read_metrics(path).tasks;
    const std::size_t sections = deck.sections.size();
    std::vector<std::array<double, 2>> took(sections), said(sections);
    std::set<std::int64_t> steps;
    for (const io::TaskRow& t : tasks) steps.insert(t.step);
    while (steps.size() > 2 * kWarmUp && *steps.begin() <= kWarmUp) steps.erase(steps.begin());
    for (const io::TaskRow& t : tasks) {
        if (t.section < 0 || static_cast<std::size_t>(t.section) >= sections || t.phase < 0 || t.phase > 1 ||
            t.step < 1)
            throw Error(ExitCode::bad_data,
                        fmt::format("{}: a task of section {}; is this a run of the deck?", path, t.section),
                        Scope::all_ranks);
        if (steps.contains(t.step))
            took[static_cast<std::size_t>(t.section)][static_cast<std::size_t>(t.phase)] +=
                t.end_s - t.start_s;
    }
    for (const std::int64_t step : steps)
        for (const std::int64_t id : order.batch(step - 1))
            for (std::size_t s = 0; s < sections; ++s) {
                said[s][0] += costs[static_cast<std::size_t>(id)].sections[s].forward_s;
                said[s][1] += costs[static_cast<std::size_t>(id)].sections[s].backward_s;
            }
    for (std::size_t s = 0; s < sections; ++s) {
        std::array<double, 2> factor{1, 1};
        for (std::size_t phase = 0; phase < 2; ++phase)
            if (took[s][phase] > 0 && said[s][phase] > 0) factor[phase] = took[s][phase] / said[s][phase];
        log::info("{}: section {} took {:.3f} times the model's time forward, {:.3f} backward", run,
                  deck.sections[s].name, factor[0], factor[1]);
        for (schedule::SampleCost& cost : costs) {
            cost.sections[s].forward_s *= factor[0];
            cost.sections[s].backward_s *= factor[1];
        }
    }
}

}  // namespace

Inputs inputs_on(const config::Deck& deck, const config::Cluster& cluster, std::int64_t step,
                 const std::string& measured) {
    const data::SampleFile samples(deck.data.train);
    workload::check_samples(deck, samples);
    const workload::SampleTable table = workload::table_of(deck, samples);
    workload::check_lengths(deck, table);
    auto costs = workload::sample_costs(deck, samples.marker(), table, &cluster);
    workload::DataOrder order(deck.run.seed, table.size(), deck.data.global_batch);
    if (!measured.empty()) correct(costs, deck, order, measured);

    Inputs inputs{.problem = workload::problem_of(deck.graph),
                  .memory = workload::measure_memory(deck, table, samples.marker()),
                  .ends = workload::step_ends(deck, samples.marker(), cluster),
                  .one_size_ends = workload::step_ends(deck, samples.marker(), cluster, true),
                  .device_memory = cluster.device.memory,
                  .latency_s = workload::link_of(deck, cluster).latency_s};
    workload::choose_windows(inputs.memory, deck.graph, cluster.device.memory);
    for (std::size_t s = 0; s < inputs.problem.sections.size(); ++s)
        inputs.problem.sections[s].window = inputs.memory.sections[s].window;
    for (schedule::EdgeShape& edge : inputs.problem.edges) edge.latency_s = inputs.latency_s;
    for (const std::int64_t id : order.batch(step - 1)) {
        inputs.problem.samples.push_back(costs[static_cast<std::size_t>(id)]);
        for (std::size_t s = 0; s < inputs.problem.sections.size(); ++s)
            if (inputs.problem.sections[s].loss)
                inputs.tokens += static_cast<double>(table.length(id, static_cast<int>(s)));
    }
    return inputs;
}

}  // namespace maestro::simulation
