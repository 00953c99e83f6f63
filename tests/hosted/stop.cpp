#include "stop.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

namespace hosted {

void stop(const std::string& message) {
    fmt::print(stderr, "simulated CUDA: {}\n", message);
    std::fflush(stderr);
    std::abort();
}

}  // namespace hosted
