#include "comm/agree.hpp"

#include <algorithm>
#include <string>

#include "base/as_error.hpp"
#include "comm/patience.hpp"

namespace maestro::comm {

void agree(const Communicator& world, const std::function<void()>& action) {
    int code = 0;
    std::string message;
    try {
        action();
    } catch (const std::exception& thrown) {
        const Error error = as_error(thrown);
        code = static_cast<int>(error.code());
        message = error.what();
    }
    const Patience patience(world.waiter());
    const std::vector<int> codes = world.allgather(code);
    const auto failed = std::find_if(codes.begin(), codes.end(), [](int c) { return c != 0; });
    if (failed == codes.end()) return;
    const int first = static_cast<int>(failed - codes.begin());
    world.broadcast(message, first);
    throw Error(static_cast<ExitCode>(*failed), message, Scope::all_ranks);
}

}  // namespace maestro::comm
