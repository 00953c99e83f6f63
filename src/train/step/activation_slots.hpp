// Memory for the micro-batches of a stage in flight: the activations that a forward keeps for its backward,
// or the output of a forward-only section, which its consumers still read.
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

/// Owns the memory of a stage's whole window, allocated at once.
class ActivationSlots {
public:
    /// `section`: the name of the stage, for messages.
    ActivationSlots(backend::Backend& backend, std::string section, int count, std::size_t bytes);

    bool any_free() const { return !free_.empty(); }
    bool in_flight(int micro_batch) const { return in_flight_.contains(micro_batch); }
    /// Takes a free slot and empties its memory. Windows and credits make sure that there is one (checked).
    InFlight take();
    backend::Arena& memory(const InFlight& entry) { return arenas_[entry.slot]; }
    void keep(int micro_batch, InFlight entry) { in_flight_.emplace(micro_batch, std::move(entry)); }
    /// Removes a micro-batch from those kept (checked). Its slot stays in use until release().
    InFlight extract(int micro_batch);
    void release(const InFlight& entry) { free_.push_back(entry.slot); }
    /// Frees the slots of those micro-batches for which `over` returns true.
    void release_if(const std::function<bool(int micro_batch)>& over);
    void check_empty() const;  ///< at the end of a step

    std::size_t bytes() const;
    std::size_t used_bytes() const;  ///< the most that was in use

private:
    std::string section_;
    std::vector<backend::Arena> arenas_;
    std::vector<int> free_;
    std::unordered_map<int, InFlight> in_flight_;  ///< by micro-batch
};

}  // namespace maestro::train
