// Which samples an evaluation shows with decoded answers, and the memory that decoding takes.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/memory.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The section that decodes: the first that computes a loss.
int decoding_section(const graph::SectionGraph& graph);
/// Returns the first `count` samples that have targets, or all of them.
std::vector<std::int64_t> samples_with_targets(const SampleTable& table, std::int64_t count);

/// Returns the most tokens of an answer whose target has so many, behind a prompt of so many rows. An answer
/// that `ends` with a certain token may be longer than its target, but no longer than the model is trained
/// for.
std::int64_t most_answer_tokens(std::int64_t target, bool ends, std::int64_t prompt_rows,
                                std::int64_t sequence_length);
/// Returns the rows that any of these samples needs in a cache, prompt and answer together.
std::int64_t decoding_rows(const Scenario& scenario, const SampleTable& table,
                           const std::vector<std::int64_t>& samples);

/// Adds to the plan of an evaluation what its decoding section allocates for these samples. The section has
/// one stage and cp 1.
void plan_decoding(const Scenario& scenario, const SampleTable& table, const backend::Traits& traits,
                   const std::vector<std::int64_t>& samples, MemoryPlan& plan);

}  // namespace maestro::workload
