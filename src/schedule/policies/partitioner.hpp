// Partitioner: decides which samples each sub-problem gets.
#pragma once

#include <vector>

#include "schedule/problem/instance.hpp"
#include "schedule/problem/load_tree.hpp"
#include "schedule/problem/micro_batches.hpp"
#include "schedule/problem/split_mix64.hpp"

namespace maestro::schedule {

/// Distributes the samples of a problem over its sub-problems. Construction is list scheduling: by descending
/// cost, those with work outside the anchor first, each to the sub-problem whose largest load stays smallest.
/// Then pairs of samples change sub-problems while that levels the loads of all sections. Where lanes have
/// parts, whole buckets take the place of samples (see make_buckets()).
class Partitioner {
public:
    Partitioner(const Problem& problem, int sub_problems);
    /// Returns the samples of each sub-problem, as indices in the problem. `noise`: relative noise of the
    /// costs by which samples are ordered, for another partition at each call; 0: none.
    std::vector<std::vector<int>> partition(double noise);

private:
    double total(std::size_t stage) const;
    /// Returns the cost of a sample, in units of a sub-problem's share of the critical section.
    double cost(int i, std::size_t stage) const {
        return all_.total(static_cast<int>(stage), i) * scale_[stage];
    }
    double& load(int g, std::size_t stage) { return load_[g * stages_ + stage]; }
    void distribute(const std::vector<int>& order);
    void scatter();
    void level();
    double pair_weight(int a, int b, int i, int j);

    MicroBatches buckets_;  ///< those of the problem's samples that go to a sub-problem together
    Instance all_;          ///< the whole problem with a sample for each bucket
    int sub_problems_;
    std::size_t stages_;
    SplitMix64 random_;
    std::vector<double> scale_, load_;     ///< load_: [sub-problem][stage]
    std::vector<std::vector<int>> items_;  ///< [sub-problem], samples of all_
};

}  // namespace maestro::schedule
