// Any bytes as a deck: parsed or refused with an Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "config/deck.hpp"
#include "workload/scenario.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        maestro::workload::make_scenario(maestro::config::parse_deck(
            {reinterpret_cast<const char*>(data), size}, "fuzz.toml", {}, maestro::config::Command::train));
    } catch (const maestro::Error&) {
    }
    return 0;
}
