// Tensors that lie amid others, at any element: for what kernels that move several elements at once can get
// wrong.
#pragma once

#include <algorithm>
#include <limits>

#include "support/tensors.hpp"

namespace maestro::testing_support {

class Views : public Tensors {
protected:
    /// What lies around a view, of bf16 too.
    static constexpr double kAround = -77.5;
    static constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();

    /// `values`, rounded to the type, as rows x columns from element `shift` of a larger tensor on.
    Tensor view(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                const std::vector<double>& values) {
        const std::int64_t size = rows * columns;
        const Tensor whole = filled(type, {shift + size + kBehind}, kAround);
        const Tensor inner = whole.slice(shift, shift + size);
        std::vector<std::byte> bytes(inner.bytes());
        Tensor host = inner;
        host.data = bytes.data();
        for (std::int64_t i = 0; i < size; ++i) set_element(host, i, values[static_cast<std::size_t>(i)]);
        if (size > 0) b_.upload(bytes.data(), inner);
        views_.push_back({whole, shift, size});
        return inner.reshape({rows, columns});
    }
    /// Filled with NaN: for results.
    Tensor poisoned(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift) {
        return view(type, rows, columns, shift,
                    std::vector<double>(static_cast<std::size_t>(rows * columns), kPoison));
    }
    std::vector<double> normal(std::int64_t size, double scale = 1) {
        const Random numbers(13, "views/" + std::to_string(stream_++));
        std::vector<double> list;
        for (std::int64_t i = 0; i < size; ++i)
            list.push_back(scale * numbers.normal(static_cast<std::uint64_t>(i)));
        return list;
    }

    /// Every element by itself: |found - expected| <= tolerance (1 + |expected|).
    void expect_each(const Tensor& found, const std::vector<double>& expected, double tolerance,
                     const std::string& what) {
        const std::vector<double> list = values(found);
        ASSERT_EQ(list.size(), expected.size()) << what;
        for (std::size_t i = 0; i < list.size(); ++i)
            ASSERT_NEAR(list[i], expected[i], tolerance * (1 + std::abs(expected[i])))
                << what << ", element " << i;
    }
    /// Around all views since the last call, nothing has been written. Gives their memory back.
    void expect_kept_around(const std::string& what) {
        for (const View& v : views_) {
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
    static constexpr std::int64_t kBehind = 9;
    struct View {
        Tensor whole;
        std::int64_t shift, size;
    };
    std::vector<View> views_;
    int stream_ = 0;
};

}  // namespace maestro::testing_support
