// The start of the search of a group, from costs alone: which anchor replica gets which sample, and in which
// order samples are preferred. Also how replicas are levelled once their idle times are known.
#pragma once

#include <vector>

#include "schedule/instance.hpp"

namespace maestro::schedule {

/// The costs of the samples of an instance, seconds.
struct SampleWork {
    std::vector<double> anchor_s;  ///< [sample], on the anchor, forward and backward
    std::vector<double> head_s;    ///< [sample], forwards of all other sections: its release time
    std::vector<double> tail_s;    ///< [sample], backwards of all other sections: its delivery time
    double mean_s = 0;             ///< of anchor_s
};
SampleWork measure(const Instance& instance);

/// Returns the anchor replica of each sample, by list scheduling (LPT, Graham 1969). First come the samples
/// with work in other sections too, by descending cost; the rest then level the replicas. If the rest are too
/// few and too long for that, all samples go by descending cost. If the rest are too few to fill the time
/// before the first inputs arrive and during the last backwards, every replica first gets a sample with a
/// short head and one with a short tail.
std::vector<int> spread(const Instance& instance, const SampleWork& work);

/// Number of orders().
inline constexpr int kOrders = 4;
/// Returns orders to try: samples with work in other sections by different keys, then the rest by descending
/// cost.
std::vector<std::vector<int>> orders(const Instance& instance, const SampleWork& work);

/// Moves samples between replicas until the longest replica cannot be shortened: samples without work in
/// other sections move or are exchanged; those with such work are exchanged with each other if `all` is true.
/// `extra_s`: [anchor replica], seconds in addition to its work. Changes replica_of, [sample]; returns
/// whether it did.
bool level(const Instance& instance, const SampleWork& work, const std::vector<double>& extra_s, bool all,
           std::vector<int>& replica_of);

}  // namespace maestro::schedule
