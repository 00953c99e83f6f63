// Steps of samples 0, 1, ... packed at random, for tests of routes.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::train {

using Batches = std::vector<std::vector<schedule::MicroBatch>>;  ///< [replica][micro-batch]

/// Random numbers 0..most.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : random_(seed, "routes") {}
    std::int64_t up_to(std::int64_t most) {
        return static_cast<std::int64_t>(random_.bits(next_++) % static_cast<std::uint64_t>(most + 1));
    }
    int from_one_to(int most) { return 1 + static_cast<int>(up_to(most - 1)); }

private:
    Random random_;
    std::uint64_t next_ = 0;
};

/// Puts `sample` into the replica's last micro-batch or into a new one.
inline void append(std::vector<schedule::MicroBatch>& replica, std::int64_t sample, Dice& dice) {
    if (replica.empty() || dice.up_to(2) == 0) replica.emplace_back();
    replica.back().samples.push_back(sample);
}

/// Section 0 feeds section 2, some of whose samples it does not see, and the other way round; 1 is in between
/// and no part of the edge.
inline schedule::StepPlan random_plan(Dice& dice, int producers, int fanout, std::int64_t samples) {
    schedule::StepPlan plan;
    plan.batches = {Batches(static_cast<std::size_t>(producers)), Batches(1),
                    Batches(static_cast<std::size_t>(producers * fanout))};
    std::array<std::vector<std::int64_t>, 2> seen;
    for (std::int64_t i = 0; i < samples; ++i) {
        if (dice.up_to(4) > 0) seen[0].push_back(i);
        if (dice.up_to(4) > 0) seen[1].push_back(i);
        if (dice.up_to(1) == 0) append(plan.batches[1][0], i, dice);
    }
    // A sample goes to one of the consumers that its producer serves. Their orders are independent.
    std::vector<std::int64_t> consumer(static_cast<std::size_t>(samples));
    for (auto& c : consumer) c = dice.up_to(producers * fanout - 1);
    for (const int side : {0, 1}) {
        auto& ids = seen[static_cast<std::size_t>(side)];
        for (std::size_t i = ids.size(); i > 1; --i)
            std::swap(ids[i - 1],
                      ids[static_cast<std::size_t>(dice.up_to(static_cast<std::int64_t>(i) - 1))]);
        for (const std::int64_t id : ids) {
            const auto to = static_cast<std::size_t>(consumer[static_cast<std::size_t>(id)]);
            append(side == 0 ? plan.batches[0][to / static_cast<std::size_t>(fanout)] : plan.batches[2][to],
                   id, dice);
        }
    }
    return plan;
}

}  // namespace maestro::train
