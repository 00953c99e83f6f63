#include "train/step/step_sums.hpp"

namespace maestro::train {

void StepSums::add(const model::Result& result) {
    values_[0] += result.loss;
    values_[1] += static_cast<double>(result.tokens);
}

void StepSums::add(std::span<const io::TaskRow> tasks, const graph::SectionGraph& graph) {
    for (const io::TaskRow& task : tasks) {
        const int stage = graph.stage_of(task.section, task.stage);
        values_[at(static_cast<std::size_t>(stage), static_cast<std::size_t>(task.phase))] += task.work_s();
    }
}

double StepSums::squares() const {
    double sum = 0;
    for (std::size_t s = 0; s < sections_; ++s) sum += values_[kFirstSection + s];
    return sum;
}

}  // namespace maestro::train
