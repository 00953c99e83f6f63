// Memory for the micro-batches of a section that are in flight: what a forward keeps for its backward, or
// what a forward-only section's consumers still read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/arena.hpp"
#include "model/module.hpp"

namespace maestro::train {

/// A micro-batch in flight.
struct InFlight {
    int slot = -1;
    std::vector<std::int64_t> samples;
    std::unique_ptr<model::Saved> saved;
};

/// Owns the memory of all of a section's window, taken at once.
class ActivationSlots {
public:
    /// `section` for messages.
    ActivationSlots(backend::Backend& backend, std::string section, int count, std::size_t bytes);

    bool any_free() const { return !free_.empty(); }
    bool in_flight(int micro_batch) const { return in_flight_.contains(micro_batch); }
    /// Takes a slot, with its memory empty. There must be a free one (checked): windows and credits see to
    /// that.
    InFlight take();
    backend::Arena& memory(const InFlight& entry) { return arenas_[entry.slot]; }
    void keep(int micro_batch, InFlight entry) { in_flight_.emplace(micro_batch, std::move(entry)); }
    /// Out of those kept (checked); its slot is taken until release().
    InFlight extract(int micro_batch);
    void release(const InFlight& entry) { free_.push_back(entry.slot); }
    /// Frees the slots of the micro-batches that are `over`.
    void release_if(const std::function<bool(int micro_batch)>& over);
    void check_empty() const;  ///< at the end of a step

    std::size_t bytes() const;
    std::size_t used_bytes() const;  ///< the part of them that was ever in use

private:
    std::string section_;
    std::vector<backend::Arena> arenas_;
    std::vector<int> free_;
    std::unordered_map<int, InFlight> in_flight_;  ///< by micro-batch
};

}  // namespace maestro::train
