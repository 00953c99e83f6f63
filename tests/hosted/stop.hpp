// The end of a program that a GPU would have run wrongly, or not to its end.
#pragma once

#include <string>

namespace hosted {

/// Prints "hosted CUDA: MESSAGE" and aborts.
[[noreturn]] void stop(const std::string& message);

}  // namespace hosted
