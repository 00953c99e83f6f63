// The memory of the devices: one mapping, closed to the process except while it is open()ed for queued work.
// Allocations are 256-byte aligned with a guarded gap behind each; fresh and freed bytes are 0xff. Not
// thread-safe: callers hold the runtime's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace hosted {

class Memory {
public:
    struct Allocation {
        std::size_t bytes;
        int device;
    };

    explicit Memory(std::size_t capacity);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    void* allocate(std::size_t bytes, int device);  ///< bytes >= 1; null if there is no room
    /// False if it is no allocation. Stops if something was written into the gap behind it.
    bool release(void* pointer);
    /// The live allocation that all of these bytes are of, or null.
    const Allocation* find(const void* pointer, std::size_t bytes) const;
    bool maps(const void* pointer) const;  ///< whether an address of devices, allocated or not
    std::size_t capacity() const { return capacity_; }
    std::size_t used() const { return used_; }

    /// Opened as often as closed, it is closed.
    void open();
    void close();

    /// Shown with a wrong access: what runs, or null.
    void set_running(const char* what) { running_ = what; }
    void explain(const void* address) const;  ///< the last words of a segmentation fault

private:
    std::uintptr_t gap_of(std::size_t span) const;
    bool guard_is_whole(std::uintptr_t begin, std::size_t bytes) const;

    std::size_t capacity_, mapped_, used_ = 0, opens_ = 0;
    void* mapping_ = nullptr;
    std::uintptr_t base_ = 0, top_ = 0;  // top: no allocation has come so far
    std::map<std::uintptr_t, Allocation> live_;
    const char* running_ = nullptr;
};

}  // namespace hosted
