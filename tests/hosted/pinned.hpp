// Memory of the host that the devices may copy from and to while the host goes on: what was allocated as
// such, and what was registered. Not thread-safe: callers hold the runtime's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace hosted {

class Pinned {
public:
    Pinned() = default;
    ~Pinned();
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

    void* allocate(std::size_t bytes);           ///< page-aligned and 0xff
    bool release(void* pointer);                 ///< false if it is no allocation
    bool add(void* pointer, std::size_t bytes);  ///< false if some of it is pinned
    bool remove(void* pointer);                  ///< false if it was not added
    bool holds(const void* pointer, std::size_t bytes) const;
    bool touches(const void* pointer, std::size_t bytes) const;  ///< whether any of the bytes is pinned

private:
    struct Range {
        std::size_t bytes;
        bool ours;
    };
    bool erase(void* pointer, bool ours);

    std::map<std::uintptr_t, Range> ranges_;
};

}  // namespace hosted
