// How fast every operation is on a GPU, and how much of what the GPU can do that is.
#pragma once

#include <string>

#include "roofs.hpp"
#include "workbench.hpp"

namespace maestro::gpu_check {

struct BenchOptions {
    std::string only;      ///< part of an operation's name
    bool small = false;    ///< sizes that say nothing of speed, to try the program
    double seconds = 120;  ///< no operation is begun after them
};

/// One line of JSON an operation, type and size on stdout; how many there was no time for.
int measure(backend::Backend& gpu, const Roofs& roofs, const BenchOptions& options);

}  // namespace maestro::gpu_check
