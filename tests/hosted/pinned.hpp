// Pinned host memory: allocated by cudaMallocHost() or registered by cudaHostRegister(). Not thread-safe:
// callers hold the runtime's lock.
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

    void* allocate(std::size_t bytes);           ///< page-aligned, filled with 0xff
    bool release(void* pointer);                 ///< false if it was not allocated here
    bool add(void* pointer, std::size_t bytes);  ///< registers; false if part of it is pinned already
    bool remove(void* pointer);                  ///< unregisters; false if it was not registered
    bool contains(const void* pointer, std::size_t bytes) const;
    bool overlaps(const void* pointer, std::size_t bytes) const;  ///< whether any of the bytes are pinned

private:
    struct Range {
        std::size_t bytes;
        bool allocated;
    };
    bool erase(void* pointer, bool allocated);

    std::map<std::uintptr_t, Range> ranges_;
};

}  // namespace hosted
