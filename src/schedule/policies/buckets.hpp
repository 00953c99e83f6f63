// Length bucketing: which samples the parts of a lane should run at the same time.
#pragma once

#include "schedule/problem/instance.hpp"
#include "schedule/problem/micro_batches.hpp"

namespace maestro::schedule {

/// The samples of an instance in buckets of about the same cost. The parts of a lane each take samples of a
/// micro-batch, and the longest part ends its task: parts that get samples of one bucket end together. A
/// bucket has samples with work outside the anchor's section, or without, by descending cost.
struct Buckets {
    /// Each has one sample for every part of the section with the most parts; single samples where no section
    /// has parts that work for them.
    MicroBatches widest;
    /// Each has one sample for every part of the anchor. Where another section has more parts, they divide
    /// `widest`.
    MicroBatches anchor;
};
Buckets make_buckets(const Instance& instance, Kinds kinds);

/// Returns an instance whose samples are the items, each with the work of its samples. Where a section has
/// parts, an item counts as long as if all of them worked alone as long as for its longest sample.
Instance bundle(const Instance& instance, const MicroBatches& items);

}  // namespace maestro::schedule
