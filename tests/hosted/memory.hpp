// Device memory: one mapping, which is inaccessible except between open() and close(), while queued work
// runs. Allocations are aligned to 256 bytes, and a guard gap behind each detects overruns. New and freed
// bytes are 0xff, so that uninitialized floats are NaN. Not thread-safe: callers hold the runtime's lock.
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

    void* allocate(std::size_t bytes, int device);  ///< bytes >= 1; null if memory is exhausted
    /// Returns false if `pointer` is no allocation. Ends the program if something wrote into the gap behind
    /// it.
    bool release(void* pointer);
    /// The live allocation that contains all of these bytes, or null.
    const Allocation* find(const void* pointer, std::size_t bytes) const;
    bool maps(const void* pointer) const;  ///< whether it is a device address, allocated or not
    std::size_t capacity() const { return capacity_; }
    std::size_t used() const { return used_; }

    /// Makes the memory accessible. Calls nest: it is inaccessible after as many calls of close().
    void open();
    void close();

    /// Names the running work in reports of wrong accesses; null for the host.
    void set_running(const char* what) { running_ = what; }
    void explain(const void* address) const;  ///< reports a segmentation fault and ends the program

private:
    std::uintptr_t gap_of(std::size_t span) const;
    bool guard_is_intact(std::uintptr_t begin, std::size_t bytes) const;

    std::size_t capacity_, mapped_, used_ = 0, opens_ = 0;
    void* mapping_ = nullptr;
    std::uintptr_t base_ = 0, end_ = 0;  // end_: the highest end of an allocation so far
    std::map<std::uintptr_t, Allocation> live_;
    const char* running_ = nullptr;
};

}  // namespace hosted
