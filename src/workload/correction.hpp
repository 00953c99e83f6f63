// What measured tasks say of the cost model: a factor for each section and phase, the time that its tasks
// took over the time that the model gave them.
#pragma once

#include <array>
#include <vector>

#include "schedule/problem.hpp"

namespace maestro::workload {

class Correction {
public:
    /// Every next_step() what came before counts `memory` times as much.
    explicit Correction(std::size_t sections, double memory = 1) : memory_(memory), sections_(sections) {}
    void next_step();
    /// The model's seconds of a sample in a section.
    void said(std::size_t section, const schedule::TaskCost& cost);
    /// Seconds of a section's tasks, forward (0) or backward (1).
    void took(std::size_t section, std::size_t phase, double seconds) {
        sections_[section].took[phase] += seconds;
    }
    /// Forward and backward. Where nothing was measured, that of all that was: the model's seconds may be of
    /// another unit. 1 where there is none.
    std::array<double, 2> factors(std::size_t section) const;
    void apply(schedule::SampleCost& cost) const;

private:
    struct Section {
        std::array<double, 2> took{}, said{};
    };
    double memory_;
    std::vector<Section> sections_;
};

}  // namespace maestro::workload
