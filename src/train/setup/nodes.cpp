#include "train/setup/nodes.hpp"

#include <string>
#include <utility>

#include "comm/agree.hpp"

namespace maestro::train {

workload::Scenario lay_on_nodes(const comm::Communicator& world, const comm::Topology& topology,
                                const config::Deck& deck, workload::Scenario scenario) {
    if (deck.run.device != "emulated") {
        const bool placed = world.size() == scenario.graph.world;
        if (placed) scenario.rank_nodes = topology.nodes;
        return workload::on_nodes(std::move(scenario), placed ? topology.ranks_per_node : 0);
    }
    const std::string& path = deck.emulated.cluster;
    std::string text;
    comm::agree(world, [&] {
        if (world.rank() == 0) text = config::read_text(path);
    });
    world.broadcast(text);
    return workload::on_cluster(std::move(scenario), config::parse_cluster(text, path));
}

}  // namespace maestro::train
