// Steps with an encoder before a pipelined language section, for the tests and benchmarks of plans.
#pragma once

#include <cstdint>

#include "schedule/problem/problem.hpp"

namespace maestro::schedule_test {

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

/// A step of unlike samples: a language section in `stages` stages, of which an encoder rank serves
/// `pipelines` groups.
struct UnlikeStep {
    int stages = 4, micro_batches = 16, size = 4;  ///< of a language group; samples of a micro-batch
    int sub_problems = 1, pipelines = 1;           ///< encoder ranks; language groups that one serves
    double share = 1.0 / 3;                        ///< of samples with pictures
    double load = 0.7;                             ///< work of an encoder rank over that of a language rank
    double sigma = 0.6;                            ///< of the log-normal costs of samples
    int encoder_size = 1;                          ///< samples of an encoder's micro-batch
    int wider = 2;  ///< windows of the stages are that much larger than the number of stages that are left
    /// Window of an encoder, of the pictures that are in flight on average; 0: no window.
    double encoder_window = 4.0 / 3;
    int encoder_spare = 1;  ///< micro-batches of the language section in addition

    /// Returns the micro-batches with pictures that an encoder has in flight on average if nothing waits. By
    /// Little's law that is their number in a unit of time, times how long the first stage and the encoder
    /// have one.
    double in_flight() const;
    schedule::Problem problem(std::uint64_t seed) const;
};
/// Returns the step of UnlikeStep or FedStep without its pictures.
schedule::Problem text_alone(schedule::Problem problem);

}  // namespace maestro::schedule_test
