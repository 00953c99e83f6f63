#include "train/step/slots.hpp"

#include <utility>

#include "base/check.hpp"

namespace maestro::train {

Slots::Slots(backend::Backend& backend, std::string section, int count, std::size_t bytes)
    : section_(std::move(section)) {
    for (int slot = 0; slot < count; ++slot) {
        arenas_.emplace_back(backend, bytes);
        free_.push_back(slot);
    }
}

Flight Slots::take() {
    MAESTRO_CHECK(any_free(), "section {}: more than {} micro-batches in flight", section_, arenas_.size());
    Flight flight;
    flight.slot = free_.back();
    free_.pop_back();
    memory(flight).reset();
    return flight;
}

Flight Slots::extract(int micro_batch) {
    auto node = flights_.extract(micro_batch);
    MAESTRO_CHECK(!node.empty(), "section {}: backward of micro-batch {} before its forward", section_,
                  micro_batch);
    return std::move(node.mapped());
}

void Slots::release_if(const std::function<bool(int micro_batch)>& over) {
    std::erase_if(flights_, [&](const auto& entry) {
        const bool done = over(entry.first);
        if (done) release(entry.second);
        return done;
    });
}

void Slots::check_empty() const {
    MAESTRO_CHECK(flights_.empty(), "section {}: {} micro-batches without their backward", section_,
                  flights_.size());
}

std::size_t Slots::bytes() const {
    std::size_t total = 0;
    for (const auto& arena : arenas_) total += arena.capacity();
    return total;
}

std::size_t Slots::used_bytes() const {
    std::size_t total = 0;
    for (const auto& arena : arenas_) total += arena.peak();
    return total;
}

}  // namespace maestro::train
