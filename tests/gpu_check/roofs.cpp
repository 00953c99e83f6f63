#include "roofs.hpp"

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

/// Operations of one multiprocessor in one clock, and the clock that the data sheets' peaks are given for.
struct Processor {
    int architecture;
    double bf16, f32, clock;
};
constexpr Processor kProcessors[] = {
    {80, 2048, 128, 1.41e9}, {86, 1024, 256, 1.86e9},  {89, 1024, 256, 2.52e9},
    {90, 4096, 256, 1.83e9}, {100, 8192, 256, 1.86e9}, {120, 1024, 256, 2.41e9},
};

/// Bytes read and written in a second by the driver's own copy.
double copy_rate(backend::Backend& gpu, std::size_t bytes) {
    const backend::Buffer from(gpu, bytes), to(gpu, bytes);
    MAESTRO_CUDA_CALL(cudaMemsetAsync(from.data(), 1, bytes, gpu.stream()));
    DeviceTimer timer(gpu.stream());
    std::vector<double> seconds;
    for (int i = 0; i < 12; ++i) {
        timer.start();
        MAESTRO_CUDA_CALL(
            cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, gpu.stream()));
        const double took = timer.stop();
        if (i >= 2) seconds.push_back(took);
    }
    std::sort(seconds.begin(), seconds.end());
    return 2 * static_cast<double>(bytes) / std::max(seconds[seconds.size() / 2], 1e-9);
}

}  // namespace

Roofs roofs_of(backend::Backend& gpu, std::size_t bytes) {
    Roofs roofs{.copy_bytes = copy_rate(gpu, bytes)};
    const double processors = attribute(cudaDevAttrMultiProcessorCount);
    const double fastest = attribute(cudaDevAttrClockRate) * 1e3;
    for (const Processor& p : kProcessors)
        if (p.architecture == architecture()) {
            roofs.bf16_flops = processors * p.bf16 * std::min(p.clock, fastest);
            roofs.f32_flops = processors * p.f32 * std::min(p.clock, fastest);
        }
    return roofs;
}

void describe_gpu(backend::Backend& gpu, const Roofs& roofs) {
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
        .add("copy_bytes_per_s", roofs.copy_bytes)
        .add("bf16_peak_flops", roofs.bf16_flops)
        .add("f32_peak_flops", roofs.f32_flops)
        .print();
}

}  // namespace maestro::gpu_check
