#include "runtime.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <numeric>
#include <sstream>
#include <utility>

#include "counts.hpp"
#include "hosted.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

std::uint64_t environment_number(const char* variable, std::uint64_t default_value) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) return default_value;
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0') stop(fmt::format("{} = '{}' is not a number", variable, text));
    return value;
}

/// Parses CUDA_VISIBLE_DEVICES like CUDA: GPU numbers up to the first invalid one.
std::vector<int> visible_gpus(int count) {
    if (count > Ledger::kGpus) stop(fmt::format("{} GPUs are too many", count));
    std::vector<int> gpus;
    const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
        gpus.resize(static_cast<std::size_t>(count));
        std::iota(gpus.begin(), gpus.end(), 0);
        return gpus;
    }
    std::istringstream list(text);
    char comma = ',';
    for (int gpu = 0; comma == ',' && list >> gpu && gpu >= 0 && gpu < count; list >> comma) {
        gpus.push_back(gpu);
        comma = 0;
    }
    return gpus;
}

}  // namespace

Runtime::Runtime()
    : random(environment_number("MAESTRO_HOSTED_SEED", 1)),
      gpus(visible_gpus(static_cast<int>(environment_number("MAESTRO_HOSTED_DEVICES", 1)))),
      devices(static_cast<int>(gpus.size())),
      island(static_cast<int>(environment_number("MAESTRO_HOSTED_ISLAND", std::uint64_t{1} << 20))),
      architecture(static_cast<int>(environment_number("MAESTRO_HOSTED_ARCHITECTURE", 90))),
      external_later(environment_number("MAESTRO_HOSTED_TAKEN", 0)),
      context(environment_number("MAESTRO_HOSTED_CONTEXT", 0)),
      memory(environment_number("MAESTRO_HOSTED_MEMORY", std::uint64_t{16} << 30)) {}

Runtime& runtime() {
    static Runtime instance;
    return instance;
}

int current_device() {
    return device_of_thread;
}
void set_current_device(int device) {
    device_of_thread = device;
}

std::size_t free_bytes(const Runtime& r) {
    const int gpu = r.gpus.at(static_cast<std::size_t>(current_device()));
    const std::uint64_t used = r.ledger.used(gpu) + r.used;
    return used < r.memory.capacity() ? r.memory.capacity() - used : 0;
}

cudaError_t make_context(Runtime& r) {
    const int device = current_device();
    if (device >= r.devices) return cudaErrorNoDevice;
    if (r.contexts.count(device) > 0) return cudaSuccess;
    if (r.context > free_bytes(r)) return cudaErrorMemoryAllocation;
    r.contexts.insert(device);
    r.ledger.add(r.gpus.at(static_cast<std::size_t>(device)), r.context);
    return cudaSuccess;
}

cudaError_t keep_error(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

void refuse_host_functions() {
    if (HostThread::in_host_function()) stop("a host function called the CUDA runtime");
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const char* what) {
    return call([&](Runtime& r) {
        if (!r.streams.alive(stream)) return cudaErrorInvalidResourceHandle;
        auto once = [work = std::move(work)] {
            work();
            return true;
        };
        count(what);
        r.streams.push(stream, {std::move(once), what});
        return cudaSuccess;
    });
}

cudaError_t enqueue_until(cudaStream_t stream, std::function<bool()> attempt, const char* what) {
    return call([&](Runtime& r) {
        if (!r.streams.alive(stream)) return cudaErrorInvalidResourceHandle;
        r.streams.push(stream, {std::move(attempt), what});
        r.host_thread.keep_going();
        return cudaSuccess;
    });
}

Unlocked::Unlocked() {
    const std::lock_guard guard(runtime().lock.mutex);
    runtime().memory.open();
}

Unlocked::~Unlocked() {
    const std::lock_guard guard(runtime().lock.mutex);
    runtime().memory.close();
}

bool is_device(const void* pointer, std::size_t bytes) {
    const std::lock_guard guard(runtime().lock.mutex);
    return runtime().memory.find(pointer, bytes) != nullptr;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
    const std::lock_guard guard(runtime().lock.mutex);
    return runtime().pinned.contains(pointer, bytes);
}

void seed(std::uint64_t value) {
    const std::lock_guard guard(runtime().lock.mutex);
    runtime().random = Random(value);
}

}  // namespace hosted

extern "C" {

cudaError_t cudaGetLastError() {
    return std::exchange(hosted::last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
    return hosted::last_error;
}

}  // extern "C"
