// Dealer: which group of replicas gets which samples.
#pragma once

#include <vector>

#include "schedule/dice.hpp"
#include "schedule/instance.hpp"

namespace maestro::schedule {

/// Samples of each group. Constructive: by descending cost, those with other work first, to the group
/// whose fullest section stays lowest. Then pairs change groups while that levels the loads of all sections.
class Dealer {
public:
    Dealer(const Problem& problem, int groups);
    /// Places in the problem of each group's samples. `noise`: of the costs in the order of dealing, for
    /// another result each time; 0: none.
    std::vector<std::vector<int>> deal(double noise);

private:
    double total(std::size_t section) const;
    /// A group's fair share of the fullest section counts 1.
    double cost(int i, std::size_t section) const {
        return all_.total(static_cast<int>(section), i) * scale_[section];
    }
    double& load(int g, std::size_t section) { return load_[g * sections_ + section]; }
    void scatter();
    void polish();
    double pair_weight(int a, int b, int i, int j);

    Instance all_;
    int groups_;
    std::size_t sections_;
    Dice dice_;
    std::vector<double> scale_, load_;
    std::vector<std::vector<int>> dealt_;
};

}  // namespace maestro::schedule
