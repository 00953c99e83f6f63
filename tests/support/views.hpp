// Matrices at any alignment within larger tensors, for errors that vectorized operations can make. Writing
// beside a matrix is noticed.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "support/fence.hpp"
#include "support/tensors.hpp"

namespace maestro::testing_support {

inline constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16};

/// Returns `value` rounded to the type.
inline double rounded(DType type, double value) {
    double room = 0;
    const Tensor one(&room, type, {1});
    set_element(one, 0, value);
    return element_of(one, 0);
}

class Views : public Tensors {
protected:
    using Tensors::Tensors;

    static constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();
    static constexpr double kAround = -77.5;  ///< exact in every type

    /// Returns a matrix [rows, columns] that begins at element `shift` of a larger tensor. Results are filled
    /// with NaN.
    Tensor view(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                double value = kPoison) {
        return view(type, rows, columns, shift,
                    std::vector<double>(static_cast<std::size_t>(rows * columns), value));
    }
    Tensor view(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                const std::vector<double>& values) {
        const std::int64_t size = rows * columns;
        const Tensor whole = filled(type, {shift + size + kBehind}, kAround);
        const Tensor inner = whole.slice(shift, shift + size).reshape({rows, columns});
        write(inner, values);
        views_.push_back({whole, shift, size});
        close_beside(b_, whole, shift, shift + size);
        return inner;
    }
    Tensor normal_view(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift) {
        return view(type, rows, columns, shift, normal(rows * columns));
    }
    std::vector<double> normal(std::int64_t size, double scale = 1) {
        const Random numbers(13, "views/" + std::to_string(stream_++));
        std::vector<double> list;
        for (std::int64_t i = 0; i < size; ++i)
            list.push_back(scale * numbers.normal(static_cast<std::uint64_t>(i)));
        return list;
    }
    /// Returns a + b, element by element.
    static std::vector<double> sum(std::vector<double> a, const std::vector<double>& b) {
        for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
        return a;
    }
    /// Sets all elements, rounded to the type.
    void write(const Tensor& tensor, const std::vector<double>& values) {
        if (tensor.size() > 0) write_elements(b_, tensor, values);
    }

    /// Expects |found - expected| <= tolerance (1 + |expected|) of every element.
    void expect_each(const Tensor& found, const std::vector<double>& expected, double tolerance,
                     const std::string& what) {
        const std::vector<double> list = values(found);
        ASSERT_EQ(list.size(), expected.size()) << what;
        for (std::size_t i = 0; i < list.size(); ++i)
            ASSERT_NEAR(list[i], expected[i], tolerance * (1 + std::abs(expected[i])))
                << what << ", element " << i;
    }
    /// Expects that every element is equal, and reports the first that differs.
    void expect_equal(const Tensor& found, const std::vector<double>& expected, const std::string& what) {
        const std::vector<double> list = values(found);
        ASSERT_EQ(list.size(), expected.size()) << what;
        for (std::size_t i = 0; i < list.size(); ++i)
            ASSERT_EQ(list[i], expected[i]) << what << ", element " << i;
    }
    /// Expects that nothing was written beside the views that were made since the last call, and frees all
    /// tensors.
    void expect_kept_around(const std::string& what) {
        for (const View& v : views_) {
            open_all(v.whole);
            const std::vector<double> list = values(v.whole);
            const auto kept = [&](auto from, auto to) {
                return std::all_of(from, to, [](double value) { return value == kAround; });
            };
            EXPECT_TRUE(kept(list.begin(), list.begin() + v.shift)) << what << ", in front";
            EXPECT_TRUE(kept(list.begin() + v.shift + v.size, list.end())) << what << ", behind";
        }
        views_.clear();
        arena_.reset();
    }

private:
    static constexpr std::int64_t kBehind = 40;  ///< elements
    struct View {
        Tensor whole;
        std::int64_t shift, size;
    };
    std::vector<View> views_;
    int stream_ = 0;
};

}  // namespace maestro::testing_support
