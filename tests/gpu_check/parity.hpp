// Every operation on a GPU against the same on the CPU, at sizes that no kernel likes and at usual ones.
#pragma once

#include <string>

#include "workbench.hpp"

namespace maestro::gpu_check {

struct ParityOptions {
    std::string only;     ///< part of an operation's name
    bool small = false;   ///< without the usual sizes
    bool compare = true;  ///< with the CPU, and a second run with the first; else the GPU runs, once
    bool poison = true;   ///< results, before
};

/// One line of JSON an operation, type and size on stdout; how many failed.
int check_parity(backend::Backend& gpu, const ParityOptions& options);

}  // namespace maestro::gpu_check
