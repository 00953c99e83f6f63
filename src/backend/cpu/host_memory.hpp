// The memory of a backend that computes in the host's memory.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backend/backend.hpp"

namespace maestro::backend {

class HostMemory : public Backend {
public:
    void* allocate(std::size_t bytes) final {
        const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
        void* pointer = rounded < bytes ? nullptr : std::aligned_alloc(64, rounded);
        if (!pointer)
            throw Error(ExitCode::device_memory,
                        fmt::format("cannot allocate {} MiB of memory", bytes >> 20));
        return pointer;
    }
    void release(void* pointer) noexcept final { std::free(pointer); }
    bool shares_memory() const final { return true; }
    void upload(const void* source, const Tensor& target) override {
        if (!target.empty()) std::memcpy(target.data, source, target.bytes());
    }
    void download(const Tensor& source, void* target) override {
        if (!source.empty()) std::memcpy(target, source.data, source.bytes());
    }
    std::unique_ptr<DeviceToHostReader> read_to_host(std::vector<Tensor> tensors) final {
        return read_in_place(std::move(tensors));
    }
};

}  // namespace maestro::backend
