// The start of the search of a sub-problem, from costs alone: which anchor group gets which item, and in
// which order items are preferred. Also how groups are levelled once their idle times are known.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/problem/instance.hpp"
#include "schedule/problem/micro_batches.hpp"

namespace maestro::schedule {

/// What the search assigns and orders: the samples of an instance, or micro-batches of them. Seconds.
struct Work {
    std::vector<double> anchor_s;  ///< [item], on the longest stage of the anchor's section, both tasks
    std::vector<double> head_s;    ///< [item], forwards of all other sections: its release time
    std::vector<double> tail_s;    ///< [item], backwards of all other sections: its delivery time
    std::vector<std::uint8_t> other_work;  ///< [item], active in another section
    int groups = 1;                        ///< of the anchor
    double mean_s = 0;                     ///< of anchor_s

    int items() const { return static_cast<int>(anchor_s.size()); }
    /// Sets the costs of an item from its samples.
    void set(int item, const Instance& instance, std::span<const int> samples);
};
/// Returns the work of items, each of which has the samples of one micro-batch of `items`.
Work measure(const Instance& instance, const MicroBatches& items);

/// Returns the anchor group of each item, by list scheduling (LPT, Graham 1969). First come those with work
/// in other sections too, by descending cost; the rest then level the groups. If the rest are too
/// few and too long for that, all items go by descending cost. If the rest are too few to fill the time
/// before the first inputs arrive and during the last backwards, every group first gets an item with a
/// short head and one with a short tail.
std::vector<int> spread(const Work& work);

/// Number of orders().
inline constexpr int kOrders = 4;
/// Returns orders to try: items with work in other sections by different keys, then the rest by descending
/// cost.
std::vector<std::vector<int>> orders(const Work& work);

/// Moves items between groups until the longest group cannot be shortened: those without work in
/// other sections move or are exchanged; those with such work are exchanged with each other if `all` is true.
/// `extra_s`: [anchor group], seconds in addition to its work. Changes group_of, [item]; returns
/// whether it did.
bool level(const Work& work, const std::vector<double>& extra_s, bool all, std::vector<int>& group_of);

}  // namespace maestro::schedule
