#include "train/coordinator/step_command.hpp"

#include <span>

#include "comm/patience.hpp"

namespace maestro::train {

void broadcast(const comm::Communicator& world, StepCommand& command) {
    // The commands and the plan travel in one message, because all ranks wait for it between two steps.
    std::vector<std::int64_t> words;
    if (world.rank() == 0) {
        words = {command.stop, command.flush_metrics};
        if (!command.stop) {
            const auto plan = schedule::encode(command.plan);
            words.insert(words.end(), plan.begin(), plan.end());
        }
    }
    // Rank 0 may be waiting for its planner, with the same deadline: its error names the plan.
    const comm::Patience patience(world.waiter());
    world.broadcast(words);
    command.stop = words[0] != 0;
    command.flush_metrics = words[1] != 0;
    if (!command.stop) command.plan = schedule::decode(std::span(words).subspan(2));
}

}  // namespace maestro::train
