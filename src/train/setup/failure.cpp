#include "train/setup/failure.hpp"

#include "base/as_error.hpp"
#include "base/error.hpp"

namespace maestro::train {

void end_before_unwinding(const RunContext& context, const std::function<void()>& work) {
    try {
        work();
    } catch (const std::exception& exception) {
        const Error error = as_error(exception);
        if (context.device.gpu && context.world.size() > 1 && error.scope() == Scope::this_rank &&
            error.code() != ExitCode::device_memory)
            context.end_job(error);
        throw;
    }
}

}  // namespace maestro::train
