// The backends of this rank's sections. On the CPU the sections share a backend and its scratch memory, and
// their tasks take turns. On a GPU each section has a backend, so that their tasks overlap where no edge
// orders them.
#pragma once

#include <memory>
#include <vector>

#include "backend/arena.hpp"
#include "train/setup/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

class SectionDevices {
public:
    /// Opens the context's device for the sections that this rank holds, at least one, with as much scratch
    /// as the plan says.
    SectionDevices(const RunContext& context, const workload::MemoryPlan& plan);

    /// The backend of a section; null where this rank does not hold it.
    backend::Backend* find(int section);
    backend::Backend& backend(int section) { return *entry(section).backend; }
    backend::Arena& scratch(int section) { return entry(section).scratch; }
    /// One of them, to describe the device.
    const backend::Backend& any() const { return *entries_.front().backend; }
    std::size_t scratch_bytes() const;       ///< allocated
    std::size_t used_scratch_bytes() const;  ///< the most that was in use

private:
    struct Entry {
        std::unique_ptr<backend::Backend> backend;
        backend::Arena scratch;
    };
    Entry& entry(int section);
    std::vector<int> place_;  ///< by section, its index in entries_; -1: not held
    std::vector<Entry> entries_;
};

}  // namespace maestro::train
