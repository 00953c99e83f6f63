// Exceptions of the standard library as errors with an exit code.
#pragma once

#include <exception>

#include "base/error.hpp"

namespace maestro {

/// An Error as it is. Memory that could not be allocated is device_memory (80), a file operation that failed
/// io_error (74), and any other exception a broken invariant (70).
Error as_error(const std::exception& error);

}  // namespace maestro
