// Forbids kernels on a simulated GPU to access the memory around a tensor, where the program is linked with
// the address sanitizer: reading there ends the program. Precise to a byte behind a tensor, to eight in
// front.
#pragma once

#include <cstddef>

#include "base/tensor.hpp"
#include "support/device.hpp"

extern "C" {
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
}

namespace maestro::testing_support {

/// Closes `whole` but for elements [begin, end), once all that was queued has run.
inline void close_beside(backend::Backend& b, const Tensor& whole, std::int64_t begin, std::int64_t end) {
    if (!kOnGpu || __asan_poison_memory_region == nullptr || whole.size() == 0) return;
    std::byte any;
    b.download(Tensor(whole.data, DType::u8, {1}), &any);
    const auto size = static_cast<std::int64_t>(size_of(whole.dtype));
    auto* const first = static_cast<std::byte*>(whole.data);
    __asan_poison_memory_region(first, static_cast<std::size_t>(begin * size));
    __asan_poison_memory_region(first + end * size, static_cast<std::size_t>((whole.size() - end) * size));
}
inline void open_all(const Tensor& whole) {
    if (kOnGpu && __asan_unpoison_memory_region != nullptr)
        __asan_unpoison_memory_region(whole.data, whole.bytes());
}

}  // namespace maestro::testing_support
