#include "schedule/policies/placement.hpp"

#include <algorithm>
#include <utility>

namespace maestro::schedule {

namespace {

constexpr double kTolerance = 1e-9;

/// The stages that limit each section without a loss: items pass at their rate.
std::vector<std::vector<int>> upstream_stages(const Instance& instance) {
    std::vector<std::vector<int>> stages;
    for (int section = 0; section < instance.sections(); ++section)
        if (!instance.of_loss(instance.first_stage(section)))
            stages.push_back(bottleneck_of(instance, section));
    return stages;
}

/// Times at which items can be complete upstream, one after another: the inputs of items in this order, or,
/// from the end of the step, the gradients in the reverse order.
class Arrivals {
public:
    Arrivals(const Instance& instance, const MicroBatches& items, const std::vector<double>& cost,
             const std::vector<double>& path)
        : instance_(instance), items_(items), cost_(cost), path_(path), stages_(upstream_stages(instance)) {}

    /// sequence: items; group_of: [item]. Returns seconds, [item].
    std::vector<double> of(const std::vector<int>& sequence, const std::vector<int>& group_of) const {
        std::vector<double> at(group_of.size(), 0.0);
        for (const std::vector<int>& lane : stages_) {
            const int first = lane.front();
            std::vector<double> done(instance_.shape(first).groups, 0.0);
            for (const int item : sequence) {
                double here = 0;
                for (const int i : items_.samples(item))
                    for (const int stage : lane) here += cost_[instance_.at(stage, i)];
                // Of several groups that serve the item's, the one that is free first takes it.
                const IndexRange serving = instance_.serving(first, group_of[item]);
                double& end = *std::min_element(done.begin() + serving.first, done.begin() + serving.last);
                end += here;
                // What the item's first sample needs in the stages of the section beside the longest.
                const double rest = (path_[item] - here) / static_cast<double>(items_.samples(item).size());
                if (here > 0) at[item] = std::max(at[item], end + std::max(rest, 0.0));
            }
        }
        return at;
    }

private:
    const Instance& instance_;
    const MicroBatches& items_;
    const std::vector<double>&cost_, &path_;
    std::vector<std::vector<int>> stages_;
};

/// Puts text before each of `heavy` until its time has come; returns the places of `heavy`.
std::vector<std::size_t> places(const std::vector<int>& heavy, std::vector<int> text,
                                const std::vector<double>& times, const std::vector<double>& cost) {
    std::vector<std::size_t> found;
    double now = 0;
    std::size_t next = 0;
    for (const int item : heavy) {
        for (; next < text.size() && now < times[item] * (1 - kTolerance); ++next) now += cost[text[next]];
        found.push_back(found.size() + next);
        now += cost[item];
    }
    return found;
}

}  // namespace

std::vector<int> rising_and_falling(std::vector<int> items, const std::vector<double>& value) {
    std::stable_sort(items.begin(), items.end(), [&](int a, int b) { return value[a] < value[b]; });
    std::vector<int> order(items.size());
    std::size_t first = 0, last = items.size();
    for (std::size_t k = 0; k < items.size(); ++k) order[k % 2 == 0 ? first++ : --last] = items[k];
    return order;
}

std::vector<std::vector<int>> placements(const Instance& instance, const MicroBatches& items,
                                         const Work& work, const std::vector<int>& preferred,
                                         const std::vector<int>& group_of) {
    std::vector<std::vector<int>> heavy(work.groups), text(work.groups);
    for (const int item : preferred) (work.other_work[item] ? heavy : text)[group_of[item]].push_back(item);
    // An encoder works for its groups in turn.
    std::vector<int> sequence;
    for (std::size_t k = 0, before = 1; before != sequence.size(); ++k) {
        before = sequence.size();
        for (const auto& list : heavy)
            if (k < list.size()) sequence.push_back(list[k]);
        if (k == 0 && sequence.empty()) break;
    }
    const std::vector<double> inputs =
        Arrivals(instance, items, instance.forward, work.head_s).of(sequence, group_of);
    std::reverse(sequence.begin(), sequence.end());
    const std::vector<double> gradients =
        Arrivals(instance, items, instance.backward, work.tail_s).of(sequence, group_of);
    std::vector<std::vector<int>> orders(kPlacements);
    for (int r = 0; r < work.groups; ++r) {
        const std::vector<int> light = rising_and_falling(text[r], work.anchor_s);
        const std::size_t count = light.size() + heavy[r].size();
        const std::vector<std::size_t> early = places(heavy[r], light, inputs, work.anchor_s);
        std::vector<int> from_end(heavy[r].rbegin(), heavy[r].rend());
        std::vector<std::size_t> late =
            places(from_end, {light.rbegin(), light.rend()}, gradients, work.anchor_s);
        std::reverse(late.begin(), late.end());
        for (int kind = 0; kind < kPlacements; ++kind) {
            auto next = light.begin();
            std::size_t at = 0;
            for (std::size_t k = 0; k < heavy[r].size(); ++k) {
                const std::size_t last = count - 1 - late[k];
                const double evenly = (static_cast<double>(k) + (r + 0.5) / work.groups) *
                                      static_cast<double>(count) / static_cast<double>(heavy[r].size());
                const std::size_t between =
                    std::max(std::min(static_cast<std::size_t>(evenly), last), std::min(early[k], last));
                const std::size_t place = kind == 0 ? early[k] : kind == 1 ? last : between;
                for (; at < place; ++at) orders[kind].push_back(*next++);
                orders[kind].push_back(heavy[r][k]);
                ++at;
            }
            orders[kind].insert(orders[kind].end(), next, light.end());
        }
    }
    return orders;
}

}  // namespace maestro::schedule
