// What the sections of this rank compute with. On the CPU they share a backend and its scratch: their tasks
// take turns. On a GPU each has its own, so that tasks overlap where no edge orders them.
#pragma once

#include <memory>
#include <vector>

#include "backend/arena.hpp"
#include "train/run/run_context.hpp"
#include "workload/memory.hpp"

namespace maestro::train {

class SectionDevices {
public:
    /// Opens the context's device for the sections that this rank holds, at least one, with as much scratch
    /// as the plan says.
    SectionDevices(const RunContext& context, const workload::MemoryPlan& plan);

    /// Of a section; null where this rank does not hold it.
    backend::Backend* find(int section);
    backend::Backend& backend(int section) { return *owned(section).backend; }
    backend::Arena& scratch(int section) { return owned(section).scratch; }
    /// Any of them, to say what the device is.
    const backend::Backend& any() const { return *owned_.front().backend; }
    std::size_t scratch_bytes() const;       ///< taken
    std::size_t used_scratch_bytes() const;  ///< the part of them that was ever in use

private:
    struct Own {
        std::unique_ptr<backend::Backend> backend;
        backend::Arena scratch;
    };
    Own& owned(int section);
    std::vector<int> place_;  ///< in owned_, by section; -1: not held
    std::vector<Own> owned_;
};

}  // namespace maestro::train
