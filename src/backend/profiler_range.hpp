// Ranges that a profiler shows beside a GPU's kernels: section, phase and micro-batch.
#pragma once

#include <string>

#include "backend/backend.hpp"

namespace maestro::backend {

/// Pushes nested NVTX ranges of the domain "maestro" for the calling thread, which launches the kernels, and
/// pops them at the end of the scope. Does nothing where operations run on the host.
class ProfilerRange {
public:
    /// Pushes the section, the phase and, unless micro_batch is negative, "micro-batch N".
    ProfilerRange(const Backend& backend, const std::string& section, const char* phase,
                  int micro_batch = -1) {
        if constexpr (kCuda)
            if (backend.stream()) open(section, phase, micro_batch);
    }
    /// Pushes one range for a part of the enclosing ones.
    ProfilerRange(const Backend& backend, const char* part) {
        if constexpr (kCuda)
            if (backend.stream()) push(part);
    }
    ~ProfilerRange() {
        if constexpr (kCuda)
            if (depth_ > 0) close();
    }
    ProfilerRange(const ProfilerRange&) = delete;
    ProfilerRange& operator=(const ProfilerRange&) = delete;

private:
    void open(const std::string& section, const char* phase, int micro_batch);
    void push(const char* name);
    void close();
    int depth_ = 0;
};

}  // namespace maestro::backend
