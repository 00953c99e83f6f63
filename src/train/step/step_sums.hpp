// The sums of a step over all ranks: its loss, its tokens, the squares of its gradients by section, and the
// times of its tasks by stage, all in one message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "graph/section_graph.hpp"
#include "io/metrics_file.hpp"
#include "model/module.hpp"

namespace maestro::train {

class StepSums {
public:
    StepSums(std::size_t sections, std::size_t stages)
        : values_(kFirstSection + sections + 2 * stages, 0.0), sections_(sections) {}
    void add(const model::Result& result);
    void add(std::span<const io::TaskRow> tasks, const graph::SectionGraph& graph);
    /// Collective: replaces this rank's values by the sums over all ranks.
    void sum_over(const comm::Communicator& world) { world.allreduce_sum(std::span(values_)); }

    double loss() const { return values_[0]; }
    double tokens() const { return values_[1]; }
    /// The sum of squares of a section's gradient.
    double& squares(std::size_t section) { return values_[kFirstSection + section]; }
    double squares() const;
    /// Seconds of a stage's tasks, forward (0) or backward (1), without those in which they waited for
    /// weights.
    double task_s(std::size_t stage, std::size_t phase) const { return values_[at(stage, phase)]; }

private:
    std::size_t at(std::size_t stage, std::size_t phase) const {
        return kFirstSection + sections_ + 2 * stage + phase;
    }

    static constexpr std::size_t kFirstSection = 2;
    std::vector<double> values_;  ///< loss, tokens; squares by section; times by stage and phase
    std::size_t sections_;
};

}  // namespace maestro::train
