#include "backend/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "backend/gpus.hpp"

namespace maestro::backend {

namespace {
constexpr const char* kQueuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kDefaultQueues = 8, kMostQueues = 32;
}  // namespace

int hardware_queues() {
    const char* const text = std::getenv(kQueuesVariable);
    return text ? std::clamp(std::atoi(text), 1, kMostQueues) : kDefaultQueues;
}

void set_library_environment() {
    setenv(kQueuesVariable, std::to_string(kMostQueues).c_str(), 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

Device choose_device(const std::string& wanted, int index, int count, GemmOptions gemm) {
    if (wanted == "cpu") return {.reason = "run.device = \"cpu\"", .gemm = {}};
    const Gpus gpus = find_gpus();
    if (gpus.count == 0) {
        if (wanted == "cuda")
            throw Error(
                ExitCode::bad_deck,
                fmt::format("run.device: no GPU here: {}; allowed: auto, cpu, emulated", gpus.why_none));
        return {.reason = "no GPU: " + gpus.why_none, .gemm = {}};
    }
    const int number = index % gpus.count;
    return {.gpu = true,
            .number = number,
            .reason = fmt::format("GPU {} of {} for process {} of {} on the host", number, gpus.count, index,
                                  count),
            .gemm = gemm};
}

LibraryMemory library_memory(GemmOptions gemm, bool cudnn) {
    return {.workspace = kGemmWorkspace + (gemm.autotune ? kGemmTrial : 0),
            .reserve = kCodeReserve + (cudnn ? kCudnnReserve : 0)};
}

Traits traits_of(const Device& device, int threads) {
    return device.gpu ? Traits(1, false, attention_support_of_gpu(device.number)) : Traits(threads, true);
}

std::unique_ptr<Backend> open_device(const Device& device, int threads) {
    return device.gpu ? make_cuda(device.number, device.gemm) : make_cpu(threads);
}

}  // namespace maestro::backend
