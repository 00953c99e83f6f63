#include "train/device.hpp"

#include "train/agree.hpp"

namespace maestro::train {

backend::Device choose_device(const comm::Communicator& world, const comm::Topology& topology,
                              const config::Deck& deck) {
    backend::Device device;
    agree(world, [&] {
        // An emulated device is the host's memory and a clock.
        const std::string wanted = deck.run.device == "emulated" ? "cpu" : deck.run.device;
        device = backend::choose_device(
            wanted, topology.rank_on_node, topology.ranks_on_node,
            {.tf32 = deck.run.gpu_products == "tf32", .measured = deck.run.gpu_algorithms == "measured"});
    });
    return device;
}

std::unique_ptr<backend::Backend> open_device(const Launch& launch) {
    auto opened = backend::open_device(launch.device, launch.topology.threads);
    opened->wait_by([&waiter = launch.world.waiter()](const auto& ready, const std::string& what) {
        waiter.wait_until(ready, [&] { return what; });
    });
    return opened;
}

}  // namespace maestro::train
