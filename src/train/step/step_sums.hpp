// What the ranks of a step add up: its loss, its tokens, its gradients' squares and its tasks' times.
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
    /// Collective: from this rank's values to those of all, in one message.
    void sum_over(const comm::Communicator& world) { world.allreduce_sum(std::span(values_)); }

    double loss() const { return values_[0]; }
    double tokens() const { return values_[1]; }
    /// Of the gradient of a section, the sum of squares.
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
