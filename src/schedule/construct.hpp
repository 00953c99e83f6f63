// Where the search of a group begins: which anchor replica gets which sample, and in which order samples are
// wanted, from their costs alone; and how replicas are levelled once idle times are known.
#pragma once

#include <vector>

#include "schedule/instance.hpp"

namespace maestro::schedule {

/// What the samples of an instance cost.
struct SampleWork {
    std::vector<double> own;            ///< [sample], seconds on the anchor
    std::vector<double> before, after;  ///< [sample], seconds forward and backward on all other sections
    double mean_s = 0;                  ///< of own
};
SampleWork measure(const Instance& instance);

/// Anchor replica of each sample. First the samples with work on other sections too (`other work`), by
/// descending cost, each to the replica with the least of it; then the rest level the replicas; where they
/// are too few and too long to, all go by descending cost. Where there is not enough of the rest to cover
/// head starts and last backwards, every replica first gets one sample that is soon there and one that is
/// soon done with.
std::vector<int> spread(const Instance& instance, const SampleWork& work);

/// How many orders() there are.
inline constexpr int kOrders = 4;
/// Orders to try: samples with other work in several ways, then the others by descending cost.
std::vector<std::vector<int>> orders(const Instance& instance, const SampleWork& work);

/// Lets samples of a kind (with other work, `all`, or without) change places between replicas, or those
/// without move, until the longest replica cannot be shortened; `extra_s`: [anchor replica], seconds beside
/// its work. Changes replica_of, [sample]; returns whether it did.
bool level(const Instance& instance, const SampleWork& work, const std::vector<double>& extra_s, bool all,
           std::vector<int>& replica_of);

}  // namespace maestro::schedule
