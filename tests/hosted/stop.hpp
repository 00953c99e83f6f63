// Ends a program with an error that a GPU would show as wrong results, a crash or a hang.
#pragma once

#include <string>

namespace hosted {

/// Prints "simulated CUDA: MESSAGE" and aborts.
[[noreturn]] void stop(const std::string& message);

}  // namespace hosted
