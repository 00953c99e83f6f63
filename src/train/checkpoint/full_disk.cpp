#include "train/checkpoint/full_disk.hpp"

#include "comm/agree.hpp"
#include "storage/file.hpp"

namespace maestro::train {

std::string agree_unless_full(const comm::Communicator& world, const std::function<void()>& action) {
    std::string fault;
    comm::agree(world, [&] {
        try {
            action();
        } catch (const storage::NoRoom& error) {
            fault = error.fault();
        }
    });
    const double full = world.max(fault.empty() ? -1 : world.rank());
    if (full >= 0) world.broadcast(fault, static_cast<int>(full));
    return fault;
}

}  // namespace maestro::train
