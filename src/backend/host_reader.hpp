// A stream of tensors to the host, which reads them once and in order, as for writing a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor.hpp"

namespace maestro::backend {

/// Made by Backend::read_to_host(). The tensors must not change during its lifetime.
class DeviceToHostReader {
public:
    DeviceToHostReader() = default;
    virtual ~DeviceToHostReader() = default;
    DeviceToHostReader(const DeviceToHostReader&) = delete;
    DeviceToHostReader& operator=(const DeviceToHostReader&) = delete;

    /// Elements [begin, end) of a tensor. `data` is in the host's memory and valid until the next call of
    /// next().
    struct Chunk {
        std::size_t tensor = 0;  ///< index of the tensor
        std::int64_t begin = 0, end = 0;
        const void* data = nullptr;
    };
    /// Waits for the next chunk, in the order of tensors and elements. Returns false after the last one.
    virtual bool next(Chunk& chunk) = 0;
};

/// Returns a reader of tensors in the host's memory: each one is a chunk, which is not copied.
std::unique_ptr<DeviceToHostReader> read_in_place(std::vector<Tensor> tensors);

}  // namespace maestro::backend
