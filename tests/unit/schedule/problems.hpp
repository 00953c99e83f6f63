// Random problems for the scheduler's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem/problem.hpp"

namespace maestro::schedule_test {

/// One to three upstream sections of a loss section, perhaps in a chain, perhaps all on the same lanes.
schedule::Problem random_problem(std::uint64_t seed);
/// Two lanes: an encoder with `load` times the language section's work, `share` of the samples with pictures.
schedule::Problem two_lanes(std::uint64_t seed, double load, double share);
/// As random_problem, with what makes it hard: windows down to one micro-batch, links that take time, times
/// from outside where a zero is no task, a section that feeds two levels, a second section with a loss.
schedule::Problem hard_problem(std::uint64_t seed);
/// The same problem with fan-in: the sections upstream of the first one with a loss have once, twice or four
/// times its groups. Colocated problems stay as they are.
schedule::Problem with_fan_in(schedule::Problem problem, std::uint64_t seed);
/// The same problem, some of whose sections have two to four parts on each lane. In half of the problems the
/// parts do up to three quarters of their work in common.
schedule::Problem with_parts(schedule::Problem problem, std::uint64_t seed);
/// Each kind in turn, by the seed: random_problem or hard_problem, two in five with_fan_in, one in four
/// with_parts, one in three with costs of samples that micro-batches lack.
schedule::Problem any_problem(std::uint64_t seed);

/// Both problems, on separate lanes. Samples with the same index are one sample, with the first one's id.
schedule::Problem side_by_side(schedule::Problem problem, const schedule::Problem& other);

/// How a section is cut into stages.
struct Pipeline {
    int ranks = 1, chunks = 1;
};
/// Cuts every section of `single`, whose sections have one stage each, so: [section]. The costs of a section
/// are divided evenly among its stages, and its window is that of its last stage.
schedule::Problem in_pipelines(const schedule::Problem& single, const std::vector<Pipeline>& pipelines);
/// The same with one chunk and as many stages as `stages` says.
schedule::Problem in_stages(const schedule::Problem& single, const std::vector<int>& stages);
/// One group of a section with a loss and `micro_batches` of one sample. A pipeline rank, with all of its
/// chunks, takes `forward_s` and `backward_s` for each; 0: the section has no backward.
schedule::Problem text_pipeline(Pipeline pipeline, int micro_batches, double forward_s, double backward_s);

}  // namespace maestro::schedule_test
