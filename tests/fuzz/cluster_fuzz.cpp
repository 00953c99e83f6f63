// Any bytes as a cluster file: parsed or refused with an Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "config/cluster.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        maestro::config::parse_cluster({reinterpret_cast<const char*>(data), size}, "fuzz.toml");
    } catch (const maestro::Error&) {
    }
    return 0;
}
