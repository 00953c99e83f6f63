// The bias of a linear layer is added to every row, and its gradient is the sum over all rows, for any number
// of rows and any alignment.
#include "ops/linear.hpp"

#include <fmt/format.h>

#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::rounding;

class Bias : public testing_support::Views {
protected:
    /// Calls body(type, rows, columns, shift, what) for sizes that are multiples neither of a vector nor of a
    /// chunk of rows.
    template <class Body>
    void over_sizes(Body&& body) {
        for (const DType type : {DType::f64, DType::f32, DType::bf16})
            for (const std::int64_t columns : {1, 4, 8, 33, 130, 1000})
                for (const std::int64_t rows : {0, 1, 7, 65, 193})
                    for (const std::int64_t shift : {0, 1}) {
                        const std::string what =
                            fmt::format("{} {} x {} from {}", name_of(type), rows, columns, shift);
                        body(type, rows, columns, shift, what);
                        expect_kept_around(what);
                    }
    }
};

TEST_F(Bias, IsAddedToEveryRow) {
    over_sizes([&](DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                   const std::string& what) {
        const Tensor bias = view(type, 1, columns, shift, normal(columns)),
                     y = view(type, rows, columns, shift, normal(rows * columns));
        const auto more = values(bias);
        auto expected = values(y);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += more[i % more.size()];
        add_bias(b_, bias, y);
        expect_each(y, expected, rounding(type), what);
    });
}

TEST_F(Bias, HasTheSumOfAllRowsAsGradient) {
    over_sizes([&](DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                   const std::string& what) {
        const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
        const Tensor dy = view(type, rows, columns, shift, normal(rows * columns)),
                     dbias = view(sums, 1, columns, shift, normal(columns));
        const auto gradient = values(dy);
        auto expected = values(dbias);
        for (std::size_t i = 0; i < gradient.size(); ++i) expected[i % expected.size()] += gradient[i];
        bias_backward(b_, dy, dbias, scratch_);
        expect_each(dbias, expected, 10 * rounding(sums), what);
    });
}

}  // namespace
}  // namespace maestro::ops
