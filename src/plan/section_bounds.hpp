// What a section takes and needs at least with a choice, whatever the other sections have.
#pragma once

#include <vector>

#include "plan/stage_times.hpp"

namespace maestro::plan {

/// What a section's choice takes and needs at least, whatever the others are.
struct Rated {
    Choice choice;
    double busiest_s =
        0;              ///< the time in which a lane of its busiest pipeline rank works, sum over the steps
    double mean_s = 0;  ///< the mean work of its lanes
    double rank_s = 0;  ///< the work of all of its ranks together
    /// An estimate of the steps with this section alone: with the time in which its pipeline fills and runs
    /// empty, and with sums of gradients, updates and gathers of weights that no task hides. Sum over the
    /// steps, as are the others.
    double likely_s = 0;
    double chain_s = 0;        ///< a micro-batch of mean length in all stages, one after another
    double micro_batches = 0;  ///< of a replica in a step, on average
    /// How many of these are in flight at most, on the pipeline rank that has room for the fewest.
    double windows = 1;
    double bytes = 0;         ///< memory of the fullest rank, libraries included
    double least_bytes = 0;   ///< the same of the pipeline rank that needs least
    double likely_bytes = 0;  ///< an estimate of `bytes` with scratch memory
};

/// Bounds of a section with a choice but for dp.
class SectionBounds {
public:
    /// `mesh`: of a stage, but for dp.
    SectionBounds(const Subject& subject, int section, const Choice& choice, const parallel::MeshShape& mesh,
                  const std::vector<StageTimes>& stages);

    Rated with(const Choice& choice);

private:
    struct Step {
        int active = 0;                   ///< samples with work for the section
        std::vector<double> busiest;      ///< seconds of each sample on the busiest pipeline rank
        double busiest_s = 0, all_s = 0;  ///< sums over the samples, there and over all pipeline ranks
        double longest_s = 0;             ///< of a sample on all pipeline ranks, one after another
        bool sorted = false;

        /// Returns the seconds of the two shortest of the n + 1 longest samples.
        double shortest_two(std::size_t n);
    };
    /// The micro-batches of a replica.
    static double micro_batches(const Choice& choice, const Step& step);
    /// Estimates the seconds of a step outside of the work of the busiest rank.
    double outside(const Choice& choice, const Step& step) const;

    const Subject& subject_;
    int section_;
    parallel::MeshShape mesh_;
    bool alone_ = true;
    std::vector<Step> steps_;
    std::vector<StageTimes> memory_;  ///< by pipeline rank, without seconds
    double scratch_bytes_ = 0;
};

}  // namespace maestro::plan
