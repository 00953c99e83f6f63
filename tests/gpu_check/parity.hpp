// Compares every operation on a GPU with the CPU, at odd sizes and at typical ones.
#pragma once

#include <optional>
#include <string>

#include "workbench.hpp"

namespace maestro::gpu_check {

struct ParityOptions {
    std::string only;                ///< part of an operation's name
    bool small = false;              ///< without the typical sizes
    bool compare = true;             ///< compare with the CPU and with a second run; else run once on the GPU
    bool poison = true;              ///< fill results with NaN before the run
    std::optional<DType> type = {};  ///< only this one
};

/// Prints one line of JSON per operation, type and size. Returns how many failed.
int check_parity(backend::Backend& gpu, const ParityOptions& options);

/// The same for attention in bf16, which cuDNN computes. Prints a last line that says what cuDNN did, or why
/// it was not used. Returns how many cases failed.
int check_cudnn(backend::Backend& gpu, bool small);

}  // namespace maestro::gpu_check
