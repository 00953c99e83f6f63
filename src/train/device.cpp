#include "train/device.hpp"

#include "train/agree.hpp"

namespace maestro::train {

backend::Device choose_device(const comm::Communicator& world, const comm::Topology& topology,
                              const config::Deck& deck) {
    backend::Device device;
    agree(world, [&] {
        // An emulated device is the host's memory and a clock.
        const std::string wanted = deck.run.device == "emulated" ? "cpu" : deck.run.device;
        device = backend::choose_device(wanted, topology.rank_on_node, topology.ranks_on_node);
    });
    return device;
}

}  // namespace maestro::train
