#include "base/as_error.hpp"

#include <filesystem>
#include <new>

namespace maestro {

Error as_error(const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) return *known;
    if (dynamic_cast<const std::bad_alloc*>(&error))
        return {ExitCode::device_memory,
                "the memory of this node, or of the process (ulimit -v, a container's limit), is used up"};
    if (dynamic_cast<const std::filesystem::filesystem_error*>(&error))
        return {ExitCode::io_error, error.what()};
    return {ExitCode::broken_invariant, error.what()};
}

}  // namespace maestro
