#include "workload/correction.hpp"

namespace maestro::workload {

void Correction::next_step() {
    for (Section& section : sections_)
        for (std::size_t phase = 0; phase < 2; ++phase) {
            section.measured_s[phase] *= decay_;
            section.predicted_s[phase] *= decay_;
        }
}

void Correction::add_predicted(std::size_t section, const schedule::TaskCost& cost) {
    if (!cost.active) return;
    sections_[section].predicted_s[0] += cost.forward_s;
    sections_[section].predicted_s[1] += cost.backward_s;
}

std::array<double, 2> Correction::factors(std::size_t section) const {
    double measured_s = 0, predicted_s = 0;
    for (const Section& s : sections_)
        for (std::size_t phase = 0; phase < 2; ++phase)
            if (s.measured_s[phase] > 0 && s.predicted_s[phase] > 0) {
                measured_s += s.measured_s[phase];
                predicted_s += s.predicted_s[phase];
            }
    const double overall = predicted_s > 0 ? measured_s / predicted_s : 1;
    std::array<double, 2> factors{overall, overall};
    const Section& s = sections_[section];
    for (std::size_t phase = 0; phase < 2; ++phase)
        if (s.measured_s[phase] > 0 && s.predicted_s[phase] > 0)
            // A ratio of sums rather than a mean of ratios: long tasks, which decide how long a step is,
            // count more, and short ones, whose times are noisy, count less.
            factors[phase] = s.measured_s[phase] / s.predicted_s[phase];
    return factors;
}

void Correction::apply(schedule::Problem& problem) const {
    for (std::size_t s = 0; s < sections_.size(); ++s) {
        const auto [forward, backward] = factors(s);
        problem.stages[s].lacking_forward_s *= forward;
        problem.stages[s].lacking_backward_s *= backward;
        for (schedule::SampleCost& cost : problem.samples) {
            cost.stages[s].forward_s *= forward;
            cost.stages[s].backward_s *= backward;
        }
    }
}

}  // namespace maestro::workload
