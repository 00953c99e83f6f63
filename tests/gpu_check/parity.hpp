// Compares every operation on a GPU with the CPU, at odd sizes and at typical ones.
#pragma once

#include <string>

#include "workbench.hpp"

namespace maestro::gpu_check {

struct ParityOptions {
    std::string only;     ///< part of an operation's name
    bool small = false;   ///< without the typical sizes
    bool compare = true;  ///< compare with the CPU and with a second run; else run once on the GPU
    bool poison = true;   ///< fill results with NaN before the run
};

/// Prints one line of JSON per operation, type and size. Returns how many failed.
int check_parity(backend::Backend& gpu, const ParityOptions& options);

}  // namespace maestro::gpu_check
