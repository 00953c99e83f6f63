#include "train/coordinator/step_command.hpp"

#include <span>

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
    world.broadcast(words);
    command.stop = words[0] != 0;
    command.flush_metrics = words[1] != 0;
    if (!command.stop) command.plan = schedule::decode(std::span(words).subspan(2));
}

}  // namespace maestro::train
