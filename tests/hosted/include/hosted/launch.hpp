// Launches of kernels that the host compiler compiled. Arguments are converted to the kernel's parameters and
// copied, and the stream runs the kernel later.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hosted {

/// A launch configuration and the source location of the launch.
struct LaunchSite {
    LaunchSite(const cudaLaunchConfig_t* config_,
               std::source_location where_ = std::source_location::current())
        : config(config_), where(where_) {}
    const cudaLaunchConfig_t* config;
    std::source_location where;
};

/// Queues body(arguments) for every thread of the grid. `kernel` identifies the kernel for its attributes.
/// Returns the errors that CUDA returns for invalid launches.
cudaError_t launch(const LaunchSite& site, const void* kernel, void (*body)(const void* arguments),
                   std::shared_ptr<const void> arguments);

/// Ends the program if a pointer argument is neither device memory nor pinned host memory.
void check_argument(const LaunchSite& site, const void* pointer);
template <class T>
void check_argument_of(const LaunchSite& site, const T& argument) {
    if constexpr (std::is_pointer_v<T>) check_argument(site, argument);
}

}  // namespace hosted

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(hosted::LaunchSite site, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
    static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                  "a kernel's parameters are copied as bytes");
    using Call = std::pair<void (*)(Parameters...), std::tuple<Parameters...>>;
    // Shared, because entries of the queue are copied.
    auto call = std::make_shared<const Call>(
        kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...));
    std::apply([&](const auto&... each) { (hosted::check_argument_of(site, each), ...); }, call->second);
    const auto body = [](const void* pointer) {
        const Call& c = *static_cast<const Call*>(pointer);
        std::apply(c.first, c.second);
    };
    return hosted::launch(site, reinterpret_cast<const void*>(kernel), body, std::move(call));
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
