// What a GPU can do at best: what rates are held against.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace maestro::gpu_check {

/// Seconds of the work that a stream gets between start() and stop().
class DeviceTimer {
public:
    explicit DeviceTimer(Stream stream);
    ~DeviceTimer();
    DeviceTimer(const DeviceTimer&) = delete;
    DeviceTimer& operator=(const DeviceTimer&) = delete;
    void start();
    double stop();  ///< waits for it

private:
    struct Events;
    Stream stream_;
    std::unique_ptr<Events> events_;
};

struct Roofs {
    double copy_bytes = 0;                 ///< per second, read and written, measured
    double bf16_flops = 0, f32_flops = 0;  ///< per second, of products; 0 where the architecture is unknown
};

/// `bytes`: how many are copied to measure.
Roofs roofs_of(backend::Backend& gpu, std::size_t bytes);

/// One line of JSON: name, architecture, memory, versions.
void describe_gpu(backend::Backend& gpu, const Roofs& roofs);

}  // namespace maestro::gpu_check
