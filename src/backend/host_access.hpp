// Transfers of values between the host and tensors. On a device that uses the host's memory nothing is
// copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"

namespace maestro::backend {

/// Returns host values (token ids, row numbers, weights, pixels) as a tensor [n] of the device: the same
/// memory on a device that shares it, and otherwise a copy in `arena`. `values` must therefore outlive the
/// use of the tensor, unchanged.
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

/// A tensor for the host to read: the tensor itself on a device that shares the host's memory, and otherwise
/// a copy, which this object owns. Making it waits for the operations that write the tensor.
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

/// Calls write(values), which sets every element of the tensor: in place on a device that shares the host's
/// memory, and otherwise in a host array that is then uploaded.
template <class T, class Write>
void set_elements(Backend& backend, const Tensor& tensor, Write&& write) {
    if (backend.shares_memory()) return write(tensor.as<T>());
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    write(values.data());
    backend.upload(values.data(), tensor);
}

}  // namespace maestro::backend
