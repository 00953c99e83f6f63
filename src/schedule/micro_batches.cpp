#include "schedule/micro_batches.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace maestro::schedule {

namespace {

constexpr double kShorter = 1e-6;  ///< of a micro-batch; an exchange must gain more than that
constexpr int kRounds = 4;         ///< exchanges per micro-batch

/// Micro-batches of one replica and kind while they are levelled.
struct Cut {
    const std::vector<double>& cost;
    std::vector<std::vector<int>> batches;
    std::vector<double> load;

    void exchange(std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
        const double difference = cost[batches[a][i]] - cost[batches[b][j]];
        load[a] -= difference;
        load[b] += difference;
        std::swap(batches[a][i], batches[b][j]);
    }
    /// Makes the exchange of a sample of this micro-batch after which it and its partner deviate least from
    /// the mean; returns whether there is one that improves them.
    bool level(std::size_t a, double mean) {
        double best = 0;
        std::size_t best_i = 0, best_b = a, best_j = 0;
        for (std::size_t b = 0; b < batches.size(); ++b) {
            if (b == a) continue;
            const double from = load[a] - mean, to = load[b] - mean;
            for (std::size_t i = 0; i < batches[a].size(); ++i)
                for (std::size_t j = 0; j < batches[b].size(); ++j) {
                    const double difference = cost[batches[a][i]] - cost[batches[b][j]];
                    // How much the sum of the squares of both deviations falls.
                    const double gain = 2 * difference * (from - to - difference);
                    if (gain <= best) continue;
                    best = gain;
                    best_i = i;
                    best_b = b;
                    best_j = j;
                }
        }
        if (best <= kShorter * mean * kShorter * mean) return false;
        exchange(a, best_i, best_b, best_j);
        return true;
    }
};

std::vector<std::vector<int>> cut(const std::vector<double>& cost, std::vector<int> samples, int size) {
    const std::size_t limit = size, count = (samples.size() + limit - 1) / limit;
    Cut made{.cost = cost, .batches = std::vector<std::vector<int>>(count), .load = std::vector(count, 0.0)};
    std::stable_sort(samples.begin(), samples.end(), [&](int a, int b) { return cost[a] > cost[b]; });
    double mean = 0;
    for (const int i : samples) {
        std::size_t least = count;
        for (std::size_t b = 0; b < count; ++b)
            if (made.batches[b].size() < limit && (least == count || made.load[b] < made.load[least]))
                least = b;
        made.batches[least].push_back(i);
        made.load[least] += cost[i];
        mean += cost[i] / static_cast<double>(count);
    }
    bool better = size > 1;
    for (std::size_t round = 0; better && round < kRounds * count; ++round) {
        const auto [least, most] = std::minmax_element(made.load.begin(), made.load.end());
        const std::size_t low = least - made.load.begin(), high = most - made.load.begin();
        better = made.level(high, mean) || made.level(low, mean);
    }
    return std::move(made.batches);
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
                        const std::vector<int>& replica_of, int replicas, int size) {
    MicroBatches made;
    std::vector<std::vector<int>> of(2 * static_cast<std::size_t>(replicas));  // replicas, kinds
    for (std::size_t i = 0; i < cost.size(); ++i)
        of[2 * replica_of[i] + (other_work[i] ? 0 : 1)].push_back(static_cast<int>(i));
    for (std::vector<int>& samples : of)
        for (const std::vector<int>& batch : cut(cost, std::move(samples), size)) made.add(batch);
    return made;
}

}  // namespace maestro::schedule
