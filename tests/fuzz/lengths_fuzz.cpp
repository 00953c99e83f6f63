// Any bytes as a CSV file of lengths: read or refused with an Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "data/sample_lengths.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        maestro::Pulse pulse;
        maestro::data::parse_lengths({reinterpret_cast<const char*>(data), size}, "fuzz.csv", pulse);
    } catch (const maestro::Error&) {
    }
    return 0;
}
