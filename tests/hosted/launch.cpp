// Kernel launches: checks the device's limits and queues the grid on a stream.
#include "include/hosted/launch.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "counts.hpp"
#include "runtime.hpp"
#include "shared_memory.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

constexpr unsigned kBlockThreads = 1024, kBlockZ = 64, kGridX = 0x7fffffff, kGridYz = 65'535;

cudaError_t check(const cudaLaunchConfig_t& c, std::size_t shared_bytes) {
    const dim3 g = c.gridDim, b = c.blockDim;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > kGridX || g.y > kGridYz || g.z > kGridYz)
        return cudaErrorInvalidConfiguration;
    if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > kBlockThreads || b.y > kBlockThreads || b.z > kBlockZ ||
        b.x * b.y * b.z > kBlockThreads)
        return cudaErrorInvalidConfiguration;
    if (c.dynamicSmemBytes > shared_bytes) return cudaErrorInvalidValue;
    return c.numAttrs == 0 ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace

cudaError_t launch(const LaunchSite& site, const void* kernel, void (*body)(const void* arguments),
                   std::shared_ptr<const void> arguments) {
    return call([&](Runtime& r) {
        if (site.config == nullptr) return cudaErrorInvalidValue;
        if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
        const cudaLaunchConfig_t& c = *site.config;
        if (!r.streams.alive(c.stream) || c.stream->device != current_device())
            return cudaErrorInvalidResourceHandle;
        const auto allowed = r.shared_bytes.find(kernel);
        const std::size_t shared_bytes =
            allowed == r.shared_bytes.end() ? kDefaultSharedBytes : static_cast<std::size_t>(allowed->second);
        if (const cudaError_t error = check(c, shared_bytes); error != cudaSuccess) return error;
        const Launch grid{body,       arguments.get(), c.gridDim, c.blockDim, c.dynamicSmemBytes,
                          site.where, ++r.launches};
        auto run = [&r, grid, arguments = std::move(arguments)] {
            r.grid.run(grid);
            return true;
        };
        count("a kernel");
        r.streams.push(c.stream, {std::move(run), "a kernel"});
        return cudaSuccess;
    });
}

void check_argument(const LaunchSite& site, const void* pointer) {
    Runtime& r = runtime();
    const std::lock_guard guard(r.lock.mutex);
    if (pointer == nullptr || r.memory.maps(pointer) || r.pinned.contains(pointer, 1)) return;
    stop(fmt::format("{}:{}: a kernel argument is the host address {}", site.where.file_name(),
                     site.where.line(), pointer));
}

}  // namespace hosted

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    return hosted::call([&](hosted::Runtime& r) {
        if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
        if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
            static_cast<std::size_t>(value) > hosted::kSharedBytes)
            return cudaErrorInvalidValue;
        // 49,152 bytes are always allowed; a smaller value does not lower the limit.
        r.shared_bytes[kernel] = std::max(value, static_cast<int>(hosted::kDefaultSharedBytes));
        return cudaSuccess;
    });
}
