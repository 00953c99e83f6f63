// The peak rates of a GPU, to which measured rates are compared.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace maestro::gpu_check {

/// Measures the time of the work that is enqueued between start() and stop().
class DeviceTimer {
public:
    explicit DeviceTimer(Stream stream);
    ~DeviceTimer();
    DeviceTimer(const DeviceTimer&) = delete;
    DeviceTimer& operator=(const DeviceTimer&) = delete;
    void start();
    double stop();  ///< seconds; waits for the work

private:
    struct Events;
    Stream stream_;
    std::unique_ptr<Events> events_;
};

struct Peaks {
    double copy_bytes = 0;                 ///< per second, read and written, measured
    double bf16_flops = 0, f32_flops = 0;  ///< per second; 0 for unknown architectures
};

/// `bytes`: the size of the measured copy.
Peaks peaks_of(backend::Backend& gpu, std::size_t bytes);

/// Prints one line of JSON: name, architecture, memory, versions.
void describe_gpu(backend::Backend& gpu, const Peaks& peaks);

}  // namespace maestro::gpu_check
