#include "train/step/activation_slots.hpp"

#include <utility>

#include "base/check.hpp"

namespace maestro::train {

ActivationSlots::ActivationSlots(backend::Backend& backend, std::string section, int count, std::size_t bytes)
    : section_(std::move(section)) {
    for (int slot = 0; slot < count; ++slot) {
        arenas_.emplace_back(backend, bytes);
        free_.push_back(slot);
    }
}

InFlight ActivationSlots::take() {
    MAESTRO_CHECK(any_free(), "section {}: more than {} micro-batches in flight", section_, arenas_.size());
    InFlight entry;
    entry.slot = free_.back();
    free_.pop_back();
    memory(entry).reset();  // not in release(): consumers may read until the slot is used again
    return entry;
}

InFlight ActivationSlots::extract(int micro_batch) {
    auto node = in_flight_.extract(micro_batch);
    MAESTRO_CHECK(!node.empty(), "section {}: backward of micro-batch {} before its forward", section_,
                  micro_batch);
    return std::move(node.mapped());
}

void ActivationSlots::release_if(const std::function<bool(int micro_batch)>& over) {
    std::erase_if(in_flight_, [&](const auto& entry) {
        const bool done = over(entry.first);
        if (done) release(entry.second);
        return done;
    });
}

void ActivationSlots::check_empty() const {
    MAESTRO_CHECK(in_flight_.empty(), "section {}: {} micro-batches without their backward", section_,
                  in_flight_.size());
}

std::size_t ActivationSlots::bytes() const {
    std::size_t total = 0;
    for (const auto& arena : arenas_) total += arena.capacity();
    return total;
}

std::size_t ActivationSlots::used_bytes() const {
    std::size_t total = 0;
    for (const auto& arena : arenas_) total += arena.peak();
    return total;
}

}  // namespace maestro::train
