// What a profiler shows beside a GPU's work: which section, which phase, which micro-batch.
#pragma once

#include <string>

#include "backend/backend.hpp"

namespace maestro::backend {

/// Ranges of NVTX's domain "maestro", one in the other, from here to the end of the scope: of the calling
/// thread, in which kernels are launched. Where operations run on the host there are none.
class ProfilerRange {
public:
    /// Section, phase and "micro-batch N"; the last where it is one's.
    ProfilerRange(const Backend& backend, const std::string& section, const char* phase,
                  int micro_batch = -1) {
        if constexpr (kCuda)
            if (backend.stream()) open(section, phase, micro_batch);
    }
    /// A part of what the ranges around it say.
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
