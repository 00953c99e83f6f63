#include "schedule/policies/cut.hpp"

#include <algorithm>
#include <utility>

#include "schedule/policies/buckets.hpp"

namespace maestro::schedule {

Cut make_cut(const Instance& instance, Kinds kinds) {
    const StageShape& anchor = instance.shape(instance.anchor);
    Cut cut;
    cut.items = make_buckets(instance, anchor.pipelined() ? Kinds::apart : kinds).anchor;
    cut.work = measure(instance, cut.items);
    cut.spread = spread(cut.work);
    cut.made = anchor.micro_batch > 1 && (anchor.pipelined() || anchor.parts > 1);
    if (cut.made) {
        const MicroBatches buckets = std::move(cut.items);
        const std::vector<int> group_of = std::move(cut.spread);
        const MicroBatches made = cut_evenly(cut.work.anchor_s, cut.work.other_work, group_of, anchor.groups,
                                             anchor.micro_batch / anchor.parts, kinds);
        cut.items = MicroBatches();
        cut.spread.clear();
        for (std::size_t item = 0; item < made.size(); ++item) {
            std::vector<int> samples;
            for (const int bucket : made.samples(item))
                for (const int i : buckets.samples(bucket)) samples.push_back(i);
            cut.items.add(samples);
            cut.spread.push_back(group_of[made.samples(item).front()]);
        }
        cut.work = measure(instance, cut.items);
    }
    cut.orders = orders(cut.work);
    if (!anchor.pipelined()) return cut;
    // In a pipeline text goes from short to long and back to short, so that neighbours are alike.
    for (auto& order : cut.orders) {
        const auto text = std::stable_partition(order.begin(), order.end(),
                                                [&](int item) { return cut.work.other_work[item] != 0; });
        const std::vector<int> list = rising_and_falling({text, order.end()}, cut.work.anchor_s);
        std::copy(list.begin(), list.end(), text);
    }
    for (auto& order : placements(instance, cut.items, cut.work, cut.orders.front(), cut.spread))
        cut.orders.push_back(std::move(order));
    return cut;
}

}  // namespace maestro::schedule
