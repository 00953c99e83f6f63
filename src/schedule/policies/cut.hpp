// Cut: what the search of a sub-problem moves, and where it starts.
#pragma once

#include <vector>

#include "schedule/policies/construct.hpp"
#include "schedule/policies/placement.hpp"

namespace maestro::schedule {

struct Cut {
    bool made = false;  ///< items are the micro-batches of the anchor, otherwise samples
    MicroBatches items;
    Work work;
    std::vector<int> spread;  ///< [item], the anchor group
    /// Orders to try: kOrders of which items to prefer and, of a pipeline, kPlacements with fixed places.
    std::vector<std::vector<int>> orders;
};

/// Returns the items of an instance. They are its samples or, where the anchor has micro-batches of several
/// samples and is a pipeline or has parts, these micro-batches: made of buckets, see make_buckets().
Cut make_cut(const Instance& instance, Kinds kinds);

}  // namespace maestro::schedule
