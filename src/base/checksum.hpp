// Checksum: XXH64 with seed 0 over several arrays, as if they were one array.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace maestro {

class Checksum {
public:
    Checksum() : state_(XXH64_createState(), XXH64_freeState) { XXH64_reset(state_.get(), 0); }
    void add(const void* data, std::size_t bytes) {
        if (bytes > 0) XXH64_update(state_.get(), data, bytes);
    }
    template <class T>
    void add(const std::vector<T>& values) {
        add(values.data(), values.size() * sizeof(T));
    }
    std::uint64_t value() const { return XXH64_digest(state_.get()); }

private:
    std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state_;
};

}  // namespace maestro
