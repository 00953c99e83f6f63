// Measures the speed of every operation on a GPU, and its share of the GPU's peak rates.
#pragma once

#include <string>

#include "peaks.hpp"
#include "workbench.hpp"

namespace maestro::gpu_check {

struct BenchOptions {
    std::string only;      ///< part of an operation's name
    bool small = false;    ///< small sizes, whose speed is meaningless, to test the program
    double seconds = 120;  ///< no operation starts after this time
};

/// Prints one line of JSON per operation, type and size. Returns how many were left out for lack of time.
int measure(backend::Backend& gpu, const Peaks& peaks, const BenchOptions& options);

}  // namespace maestro::gpu_check
