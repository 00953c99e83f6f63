// Tensors on their way to a host that reads them once, one after the other, as for a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor.hpp"

namespace maestro::backend {

/// Made by Backend::read_to_host(). The tensors stay as they are as long as it lives.
class DeviceToHostReader {
public:
    DeviceToHostReader() = default;
    virtual ~DeviceToHostReader() = default;
    DeviceToHostReader(const DeviceToHostReader&) = delete;
    DeviceToHostReader& operator=(const DeviceToHostReader&) = delete;

    /// Elements [begin, end) of a tensor, in the host's memory until the next call.
    struct Chunk {
        std::size_t tensor = 0;  ///< which of them
        std::int64_t begin = 0, end = 0;
        const void* data = nullptr;
    };
    /// The next chunk, in the order of tensors and elements; waits until it is here. False after the last.
    virtual bool next(Chunk& chunk) = 0;
};

/// Each tensor is one chunk, where it lies: in the host's memory.
std::unique_ptr<DeviceToHostReader> read_in_place(std::vector<Tensor> tensors);

}  // namespace maestro::backend
