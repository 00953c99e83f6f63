// The sums of a step over all ranks: its loss, its tokens, the squares of its gradients and the times of its
// tasks, all in one message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "io/metrics_file.hpp"
#include "model/module.hpp"

namespace maestro::train {

class StepSums {
public:
    explicit StepSums(std::size_t sections)
        : values_(kFirstSection + 3 * sections, 0.0), sections_(sections) {}
    void add(const model::Result& result);
    void add(std::span<const io::TaskRow> tasks);
    /// Collective: replaces this rank's values by the sums over all ranks.
    void sum_over(const comm::Communicator& world) { world.allreduce_sum(std::span(values_)); }

    double loss() const { return values_[0]; }
    double tokens() const { return values_[1]; }
    /// The sum of squares of a section's gradient.
    double& squares(std::size_t section) { return values_[kFirstSection + section]; }
    double squares() const;
    /// Seconds of a section's tasks, forward (0) or backward (1).
    double task_s(std::size_t section, std::size_t phase) const { return values_[at(section, phase)]; }

private:
    std::size_t at(std::size_t section, std::size_t phase) const {
        return kFirstSection + sections_ + 2 * section + phase;
    }

    static constexpr std::size_t kFirstSection = 2;
    std::vector<double> values_;  ///< loss, tokens; squares by section; times by section and phase
    std::size_t sections_;
};

}  // namespace maestro::train
