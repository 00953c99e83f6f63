// Any bytes as COSTS.csv: read or refused with an Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.hpp"
#include "config/deck.hpp"
#include "simulation/costs_file.hpp"
#include "workload/scenario.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const maestro::workload::Scenario scenario = maestro::workload::make_scenario(
        maestro::config::parse_deck(
            "[[section]]\nname = \"v\"\n[[section]]\nname = \"l\"\n[[edge]]\nfrom = \"v\"\nto = \"l\"\n",
            "deck", {}, maestro::config::Command::simulate, maestro::config::Times::from_file),
        maestro::config::Times::from_file);
    try {
        maestro::simulation::parse_costs({reinterpret_cast<const char*>(data), size}, "fuzz.csv",
                                         scenario.graph);
    } catch (const maestro::Error&) {
    }
    return 0;
}
