#include "backend/clock.hpp"

#include <chrono>

namespace maestro::backend {

Mark Clock::mark() {
    return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(), 0};
}

}  // namespace maestro::backend
