// The device that a test program runs its operations on, and single elements of its memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "support/elements.hpp"

namespace maestro::testing_support {

/// The same objects are linked into programs for the CPU (device_cpu.cpp) and for GPUs (device_gpu.cpp).
extern const bool kOnGpu;
/// A CPU with so many threads, or a GPU: the one for the process with this index on its host.
std::unique_ptr<backend::Backend> make_device(int threads, int index = 0);

/// Returns element i as a tensor of one element.
inline Tensor one_of(const Tensor& t, std::int64_t i) {
    Tensor one(t.data, t.dtype, {t.size()});
    return one.slice(i, i + 1);
}

inline double read_element(backend::Backend& b, const Tensor& t, std::int64_t i) {
    double bytes = 0;
    Tensor host(&bytes, t.dtype, {1});
    b.download(one_of(t, i), &bytes);
    return element_of(host, 0);
}

inline std::vector<double> read_elements(backend::Backend& b, const Tensor& t) {
    std::vector<std::byte> bytes(t.bytes());
    b.download(t, bytes.data());
    Tensor host = t;
    host.data = bytes.data();
    std::vector<double> list(static_cast<std::size_t>(t.size()));
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = element_of(host, static_cast<std::int64_t>(i));
    return list;
}

inline void write_elements(backend::Backend& b, const Tensor& t, const std::vector<double>& values) {
    std::vector<std::byte> bytes(t.bytes());
    Tensor host = t;
    host.data = bytes.data();
    for (std::int64_t i = 0; i < t.size(); ++i) set_element(host, i, values[static_cast<std::size_t>(i)]);
    b.upload(bytes.data(), t);
}

inline void write_element(backend::Backend& b, const Tensor& t, std::int64_t i, double value) {
    double bytes = 0;
    const Tensor host(&bytes, t.dtype, {1});
    set_element(host, 0, value);
    b.upload(&bytes, one_of(t, i));
}

}  // namespace maestro::testing_support
