// Corrects the cost model by measured tasks: for each section and phase, the ratio of the measured time of
// its tasks to the predicted time.
#pragma once

#include <array>
#include <vector>

#include "schedule/problem/problem.hpp"

namespace maestro::workload {

class Correction {
public:
    /// With every next_step() what was added before is weighted by `decay`.
    explicit Correction(std::size_t sections, double decay = 1) : decay_(decay), sections_(sections) {}
    void next_step();
    /// Adds the predicted seconds of a sample in a section.
    void add_predicted(std::size_t section, const schedule::TaskCost& cost);
    /// Adds measured seconds of tasks of a section, forward (phase 0) or backward (1).
    void add_measured(std::size_t section, std::size_t phase, double seconds) {
        sections_[section].measured_s[phase] += seconds;
    }
    /// The factors of forward and backward. A phase without measurements gets the ratio over all
    /// measurements, because predictions may have another unit than seconds. Without any measurement the
    /// factors are 1.
    std::array<double, 2> factors(std::size_t section) const;
    /// Corrects the costs of all samples.
    void apply(schedule::Problem& problem) const;

private:
    struct Section {
        std::array<double, 2> measured_s{}, predicted_s{};
    };
    double decay_;
    std::vector<Section> sections_;
};

}  // namespace maestro::workload
