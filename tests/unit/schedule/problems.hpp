// Random problems for the scheduler's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem.hpp"

namespace maestro::schedule_test {

/// One to three upstream sections of a loss section, perhaps in a chain, perhaps all on the same lanes.
schedule::Problem random_problem(std::uint64_t seed);
/// Two lanes: an encoder with `load` times the language section's work, `share` of the samples with pictures.
schedule::Problem two_lanes(std::uint64_t seed, double load, double share);
/// As random_problem, with what makes it hard: windows down to one micro-batch, links that take time, times
/// from outside where a zero is no task, a section that feeds two levels, a second section with a loss.
schedule::Problem hard_problem(std::uint64_t seed);

/// Cuts every section of `single`, whose sections have one stage each, into as many stages as `stages` says.
/// The costs of a section are divided among its stages.
schedule::Problem in_stages(const schedule::Problem& single, const std::vector<int>& stages);

/// A step of equal micro-batches in which an encoder can keep a pipeline fed: there are places x_1 < ... <
/// x_n for the pictures among m micro-batches (from 0) with i a <= x_i c, (n - i + 1) g <= (m - 1 - x_i) c
/// and n (a
/// + g) <= (m + p - 1) c, where c is what a stage takes for a micro-batch, both tasks.
struct FedStep {
    int stages = 1, micro_batches = 1, pictures = 0;
    double forward_s = 0, backward_s = 0;              ///< of a picture on the encoder: a, g
    double stage_forward_s = 1, stage_backward_s = 2;  ///< of a micro-batch on a stage
    std::uint64_t seed = 0;

    double text_alone_s() const {
        return (micro_batches + stages - 1) * (stage_forward_s + stage_backward_s);
    }
    schedule::Problem problem() const;
};
/// Random sizes and places; a and g are at least half of what the conditions allow.
FedStep fed_step(std::uint64_t seed);

}  // namespace maestro::schedule_test
