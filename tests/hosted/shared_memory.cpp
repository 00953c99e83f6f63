#include "shared_memory.hpp"

#include <algorithm>
#include <cstring>

#include "poison.hpp"

namespace maestro::kernels {
alignas(128) unsigned char maestro_shared_memory[hosted::kSharedBytes];
}

namespace hosted {
namespace {

using maestro::kernels::maestro_shared_memory;

// Bytes behind a launch's shared memory that are checked for overruns. Checking all would take longer than
// the launch.
constexpr std::size_t kWatched = 4096;
bool clean = false;

}  // namespace

void open_shared_memory(std::size_t bytes) {
    if (!clean) std::memset(maestro_shared_memory, 0xff, kSharedBytes);
    clean = true;
    ASAN_POISON_MEMORY_REGION(maestro_shared_memory + bytes, kSharedBytes - bytes);
}

void fill_shared_memory(std::size_t bytes) {
    if (bytes != 0) std::memset(maestro_shared_memory, 0xff, bytes);
}

std::optional<std::size_t> close_shared_memory(std::size_t bytes) {
    ASAN_UNPOISON_MEMORY_REGION(maestro_shared_memory, kSharedBytes);
    const unsigned char* const begin = maestro_shared_memory + bytes;
    const unsigned char* const end = maestro_shared_memory + std::min(kSharedBytes, bytes + kWatched);
    const unsigned char* const hit = std::find_if(begin, end, [](unsigned char c) { return c != 0xff; });
    fill_shared_memory(bytes);
    if (hit == end) return std::nullopt;
    return static_cast<std::size_t>(hit - maestro_shared_memory);
}

}  // namespace hosted
