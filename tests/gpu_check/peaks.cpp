#include "peaks.hpp"

#include <algorithm>
#include <vector>

#include "backend/arena.hpp"
#include "backend/cuda/check.hpp"
#include "json_line.hpp"

namespace maestro::gpu_check {

struct DeviceTimer::Events {
    cudaEvent_t begin = nullptr, end = nullptr;
};

DeviceTimer::DeviceTimer(Stream stream) : stream_(stream), events_(std::make_unique<Events>()) {
    MAESTRO_CUDA_CALL(cudaEventCreate(&events_->begin));
    MAESTRO_CUDA_CALL(cudaEventCreate(&events_->end));
}
DeviceTimer::~DeviceTimer() {
    cudaEventDestroy(events_->begin);
    cudaEventDestroy(events_->end);
}
void DeviceTimer::start() {
    MAESTRO_CUDA_CALL(cudaEventRecord(events_->begin, stream_));
}
double DeviceTimer::stop() {
    MAESTRO_CUDA_CALL(cudaEventRecord(events_->end, stream_));
    MAESTRO_CUDA_CALL(cudaEventSynchronize(events_->end));
    float milliseconds = 0;
    MAESTRO_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_->begin, events_->end));
    return static_cast<double>(milliseconds) * 1e-3;
}

namespace {

int attribute(cudaDeviceAttr which) {
    int value = 0;
    MAESTRO_CUDA_CALL(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

int architecture() {
    return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

/// FLOPs of a multiprocessor per clock, and the clock that NVIDIA's data sheets assume.
struct Multiprocessor {
    int architecture;
    double bf16, f32, clock;
};
constexpr Multiprocessor kMultiprocessors[] = {
    {80, 2048, 128, 1.41e9}, {86, 1024, 256, 1.86e9},  {89, 1024, 256, 2.52e9},
    {90, 4096, 256, 1.83e9}, {100, 8192, 256, 1.86e9}, {120, 1024, 256, 2.41e9},
};

/// Bytes read plus written per second by a device-to-device cudaMemcpyAsync().
double copy_rate(backend::Backend& gpu, std::size_t bytes) {
    const backend::Buffer from(gpu, bytes), to(gpu, bytes);
    MAESTRO_CUDA_CALL(cudaMemsetAsync(from.data(), 1, bytes, gpu.stream()));
    DeviceTimer timer(gpu.stream());
    std::vector<double> seconds;
    for (int i = 0; i < 12; ++i) {
        timer.start();
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, gpu.stream()));
        const double elapsed_s = timer.stop();
        if (i >= 2) seconds.push_back(elapsed_s);
    }
    std::sort(seconds.begin(), seconds.end());
    return 2 * static_cast<double>(bytes) / std::max(seconds[seconds.size() / 2], 1e-9);
}

}  // namespace

Peaks peaks_of(backend::Backend& gpu, std::size_t bytes) {
    Peaks peaks{.copy_bytes = copy_rate(gpu, bytes)};
    const double multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    const double fastest = attribute(cudaDevAttrClockRate) * 1e3;
    for (const Multiprocessor& p : kMultiprocessors)
        if (p.architecture == architecture()) {
            peaks.bf16_flops = multiprocessors * p.bf16 * std::min(p.clock, fastest);
            peaks.f32_flops = multiprocessors * p.f32 * std::min(p.clock, fastest);
        }
    return peaks;
}

void describe_gpu(backend::Backend& gpu, const Peaks& peaks) {
    cudaDeviceProp properties{};
    int driver = 0, runtime = 0;
    MAESTRO_CUDA_CALL(cudaGetDeviceProperties(&properties, 0));
    MAESTRO_CUDA_CALL(cudaDriverGetVersion(&driver));
    MAESTRO_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
    JsonLine("gpu")
        .add("name", properties.name)
        .add("architecture", static_cast<double>(architecture()))
        .add("memory_bytes", static_cast<double>(properties.totalGlobalMem))
        .add("multiprocessors", static_cast<double>(properties.multiProcessorCount))
        .add("clock_hz", attribute(cudaDevAttrClockRate) * 1e3)
        .add("driver_cuda", static_cast<double>(driver))
        .add("runtime_cuda", static_cast<double>(runtime))
        .add("backend", gpu.describe())
        .add("copy_bytes_per_s", peaks.copy_bytes)
        .add("bf16_peak_flops", peaks.bf16_flops)
        .add("f32_peak_flops", peaks.f32_flops)
        .print();
}

}  // namespace maestro::gpu_check
