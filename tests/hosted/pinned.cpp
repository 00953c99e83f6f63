#include "pinned.hpp"

#include <cstdlib>
#include <cstring>

namespace hosted {
namespace {

constexpr std::size_t kPage = 4096;

std::uintptr_t address_of(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

Pinned::~Pinned() {
    for (const auto& [address, range] : ranges_)
        if (range.allocated) std::free(reinterpret_cast<void*>(address));
}

void* Pinned::allocate(std::size_t bytes) {
    void* const pointer = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (pointer == nullptr) return nullptr;
    std::memset(pointer, 0xff, bytes);
    ranges_[address_of(pointer)] = {bytes, true};
    return pointer;
}

bool Pinned::release(void* pointer) {
    if (!erase(pointer, true)) return false;
    std::free(pointer);
    return true;
}

bool Pinned::add(void* pointer, std::size_t bytes) {
    if (overlaps(pointer, bytes)) return false;
    ranges_[address_of(pointer)] = {bytes, false};
    return true;
}

bool Pinned::remove(void* pointer) {
    return erase(pointer, false);
}

bool Pinned::erase(void* pointer, bool allocated) {
    const auto entry = ranges_.find(address_of(pointer));
    if (entry == ranges_.end() || entry->second.allocated != allocated) return false;
    ranges_.erase(entry);
    return true;
}

bool Pinned::contains(const void* pointer, std::size_t bytes) const {
    auto entry = ranges_.upper_bound(address_of(pointer));
    if (entry == ranges_.begin()) return false;
    --entry;
    const std::size_t offset = address_of(pointer) - entry->first;
    return offset < entry->second.bytes && bytes <= entry->second.bytes - offset;
}

bool Pinned::overlaps(const void* pointer, std::size_t bytes) const {
    const auto next = ranges_.lower_bound(address_of(pointer));
    return contains(pointer, 1) || (next != ranges_.end() && next->first - address_of(pointer) < bytes);
}

}  // namespace hosted
