// How values pass between the host and a tensor. On a device that uses the host's memory nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::backend {

/// What the host knows and the device needs (ids, places, weights, pixels), as a tensor [n]: the same memory
/// where they share it, which then has to stay as it is as long as the tensor is used; else a copy in
/// `arena`.
template <class T>
Tensor to_device(Backend& backend, std::span<const T> values, Arena& arena) {
    const auto size = static_cast<std::int64_t>(values.size());
    if (backend.shares_memory()) return Tensor(const_cast<T*>(values.data()), dtype_of<T>(), {size});
    const Tensor copy = arena.allocate(dtype_of<T>(), {size});
    if (size > 0) backend.upload(values.data(), copy);
    return copy;
}
template <class T>
Tensor to_device(Backend& backend, const std::vector<T>& values, Arena& arena) {
    return to_device(backend, std::span<const T>(values), arena);
}

/// A tensor for the host to read: itself where it lies, or a copy of it.
class HostCopy {
public:
    HostCopy(Backend& backend, const Tensor& tensor) : host_(tensor) {
        if (backend.shares_memory()) return;
        copy_.resize(tensor.bytes());
        backend.download(tensor, copy_.data());
        host_.data = copy_.data();
    }
    HostCopy(const HostCopy&) = delete;
    HostCopy& operator=(const HostCopy&) = delete;
    const Tensor& tensor() const { return host_; }

private:
    Tensor host_;
    std::vector<std::byte> copy_;
};

/// write(values) sets every element of a tensor, in its memory or in a copy that then goes there.
template <class T, class Write>
void set_elements(Backend& backend, const Tensor& tensor, Write&& write) {
    if (backend.shares_memory()) return write(tensor.as<T>());
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    write(values.data());
    backend.upload(values.data(), tensor);
}

}  // namespace maestro::backend
