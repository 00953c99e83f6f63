#include "memory.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "poison.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

constexpr std::size_t kAlignment = 256;
// Changing the protection costs time per page, so huge pages are used, always as a whole.
constexpr std::size_t kPage = std::size_t{2} << 20;

Memory* instance = nullptr;
struct sigaction previous;

void on_fault(int, siginfo_t* info, void*) {
    if (instance != nullptr && instance->maps(info->si_addr)) instance->explain(info->si_addr);
    // Not device memory: restores the previous handler, under which the access is repeated.
    sigaction(SIGSEGV, &previous, nullptr);
}

std::size_t round_up(std::size_t n, std::size_t unit) {
    return (n + unit - 1) / unit * unit;
}

/// The bytes of an allocation including the guard gap behind it.
std::size_t span_of(std::size_t bytes) {
    return round_up(bytes, kAlignment) + kAlignment;
}

char* pointer_to(std::uintptr_t address) {
    return reinterpret_cast<char*>(address);
}

}  // namespace

Memory::Memory(std::size_t capacity) : capacity_(capacity), mapped_(round_up(capacity, kPage) + kPage) {
    mapping_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED)
        stop(fmt::format("cannot reserve {} bytes of address space for device memory", mapped_));
    madvise(mapping_, mapped_, MADV_HUGEPAGE);
    base_ = end_ = round_up(reinterpret_cast<std::uintptr_t>(mapping_), kPage);
    instance = this;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous);
}

Memory::~Memory() {
    instance = nullptr;
    ASAN_UNPOISON_MEMORY_REGION(pointer_to(base_), end_ - base_);
    munmap(mapping_, mapped_);
}

void* Memory::allocate(std::size_t bytes, int device) {
    if (bytes > capacity_) return nullptr;
    const std::size_t span = span_of(bytes);
    const std::uintptr_t begin = gap_of(span);
    if (begin == 0) return nullptr;
    open();
    if (begin + span > end_) {
        end_ = round_up(begin + span, kPage);
        mprotect(pointer_to(base_), end_ - base_, PROT_READ | PROT_WRITE);
    }
    ASAN_UNPOISON_MEMORY_REGION(pointer_to(begin), span);
    std::memset(pointer_to(begin), 0xff, span);
    ASAN_POISON_MEMORY_REGION(pointer_to(begin + bytes), span - bytes);
    close();
    used_ += span;
    live_.emplace(begin, Allocation{bytes, device});
    return pointer_to(begin);
}

/// The address of the first gap of at least `span` bytes between allocations, or 0.
std::uintptr_t Memory::gap_of(std::size_t span) const {
    std::uintptr_t end = base_;
    for (const auto& [begin, allocation] : live_) {
        if (begin - end >= span) return end;
        end = begin + span_of(allocation.bytes);
    }
    return base_ + capacity_ - end >= span ? end : 0;
}

bool Memory::release(void* pointer) {
    const auto entry = live_.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (entry == live_.end()) return false;
    const auto [begin, allocation] = *entry;
    const std::size_t span = span_of(allocation.bytes);
    open();
    ASAN_UNPOISON_MEMORY_REGION(pointer_to(begin), span);
    if (!guard_is_intact(begin, allocation.bytes))
        stop(fmt::format("something wrote beyond the end of a device allocation of {} bytes",
                         allocation.bytes));
    std::memset(pointer_to(begin), 0xff, span);
    ASAN_POISON_MEMORY_REGION(pointer_to(begin), span);
    close();
    used_ -= span;
    live_.erase(entry);
    return true;
}

bool Memory::guard_is_intact(std::uintptr_t begin, std::size_t bytes) const {
    return std::all_of(pointer_to(begin + bytes), pointer_to(begin + span_of(bytes)),
                       [](char c) { return c == '\xff'; });
}

const Memory::Allocation* Memory::find(const void* pointer, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto entry = live_.upper_bound(address);
    if (entry == live_.begin()) return nullptr;
    --entry;
    const std::size_t offset = address - entry->first;
    const bool inside = offset <= entry->second.bytes && bytes <= entry->second.bytes - offset;
    return inside && (offset < entry->second.bytes) ? &entry->second : nullptr;
}

bool Memory::maps(const void* pointer) const {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return address >= base_ && address - base_ < capacity_;
}

void Memory::open() {
    if (opens_++ == 0 && end_ != base_) mprotect(pointer_to(base_), end_ - base_, PROT_READ | PROT_WRITE);
}

void Memory::close() {
    if (--opens_ == 0 && end_ != base_) mprotect(pointer_to(base_), end_ - base_, PROT_NONE);
}

void Memory::explain(const void* address) const {
    const Allocation* const allocation = find(address, 1);
    stop(fmt::format(
        "{} accessed device memory at {} ({})", running_ == nullptr ? "the host" : running_, address,
        allocation == nullptr ? "no allocation" : fmt::format("allocation of {} bytes", allocation->bytes)));
}

}  // namespace hosted
