#include "base/check.hpp"

namespace maestro::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
    throw Error(ExitCode::broken_invariant,
                fmt::format("{}:{}: check failed: {}: {}; this is a defect of maestro, please report it",
                            file, line, expression, message));
}

}  // namespace maestro::detail
