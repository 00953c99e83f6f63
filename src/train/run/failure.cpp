#include "train/run/failure.hpp"

#include "base/error.hpp"

namespace maestro::train {

void end_before_unwinding(const RunContext& context, const std::function<void()>& work) {
    try {
        work();
    } catch (const Error& error) {
        if (context.device.gpu && context.world.size() > 1 && error.scope() == Scope::this_rank &&
            error.code() != ExitCode::device_memory)
            context.end_job(error);
        throw;
    }
}

}  // namespace maestro::train
