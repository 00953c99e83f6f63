// The linear layers of several experts equal one linear layer for each expert, whatever numbers of rows the
// experts have.
#include "ops/grouped_linear.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/dispatch.hpp"
#include "ops/linear.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::kTypes;
using testing_support::rounding;
using Begin = std::vector<std::int64_t>;

/// The rows of four experts: experts without rows at either end and in between, one with all rows, one row
/// for each, and numbers that no block of a GEMM fits.
const std::vector<Begin> kRoutings{{0, 5, 5, 38, 41}, {0, 0, 7, 7, 7},     {0, 0, 0, 70, 70},
                                   {0, 1, 2, 3, 4},   {0, 64, 83, 83, 84}, {0, 0, 0, 0, 0}};

class GroupedLinear : public testing_support::Views {
protected:
    struct Layer {
        Tensor x, w, dy;             ///< inputs
        Tensor y, dx, dw;            ///< results
        std::vector<double> before;  ///< what dw held
    };
    Layer layer(DType type, const Begin& begin, std::int64_t inputs, std::int64_t outputs,
                std::int64_t shift) {
        const std::int64_t rows = begin.back(), experts = static_cast<std::int64_t>(begin.size()) - 1;
        Layer l{normal_view(type, rows, inputs, shift),
                normal_view(type, experts * outputs, inputs, shift),
                normal_view(type, rows, outputs, shift),
                view(type, rows, outputs, shift),
                view(type, rows, inputs, shift),
                normal_view(accumulate_type(type), experts * outputs, inputs, shift),
                {}};
        l.before = values(l.dw);
        return l;
    }
    static void run(backend::Backend& b, const Layer& l, const Begin& begin) {
        grouped_linear(b, l.x, l.w, begin, l.y);
        grouped_linear_backward_input(b, l.dy, l.w, begin, l.dx);
        grouped_linear_backward_weight(b, l.dy, l.x, begin, l.dw);
    }
    /// Calls body(type, begin, inputs, outputs, shift, what).
    template <class Body>
    void over_cases(Body&& body) {
        for (const DType type : kTypes)
            for (const Begin& begin : kRoutings)
                for (const auto& [inputs, outputs] : {std::pair{24, 40}, {67, 9}})
                    for (const std::int64_t shift : {0, 1}) {
                        const std::string what = fmt::format("{} {} rows {} -> {} from {}", name_of(type),
                                                             begin, inputs, outputs, shift);
                        body(type, begin, inputs, outputs, shift, what);
                        expect_kept_around(what);
                    }
    }
    void expect_all_near(const Tensor& found, const std::vector<double>& expected, DType type,
                         const std::string& what) {
        if (expected.empty())
            EXPECT_EQ(found.size(), 0) << what;
        else
            expect_near(found, expected, rounding(type), what);
    }
};

TEST_F(GroupedLinear, MatchesLoopsInDouble) {
    over_cases([&](DType type, const Begin& begin, std::int64_t inputs, std::int64_t outputs,
                   std::int64_t shift, const std::string& what) {
        const Layer l = layer(type, begin, inputs, outputs, shift);
        const auto x = values(l.x), w = values(l.w), dy = values(l.dy);
        std::vector<double> y(dy.size()), dx(x.size()), dw = l.before;
        for (std::size_t expert = 0; expert + 1 < begin.size(); ++expert)
            for (std::int64_t row = begin[expert]; row < begin[expert + 1]; ++row)
                for (std::int64_t o = 0; o < outputs; ++o)
                    for (std::int64_t i = 0; i < inputs; ++i) {
                        const auto of_w = static_cast<std::size_t>(
                            (static_cast<std::int64_t>(expert) * outputs + o) * inputs + i);
                        const auto of_x = static_cast<std::size_t>(row * inputs + i),
                                   of_y = static_cast<std::size_t>(row * outputs + o);
                        y[of_y] += x[of_x] * w[of_w];
                        dx[of_x] += dy[of_y] * w[of_w];
                        dw[of_w] += dy[of_y] * x[of_x];
                    }
        run(b_, l, begin);
        expect_all_near(l.y, y, type, what + ", y");
        expect_all_near(l.dx, dx, type, what + ", dx");
        expect_all_near(l.dw, dw, accumulate_type(type), what + ", dw");
    });
}

TEST_F(GroupedLinear, MatchesALinearLayerForEachExpert) {
    over_cases([&](DType type, const Begin& begin, std::int64_t inputs, std::int64_t outputs,
                   std::int64_t shift, const std::string& what) {
        const Layer l = layer(type, begin, inputs, outputs, shift);
        const Tensor y = filled(type, {begin.back(), outputs}), dx = filled(type, {begin.back(), inputs}),
                     dw = as_type(l.dw.dtype, l.dw, {l.dw.dim(0), inputs});
        for (std::size_t expert = 0; expert + 1 < begin.size(); ++expert) {
            const auto rows = [&](const Tensor& t) { return t.slice(begin[expert], begin[expert + 1]); };
            const auto of_expert = [&](const Tensor& t) {
                const auto e = static_cast<std::int64_t>(expert);
                return t.slice(e * outputs, (e + 1) * outputs);
            };
            linear(b_, rows(l.x), of_expert(l.w), rows(y));
            linear_backward_input(b_, rows(l.dy), of_expert(l.w), rows(dx), false);
            linear_backward_weight(b_, rows(l.dy), rows(l.x), of_expert(dw));
        }
        run(b_, l, begin);
        expect_all_near(l.y, values(y), type, what + ", y");
        expect_all_near(l.dx, values(dx), type, what + ", dx");
        expect_all_near(l.dw, values(dw), l.dw.dtype, what + ", dw");
    });
}

// Sizes that are divided into several pieces, within one expert and between experts.
TEST_F(GroupedLinear, GivesTheSameBitsWithAnyNumberOfThreads) {
    if (testing_support::kOnGpu) GTEST_SKIP() << "a GPU has no number of threads";
    constexpr std::int64_t kInputs = 200, kOutputs = 264;
    for (const DType type : kTypes)
        for (const Begin& begin : std::vector<Begin>{{0, 0, 700, 700}, {0, 310, 313, 640}, {0, 1, 2, 4}}) {
            const Layer l = layer(type, begin, kInputs, kOutputs, 0);
            std::vector<std::vector<double>> first;
            for (const int threads : {1, 2, 3}) {
                write(l.dw, l.before);
                run(*testing_support::make_device(threads), l, begin);
                const std::vector<std::vector<double>> found{values(l.y), values(l.dx), values(l.dw)};
                if (first.empty()) first = found;
                EXPECT_TRUE(found == first)
                    << fmt::format("{} {} rows, {} threads", name_of(type), begin, threads);
            }
            expect_kept_around(fmt::format("{} {} rows", name_of(type), begin));
        }
    testing_support::make_device(b_.threads());  // sets the number of threads of the process
}

TEST_F(GroupedLinear, CountsTheWorkOfExpertsWithRows) {
    const Begin begin{0, 6, 6, 10};
    const Layer l = layer(DType::bf16, begin, 16, 24, 0);
    for (backend::Backend* const b : {&b_, backend::make_meta().release()}) {
        const std::unique_ptr<backend::Backend> meta(b == &b_ ? nullptr : b);
        const auto expect_count = [&](double bytes, const auto& operation) {
            b->reset_counts();
            operation();
            EXPECT_EQ(b->counts().launches, 1);
            EXPECT_EQ(b->counts().flops, 2 * 10 * 16 * 24);
            EXPECT_EQ(b->counts().bytes, bytes);
        };
        const double rows = 2 * 10 * (16 + 24), weights = 2 * 2 * 16 * 24;
        expect_count(rows + weights, [&] { grouped_linear(*b, l.x, l.w, begin, l.y); });
        expect_count(rows + weights, [&] { grouped_linear_backward_input(*b, l.dy, l.w, begin, l.dx); });
        expect_count(rows + 2 * weights, [&] { grouped_linear_backward_weight(*b, l.dy, l.x, begin, l.dw); });
    }
    const auto side_of = [](const Begin& rows) {
        return backend::Backend::work_of({.form = backend::Backend::GroupedGemm::Form::output,
                                          .a = nullptr,
                                          .b = nullptr,
                                          .y = nullptr,
                                          .begin = rows,
                                          .inputs = 16,
                                          .outputs = 24,
                                          .in = DType::f32,
                                          .out = DType::f32})
            .side;
    };
    EXPECT_EQ(side_of({0, 6, 6, 11}), 5.5);
    EXPECT_EQ(side_of({0, 60, 60, 110}), 16);
}

TEST_F(GroupedLinear, RefusesShapesThatDoNotFit) {
    const Layer l = layer(DType::f32, {0, 4, 10}, 8, 12, 0);
    for (const Begin& begin :
         std::vector<Begin>{{}, {0, 4, 9}, {1, 4, 10}, {0, 11, 10}, {0, 10}, {0, 4, 6, 10}})
        EXPECT_THROW(run(b_, l, begin), Error);
    const Begin begin{0, 4, 10};
    EXPECT_THROW(grouped_linear(b_, l.dy, l.w, begin, l.x), Error);
    EXPECT_THROW(grouped_linear(b_, l.x, filled(DType::f64, {24, 8}), begin, l.y), Error);
    EXPECT_THROW(grouped_linear_backward_weight(b_, l.dy, l.x, begin, filled(DType::f64, {24, 8})), Error);
}

}  // namespace
}  // namespace maestro::ops
