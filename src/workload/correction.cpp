#include "workload/correction.hpp"

namespace maestro::workload {

void Correction::next_step() {
    for (Section& section : sections_)
        for (std::size_t phase = 0; phase < 2; ++phase) {
            section.took[phase] *= memory_;
            section.said[phase] *= memory_;
        }
}

void Correction::said(std::size_t section, const schedule::TaskCost& cost) {
    if (!cost.active) return;
    sections_[section].said[0] += cost.forward_s;
    sections_[section].said[1] += cost.backward_s;
}

std::array<double, 2> Correction::factors(std::size_t section) const {
    double took = 0, said = 0;
    for (const Section& s : sections_)
        for (std::size_t phase = 0; phase < 2; ++phase)
            if (s.took[phase] > 0 && s.said[phase] > 0) {
                took += s.took[phase];
                said += s.said[phase];
            }
    const double overall = said > 0 ? took / said : 1;
    std::array<double, 2> factors{overall, overall};
    const Section& own = sections_[section];
    for (std::size_t phase = 0; phase < 2; ++phase)
        if (own.took[phase] > 0 && own.said[phase] > 0) factors[phase] = own.took[phase] / own.said[phase];
    return factors;
}

void Correction::apply(schedule::SampleCost& cost) const {
    for (std::size_t s = 0; s < sections_.size(); ++s) {
        const auto [forward, backward] = factors(s);
        cost.sections[s].forward_s *= forward;
        cost.sections[s].backward_s *= backward;
    }
}

}  // namespace maestro::workload
