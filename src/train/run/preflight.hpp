// What is known of a job before any of its memory is taken: its samples, the cluster that an emulated one
// stands for, and what its sections need. All that a dry run in one process can tell.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/sample_file.hpp"
#include "emulation/emulation.hpp"
#include "train/run/run_context.hpp"
#include "workload/memory.hpp"
#include "workload/sample_table.hpp"

namespace maestro::train {

class Preflight {
public:
    /// Collective over the world. Errors of files and memory are thrown on all ranks. `context` outlives it.
    explicit Preflight(const RunContext& context);

    const data::SampleFile& samples() const { return *samples_; }
    const workload::SampleTable& table() const { return *table_; }
    const emulation::Emulation* emulation() const { return emulation_.get(); }  ///< null on a real device
    const config::Cluster* cluster() const { return emulation_ ? &emulation_->cluster() : nullptr; }
    /// What the sections take of this machine's memory, windows chosen.
    const workload::MemoryPlan& memory() const { return memory_; }
    /// For the log. `sections`: with a line for each section's memory, which Job tells otherwise.
    std::vector<std::string> description(bool sections) const;

private:
    void read_samples();
    void open_cluster();
    void plan_memory();

    const RunContext& context_;
    std::unique_ptr<data::SampleFile> samples_;
    std::unique_ptr<workload::SampleTable> table_;
    std::unique_ptr<emulation::Emulation> emulation_;
    workload::MemoryPlan memory_;
    std::vector<std::string> description_;
};

}  // namespace maestro::train
