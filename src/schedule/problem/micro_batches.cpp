#include "schedule/problem/micro_batches.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace maestro::schedule {

namespace {

constexpr double kShorter = 1e-6;  ///< of a micro-batch; an exchange must gain more than that
constexpr std::size_t kRounds = 4, kMaxRounds = 128;  ///< exchanges per micro-batch, and of all

/// Micro-batches of one group while they are levelled: the first `heavy` may have samples of both kinds,
/// the others have only text.
struct Cut {
    const std::vector<double>& cost;
    const std::vector<std::uint8_t>& other_work;
    std::size_t heavy = 0;
    std::vector<std::vector<int>> batches = {};
    std::vector<double> load = {};

    /// Adds samples by descending cost, each to the shortest of the micro-batches from `first` up to `last`
    /// that is not full.
    void add(std::vector<int> samples, std::size_t first, std::size_t last, std::size_t size) {
        std::stable_sort(samples.begin(), samples.end(), [&](int a, int b) { return cost[a] > cost[b]; });
        for (const int i : samples) {
            std::size_t least = last;
            for (std::size_t b = first; b < last; ++b)
                if (batches[b].size() < size && (least == last || load[b] < load[least])) least = b;
            batches[least].push_back(i);
            load[least] += cost[i];
        }
    }
    bool may_change(std::size_t a, int i, std::size_t b, int j) const {
        return other_work[i] == other_work[j] || (a < heavy && b < heavy);
    }
    /// Makes the exchange of a sample of this micro-batch after which it and its partner deviate least from
    /// the mean; returns whether there is one that improves them.
    bool level(std::size_t a, double mean) {
        double best = kShorter * mean * kShorter * mean;
        std::size_t best_i = 0, best_b = a, best_j = 0;
        for (std::size_t b = 0; b < batches.size(); ++b) {
            if (b == a) continue;
            const double apart = load[a] - load[b];
            for (std::size_t i = 0; i < batches[a].size(); ++i)
                for (std::size_t j = 0; j < batches[b].size(); ++j) {
                    const double difference = cost[batches[a][i]] - cost[batches[b][j]];
                    // How much the sum of the squares of both deviations falls.
                    const double gain = 2 * difference * (apart - difference);
                    if (gain <= best || !may_change(a, batches[a][i], b, batches[b][j])) continue;
                    best = gain;
                    best_i = i;
                    best_b = b;
                    best_j = j;
                }
        }
        if (best_b == a) return false;
        const double difference = cost[batches[a][best_i]] - cost[batches[best_b][best_j]];
        load[a] -= difference;
        load[best_b] += difference;
        std::swap(batches[a][best_i], batches[best_b][best_j]);
        return true;
    }
    void level() {
        if (batches.size() < 2) return;
        const double mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
        bool better = true;
        for (std::size_t round = 0; better && round < std::min(kRounds * load.size(), kMaxRounds); ++round) {
            const auto [least, most] = std::minmax_element(load.begin(), load.end());
            const std::size_t low = least - load.begin(), high = most - load.begin();
            better = level(high, mean) || level(low, mean);
        }
    }
};

/// heavy, light: the samples of one group.
std::vector<std::vector<int>> cut_together(Cut cut, const std::vector<int>& heavy,
                                           const std::vector<int>& light, std::size_t size) {
    const std::size_t count = (heavy.size() + light.size() + size - 1) / size;
    double of_heavy = 0, of_all = 0;
    for (const int i : heavy) of_heavy += cut.cost[i];
    for (const int i : light) of_all += cut.cost[i];
    of_all += of_heavy;
    // Enough for their number and their work, of which each should have an even share.
    const std::size_t by_number = (heavy.size() + size - 1) / size;
    const auto by_work =
        static_cast<std::size_t>(std::ceil(of_heavy / of_all * static_cast<double>(count) - 0.05));
    cut.heavy = std::min({std::max(by_number, by_work), heavy.size(), count});
    cut.batches.resize(count);
    cut.load.resize(count);
    cut.add(heavy, 0, cut.heavy, size);
    cut.add(light, 0, count, size);
    cut.level();
    return std::move(cut.batches);
}

}  // namespace

MicroBatches::MicroBatches(int samples) : samples_(samples), ends_(samples), item_of_(samples) {
    std::iota(samples_.begin(), samples_.end(), 0);
    std::iota(ends_.begin(), ends_.end(), 1);
    item_of_ = samples_;
}

void MicroBatches::add(std::span<const int> samples) {
    for (const int i : samples) {
        if (i >= static_cast<int>(item_of_.size())) item_of_.resize(i + 1, -1);
        item_of_[i] = static_cast<int>(ends_.size());
        samples_.push_back(i);
    }
    ends_.push_back(static_cast<int>(samples_.size()));
}

MicroBatches cut_evenly(const std::vector<double>& cost, const std::vector<std::uint8_t>& other_work,
                        const std::vector<int>& group_of, int groups, int size, Kinds kinds) {
    std::vector<std::vector<int>> heavy(groups), light(groups);
    for (std::size_t i = 0; i < cost.size(); ++i)
        (other_work[i] ? heavy : light)[group_of[i]].push_back(static_cast<int>(i));
    MicroBatches made;
    const auto cut = [&](const std::vector<int>& first, const std::vector<int>& second) {
        for (const auto& batch : cut_together({.cost = cost, .other_work = other_work}, first, second, size))
            made.add(batch);
    };
    for (int r = 0; r < groups; ++r) {
        if (kinds == Kinds::together) {
            cut(heavy[r], light[r]);
            continue;
        }
        cut(heavy[r], {});
        cut({}, light[r]);
    }
    return made;
}

}  // namespace maestro::schedule
