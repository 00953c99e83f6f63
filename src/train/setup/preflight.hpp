// Everything that is read, checked and planned before memory is allocated: the samples, an emulated device,
// and the memory plan. A dry run of one process ends after it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample_file.hpp"
#include "emulation/emulation.hpp"
#include "train/setup/run_context.hpp"
#include "workload/memory.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

class Preflight {
public:
    /// Collective over the world, which either has the size that the graph asks for, or each of its ranks
    /// runs a graph of one rank by itself. Errors of files and memory are thrown on all ranks. The caller
    /// keeps `context` alive. `exchange_pictures`: see exchange_pictures().
    explicit Preflight(const RunContext& context, bool exchange_pictures = false);

    const data::Samples& samples() const { return *samples_; }
    std::shared_ptr<const data::Samples> shared_samples() const { return samples_; }
    /// The same where they have contents, which the lengths of [data.lengths] do not.
    const data::SampleFile& sample_file() const;
    const workload::SampleTable& table() const { return *table_; }
    const emulation::Emulation* emulation() const { return emulation_.get(); }  ///< null on a real device
    /// The scenario of the context, with the markers of the samples.
    const workload::Scenario& scenario() const { return scenario_; }
    /// What the sections need of this machine's memory. All windows are chosen.
    const workload::MemoryPlan& memory() const { return memory_; }
    /// What they need on the devices that are planned for: emulated ones, or those of a dry run for another
    /// machine; otherwise as memory(), on this machine's.
    const workload::MemoryPlan& planned() const { return emulated_plan_ ? *emulated_plan_ : memory_; }
    const workload::RankDevice& device() const { return device_; }
    /// Returns lines for the log. `sections`: with a line for each section's memory, which otherwise
    /// Job::description() has.
    std::vector<std::string> description(bool sections) const;

private:
    void read_samples(bool exchange);
    void emulate();
    void plan_memory();

    const RunContext& context_;
    workload::Scenario scenario_;
    std::shared_ptr<data::Samples> samples_;
    std::shared_ptr<data::SampleFile> file_;  ///< samples_, where they have contents
    std::unique_ptr<workload::SampleTable> table_;
    std::unique_ptr<emulation::Emulation> emulation_;
    workload::MemoryPlan memory_;
    std::optional<workload::MemoryPlan> emulated_plan_;  ///< on emulated devices
    workload::RankDevice device_;
    std::vector<std::string> description_;
};

}  // namespace maestro::train
