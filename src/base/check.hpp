// Checks of invariants, also in release builds; the message contains the failing expression. Check macros
// for calls of MPI and HDF5 are in comm/check.hpp and io/check.hpp.
#pragma once

#include <fmt/core.h>

#include "base/error.hpp"

namespace maestro::detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& message);
}

/// MAESTRO_CHECK(condition, "format", args...): throws Error(broken_invariant) with the expression, file and
/// line.
#define MAESTRO_CHECK(condition, ...)                                                                    \
    do {                                                                                                 \
        if (!(condition)) [[unlikely]]                                                                   \
            ::maestro::detail::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
    } while (0)

/// MAESTRO_FAIL("format", args...): for unreachable code; the compiler knows that it does not return.
#define MAESTRO_FAIL(...) \
    ::maestro::detail::check_failed("false", __FILE__, __LINE__, ::fmt::format(__VA_ARGS__))
