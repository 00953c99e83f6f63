#include "workload/decoding.hpp"

#include <algorithm>

#include "model/decoding.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::workload {

int decoding_section(const graph::SectionGraph& graph) {
    const auto at = std::find_if(graph.sections.begin(), graph.sections.end(),
                                 [](const graph::Section& section) { return section.loss; });
    MAESTRO_CHECK(at != graph.sections.end(), "no section computes a loss");
    return static_cast<int>(at - graph.sections.begin());
}

std::vector<std::int64_t> samples_with_targets(const SampleTable& table, std::int64_t count) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < table.size() && static_cast<std::int64_t>(samples.size()) < count; ++i)
        if (table.weight(i) > 0) samples.push_back(i);
    return samples;
}

std::int64_t most_answer_tokens(std::int64_t target, bool ends, std::int64_t prompt_rows,
                                std::int64_t sequence_length) {
    constexpr std::int64_t kMargin = 16;
    if (!ends) return target;
    return std::max(target, std::min(2 * target + kMargin, sequence_length - prompt_rows));
}

std::int64_t decoding_rows(const Scenario& scenario, const SampleTable& table,
                           const std::vector<std::int64_t>& samples) {
    const int section = decoding_section(scenario.graph);
    std::int64_t rows = 1;
    // How a sample is divided into prompt and target is known only when it is read. Of the prompts and
    // targets that it may have, all rows but one as the target allow the longest answer.
    for (const std::int64_t sample : samples) {
        const std::int64_t length = table.length(sample, section), targets = table.tokens(sample);
        const std::int64_t prompt = std::max<std::int64_t>(length - targets, 1);
        rows = std::max(
            {rows, length, prompt + most_answer_tokens(targets, true, prompt, scenario.sequence_length)});
    }
    return rows;
}

void plan_decoding(const Scenario& scenario, const SampleTable& table, const backend::Traits& traits,
                   const std::vector<std::int64_t>& samples, MemoryPlan& plan) {
    const int section = decoding_section(scenario.graph),
              stage = scenario.graph.sections[section].first_stage;
    if (samples.empty()) return;
    // The first tp rank holds no less than the others.
    plan.stages[stage].decoding = static_cast<double>(model::decoding_bytes(
        scenario.models[section], role_of(scenario, stage), decoding_rows(scenario, table, samples), traits,
        meta_mesh_of(scenario, stage)));
}

}  // namespace maestro::workload
