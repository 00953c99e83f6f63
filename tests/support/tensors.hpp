// A fixture for tests of operations: tensors with known contents, and their values as doubles. It runs on the
// CPU or, in programs built for it, on a GPU (support/device.hpp).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "base/random.hpp"
#include "support/device.hpp"

namespace maestro::testing_support {

class Tensors : public testing::Test {
protected:
    /// Fills the scratch memory with NaN, so that reading uninitialized memory is noticed.
    explicit Tensors(int threads = 1) : backend_(make_device(threads)) {
        const std::vector<std::byte> poison(scratch_.capacity(), kPoisonByte);
        b_.upload(poison.data(), scratch_bytes(0, poison.size()));
    }
    /// Expects that operations have not written beyond the scratch memory that they allocated.
    void TearDown() override {
        const std::size_t peak = scratch_.peak();
        const Tensor beyond = scratch_bytes(peak, std::min(peak + 4096, scratch_.capacity()));
        std::vector<std::byte> bytes(beyond.bytes());
        b_.download(beyond, bytes.data());
        for (std::size_t i = 0; i < bytes.size(); ++i)
            ASSERT_EQ(bytes[i], kPoisonByte) << "byte " << i << " beyond the allocated scratch memory";
    }
    /// Returns a tensor of standard normal values times `scale`, rounded to the type. Every call returns
    /// other values.
    Tensor random(DType type, std::initializer_list<std::int64_t> shape, double scale = 1, double mean = 0) {
        const Random numbers(11, "tensors/" + std::to_string(stream_++));
        return made(type, shape, [&](std::int64_t i) {
            return mean + scale * numbers.normal(static_cast<std::uint64_t>(i));
        });
    }
    Tensor filled(DType type, std::initializer_list<std::int64_t> shape, double value = 0) {
        return made(type, shape, [&](std::int64_t) { return value; });
    }
    /// Returns a tensor of these values, such as ids, row numbers or weights.
    template <class T>
    Tensor list(const std::vector<T>& values) {
        const Tensor t = arena_.allocate(dtype_of<T>(), {static_cast<std::int64_t>(values.size())});
        b_.upload(values.data(), t);
        return t;
    }
    /// Returns the same values in another type.
    Tensor as_type(DType type, const Tensor& source, std::initializer_list<std::int64_t> shape) {
        const std::vector<double> of = values(source);
        return made(type, shape, [&](std::int64_t i) { return of[static_cast<std::size_t>(i)]; });
    }
    void set(const Tensor& t, std::int64_t i, double value) { write_element(b_, t, i, value); }
    double get(const Tensor& t, std::int64_t i) { return read_element(b_, t, i); }
    std::vector<double> values(const Tensor& t) { return read_elements(b_, t); }
    /// Expects that the norm of found - expected is at most `tolerance` times that of expected.
    void expect_near(const Tensor& found, const std::vector<double>& expected, double tolerance,
                     const std::string& what) {
        ASSERT_EQ(static_cast<std::size_t>(found.size()), expected.size()) << what;
        const std::vector<double> list = values(found);
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_TRUE(std::isfinite(list[i])) << what << ", element " << i;
            difference += std::pow(list[i] - expected[i], 2);
            norm += expected[i] * expected[i];
        }
        EXPECT_GT(norm, 0) << what << ": nothing to compare with";
        EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
    }

    std::unique_ptr<backend::Backend> backend_;
    backend::Backend& b_ = *backend_;
    backend::Arena arena_{b_, 64 << 20};
    backend::Arena scratch_{b_, 32 << 20};

private:
    static constexpr std::byte kPoisonByte{0xff};
    Tensor scratch_bytes(std::size_t begin, std::size_t end) {
        auto* const first = static_cast<std::byte*>(scratch_.allocate(DType::u8, {0}).data);
        return Tensor(first + begin, DType::u8, {static_cast<std::int64_t>(end - begin)});
    }
    template <class Value>
    Tensor made(DType type, std::initializer_list<std::int64_t> shape, Value&& value) {
        const Tensor t = arena_.allocate(type, shape);
        std::vector<double> list;
        for (std::int64_t i = 0; i < t.size(); ++i) list.push_back(value(i));
        write_elements(b_, t, list);
        return t;
    }
    int stream_ = 0;
};

/// Returns the relative error of rounding to the type, with a margin for sums.
inline double rounding(DType type) {
    return type == DType::f64 ? 1e-13 : type == DType::f32 ? 2e-6 : 1e-2;
}

}  // namespace maestro::testing_support
