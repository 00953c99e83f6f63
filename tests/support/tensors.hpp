// Tensors with known contents, and their values as doubles, for tests of operations on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/arena.hpp"
#include "base/random.hpp"
#include "support/elements.hpp"

namespace maestro::testing_support {

class Tensors : public testing::Test {
protected:
    explicit Tensors(int threads = 1) : backend_(backend::make_cpu(threads)) {}

    /// Of standard normal values times `scale`, rounded to the type; other ones with every call.
    Tensor random(DType type, std::initializer_list<std::int64_t> shape, double scale = 1) {
        const Tensor t = arena_.allocate(type, shape);
        const Random numbers(11, "tensors/" + std::to_string(stream_++));
        for (std::int64_t i = 0; i < t.size(); ++i)
            set(t, i, scale * numbers.normal(static_cast<std::uint64_t>(i)));
        return t;
    }
    Tensor filled(DType type, std::initializer_list<std::int64_t> shape, double value = 0) {
        const Tensor t = arena_.allocate(type, shape);
        for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, value);
        return t;
    }
    /// The same values in another type.
    Tensor as_type(DType type, const Tensor& source, std::initializer_list<std::int64_t> shape) {
        const Tensor t = arena_.allocate(type, shape);
        for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, get(source, i));
        return t;
    }
    static void set(const Tensor& t, std::int64_t i, double value) { set_element(t, i, value); }
    static double get(const Tensor& t, std::int64_t i) { return element_of(t, i); }
    static std::vector<double> values(const Tensor& t) {
        std::vector<double> list(static_cast<std::size_t>(t.size()));
        for (std::size_t i = 0; i < list.size(); ++i) list[i] = get(t, static_cast<std::int64_t>(i));
        return list;
    }
    /// |found - expected| is at most `tolerance` of |expected|, both as vectors.
    static void expect_near(const Tensor& found, const std::vector<double>& expected, double tolerance,
                            const std::string& what) {
        ASSERT_EQ(static_cast<std::size_t>(found.size()), expected.size()) << what;
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const double value = get(found, static_cast<std::int64_t>(i));
            ASSERT_TRUE(std::isfinite(value)) << what << ", element " << i;
            difference += std::pow(value - expected[i], 2);
            norm += expected[i] * expected[i];
        }
        EXPECT_GT(norm, 0) << what << ": nothing to compare with";
        EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
    }

    std::unique_ptr<backend::Backend> backend_;
    backend::Backend& b_ = *backend_;
    backend::Arena arena_{b_, 64 << 20};
    backend::Arena scratch_{b_, 16 << 20};

private:
    int stream_ = 0;
};

/// Relative error of one rounding to the type, and with some room for sums.
inline double rounding(DType type) {
    return type == DType::f64 ? 1e-13 : type == DType::f32 ? 2e-6 : 1e-2;
}

}  // namespace maestro::testing_support
