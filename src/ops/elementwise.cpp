#include "ops/elementwise.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kBlock = 1 << 14;  ///< elements of one task of a thread

/// Calls body(begin, end) for blocks of all elements, on the threads of the rank.
template <class Body>
void for_each_block(std::int64_t size, Body&& body) {
    parallel_for((size + kBlock - 1) / kBlock, kBlock,
                 [&](std::int64_t i) { body(i * kBlock, std::min(size, (i + 1) * kBlock)); });
}

void check(const Tensor& source, const Tensor& target) {
    MAESTRO_CHECK(source.size() == target.size(), "sizes of {} and {} differ", source.describe(),
                  target.describe());
}

/// body(S{}, T{}) for the types of source and target.
template <class Body>
void by_types(const Tensor& source, const Tensor& target, Body&& body) {
    check(source, target);
    by_type(source.dtype, [&]<class S>(S s) { by_type(target.dtype, [&]<class T>(T t) { body(s, t); }); });
}

}  // namespace

void add(backend::Backend& b, const Tensor& x, const Tensor& y) {
    b.launch(
        {static_cast<double>(y.size()), static_cast<double>(x.bytes() + 2 * y.bytes())},
        [&] {
            by_types(x, y, [&]<class S, class T>(S, T) {
                using A = Accumulate<T>;
                const S* in = x.as<S>();
                T* out = y.as<T>();
                for_each_block(y.size(), [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i)
                        out[i] = static_cast<T>(static_cast<A>(out[i]) +
                                                static_cast<A>(static_cast<Accumulate<S>>(in[i])));
                });
            });
        },
        [&](Stream stream) {
            check(x, y);
            kernels::add(stream, x, y);
        });
}

void convert(backend::Backend& b, const Tensor& source, const Tensor& target) {
    b.launch(
        {0, static_cast<double>(source.bytes() + target.bytes())},
        [&] {
            by_types(source, target, [&]<class S, class T>(S, T) {
                const S* in = source.as<S>();
                T* out = target.as<T>();
                for_each_block(source.size(), [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i)
                        out[i] =
                            static_cast<T>(static_cast<Accumulate<T>>(static_cast<Accumulate<S>>(in[i])));
                });
            });
        },
        [&](Stream stream) {
            check(source, target);
            kernels::convert(stream, source, target);
        });
}

void copy(backend::Backend& b, const Tensor& source, const Tensor& target) {
    MAESTRO_CHECK(source.dtype == target.dtype && source.size() == target.size(), "{} and {}",
                  source.describe(), target.describe());
    if (source.empty()) return;
    b.launch(
        {0, 2.0 * static_cast<double>(source.bytes())},
        [&] { std::memcpy(target.data, source.data, source.bytes()); },
        [&](Stream stream) { kernels::copy(stream, source, target); });
}

void zero(backend::Backend& b, const Tensor& t) {
    b.launch(
        {0, static_cast<double>(t.bytes())},
        [&] {
            if (t.bytes() > 0) std::memset(t.data, 0, t.bytes());
        },
        [&](Stream stream) { kernels::zero(stream, t); });
}

}  // namespace maestro::ops
