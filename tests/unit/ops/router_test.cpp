// The router against plain loops in double, sorting, finite differences and the routers of transformers.
#include "ops/router.hpp"

#include <numeric>
#include <set>

#include "base/error.hpp"
#include "support/finite_difference.hpp"
#include "support/views.hpp"

namespace maestro::ops {
namespace {

using testing_support::expect_gradient;
using testing_support::kOnGpu;
using testing_support::rounded;
using testing_support::rounding;

constexpr RouterForm kForms[] = {{RouterScore::softmax, true},
                                 {RouterScore::softmax, false},
                                 {RouterScore::sigmoid, true},
                                 {RouterScore::sigmoid, false}};

std::string name_of_form(RouterForm form) {
    return std::string(form.score == RouterScore::softmax ? "softmax" : "sigmoid") +
           (form.normalize ? ", normalized" : "");
}

std::vector<double> scores_of(const std::vector<double>& logits, RouterScore score) {
    std::vector<double> scores;
    double sum = 0;
    const double max = *std::max_element(logits.begin(), logits.end());
    for (const double x : logits) {
        scores.push_back(score == RouterScore::softmax ? std::exp(x - max) : 1 / (1 + std::exp(-x)));
        sum += scores.back();
    }
    if (score == RouterScore::softmax)
        for (double& s : scores) s /= sum;
    return scores;
}

/// The gradient of the logits by the full Jacobian matrices of the weights and of the scores.
std::vector<double> gradient_of(const std::vector<double>& scores, const std::vector<double>& d_weight,
                                const std::vector<std::int32_t>& choice, RouterForm form) {
    std::vector<double> d_score(scores.size()), d(scores.size());
    double sum = 0;
    for (const std::int32_t e : choice) sum += scores[static_cast<std::size_t>(e)];
    for (std::size_t i = 0; i < choice.size(); ++i)
        for (std::size_t j = 0; j < choice.size(); ++j) {
            const double same = i == j, score = scores[static_cast<std::size_t>(choice[i])],
                         slope = form.normalize ? (same - score / sum) / sum : same;
            d_score[static_cast<std::size_t>(choice[j])] += d_weight[i] * slope;
        }
    for (std::size_t e = 0; e < scores.size(); ++e) {
        if (form.score == RouterScore::sigmoid) d[e] = d_score[e] * scores[e] * (1 - scores[e]);
        if (form.score == RouterScore::softmax)
            for (std::size_t f = 0; f < scores.size(); ++f)
                d[e] += d_score[f] * scores[f] * ((e == f) - scores[e]);
    }
    return d;
}

template <class T>
std::vector<T> part(const std::vector<T>& list, std::int64_t row, std::int64_t columns) {
    return {list.begin() + row * columns, list.begin() + (row + 1) * columns};
}

class Router : public testing_support::Views {
protected:
    struct Routed {
        Tensor scores, choice, weight;
    };
    Routed routed(const Tensor& logits, const Tensor& bias, RouterForm form, std::int64_t k,
                  std::int64_t shift = 0) {
        const std::int64_t rows = logits.dim(0);
        const Routed found{view(logits.dtype, rows, logits.columns(), shift), places(rows, k),
                           view(logits.dtype, rows, k, shift)};
        route(b_, logits, bias, form, found.scores, found.choice, found.weight);
        return found;
    }
    Tensor places(std::int64_t rows, std::int64_t k) {
        return list(std::vector<std::int32_t>(static_cast<std::size_t>(rows * k), -7)).reshape({rows, k});
    }
    std::vector<std::int32_t> integers(const Tensor& t) {
        std::vector<std::int32_t> found(static_cast<std::size_t>(t.size()));
        if (t.size() > 0) b_.download(t, found.data());
        return found;
    }
    /// Expects the choice of a sort by the scores that were found, which may be equal where those in double
    /// are not.
    void expect_choice(const std::vector<double>& scores, const Tensor& bias,
                       const std::vector<std::int32_t>& found, const std::string& what) {
        const std::vector<double> added = bias.rank == 0 ? std::vector<double>(scores.size()) : values(bias);
        std::vector<double> keys;
        for (std::size_t e = 0; e < scores.size(); ++e)
            keys.push_back(bias.rank == 0 ? scores[e] : rounded(bias.dtype, scores[e] + added[e]));
        std::vector<std::int32_t> order(scores.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
        });
        order.resize(found.size());
        ASSERT_EQ(found, order) << what;
    }
};

TEST_F(Router, MatchesPlainLoopsForAnySize) {
    struct Case {
        std::int64_t rows, experts, k, shift;
    };
    for (const DType type : {DType::f64, DType::f32})
        for (const Case c :
             {Case{0, 4, 2, 0}, Case{3, 1, 1, 0}, Case{5, 2, 2, 1}, Case{9, 6, 3, 0}, Case{2, 33, 33, 1},
              Case{37, 128, 8, 0}, Case{1, 257, 40, 3}, Case{1, 700, 8, 0}, Case{2, 4096, 3, 0}})
            for (const RouterForm form : kForms)
                for (const bool biased : {false, true}) {
                    const std::string what =
                        fmt::format("{} of {}, {} rows, {}, {}{}", c.k, c.experts, c.rows, name_of(type),
                                    name_of_form(form), biased ? ", biased" : "");
                    const Tensor logits =
                        view(type, c.rows, c.experts, c.shift, normal(c.rows * c.experts, 2));
                    const Tensor bias =
                        biased
                            ? view(type, 1, c.experts, c.shift, normal(c.experts, 0.1)).reshape({c.experts})
                            : Tensor{};
                    const Tensor d_weight = normal_view(type, c.rows, c.k, c.shift),
                                 d = view(type, c.rows, c.experts, c.shift);
                    const Routed found = routed(logits, bias, form, c.k, c.shift);
                    route_backward(b_, d_weight, found.scores, found.choice, form, d);
                    const auto in = values(logits), scores = values(found.scores),
                               gradient = values(d_weight);
                    const auto choice = integers(found.choice);
                    std::vector<double> all_scores, weights, gradients;
                    for (std::int64_t r = 0; r < c.rows; ++r) {
                        const auto score = scores_of(part(in, r, c.experts), form.score),
                                   found_scores = part(scores, r, c.experts);
                        const auto chosen = part(choice, r, c.k);
                        expect_choice(found_scores, bias, chosen, what);
                        all_scores.insert(all_scores.end(), score.begin(), score.end());
                        double sum = 0;
                        for (const std::int32_t e : chosen) sum += score[static_cast<std::size_t>(e)];
                        for (const std::int32_t e : chosen)
                            weights.push_back(score[static_cast<std::size_t>(e)] /
                                              (form.normalize ? sum : 1));
                        const auto slopes = gradient_of(score, part(gradient, r, c.k), chosen, form);
                        gradients.insert(gradients.end(), slopes.begin(), slopes.end());
                    }
                    if (c.rows > 0) {
                        expect_near(found.scores, all_scores, rounding(type), what + ", scores");
                        expect_near(found.weight, weights, rounding(type), what + ", weights");
                    }
                    expect_each(d, gradients, rounding(type), what + ", gradient");
                    expect_kept_around(what);
                }
}

TEST_F(Router, PassesGradientsThroughScoresAndTheirSum) {
    const Tensor logits = random(DType::f64, {4, 7}), bias = random(DType::f64, {7}, 0.2);
    for (const RouterForm form : kForms)
        for (const std::int64_t k : {2, 3, 7}) {
            const Tensor scores = filled(DType::f64, {4, 7}), choice = places(4, k),
                         weight = filled(DType::f64, {4, k}), probe = random(DType::f64, {4, k}),
                         d = filled(DType::f64, {4, 7}, kPoison);
            const auto loss = [&] {
                route(b_, logits, bias, form, scores, choice, weight);
                const std::vector<double> x = values(weight), y = values(probe);
                return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
            };
            loss();
            route_backward(b_, probe, scores, choice, form, d);
            expect_gradient(b_, fmt::format("{} of 7, {}", k, name_of_form(form)).c_str(), logits, d, loss);
        }
}

TEST_F(Router, BalancesByTheGradientOfMeanScores) {
    const std::vector<double> chosen{3, 0, 1, 0, 2, 0, 1, 4, 0, 0, 5, 2, 1, 0}, factor{0.7, -0.2};
    const std::vector<std::int32_t> group{1, 0, 0, 1};
    const Tensor logits = random(DType::f64, {4, 7}), often = list(chosen).reshape({2, 7});
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
        const RouterForm form{score, true};
        const auto loss = [&] {
            double sum = 0;
            for (std::int64_t r = 0; r < 4; ++r) {
                const auto scores = scores_of(part(values(logits), r, 7), score);
                const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
                const auto s = static_cast<std::size_t>(group[static_cast<std::size_t>(r)]);
                for (std::size_t e = 0; e < 7; ++e) sum += factor[s] * chosen[7 * s + e] * scores[e] / all;
            }
            return sum;
        };
        const Routed found = routed(logits, {}, form, 2);
        const Tensor d = filled(DType::f64, {4, 7}, 1.5), added = filled(DType::f64, {4, 7}),
                     sum = filled(DType::f64, {1}, 0.25);
        balance_backward(b_, found.scores, list(group), often, list(factor), form, d, sum, scratch_);
        EXPECT_NEAR(get(sum, 0), 0.25 + loss(), 1e-14);
        for (std::int64_t i = 0; i < d.size(); ++i)
            testing_support::write_element(b_, added, i, testing_support::read_element(b_, d, i) - 1.5);
        expect_gradient(b_, name_of_form(form).c_str(), logits, added, loss);
        const Tensor again = filled(DType::f64, {4, 7}, 1.5);
        balance_backward(b_, found.scores, list(group), often, list(factor), form, again, {}, scratch_);
        EXPECT_EQ(values(again), values(d)) << "without the loss";
    }
}

// Qwen3MoeTopKRouter and DeepseekV3TopkRouter (one group, no scaling) of transformers 5.24 in float32, with
// the identity as weight, and the gradients of their input.
TEST_F(Router, EqualsThoseOfTransformers) {
    const std::vector<double> logits{0.5, -1.25, 2, 1.75, -0.5, 0.25, -3, 1.5, 0, -0.75, 1, 2.5};
    const std::vector<double> d_weight{1, -2, 0.5, 0.25, 1.5, -1};
    const Tensor none, bias = list(std::vector<float>{0.6f, 0, -0.5f, 0, 0.1f, -0.25f});
    struct Case {
        RouterForm form;
        Tensor bias;
        std::vector<std::int32_t> choice;
        std::vector<double> weights, gradient;
    };
    for (const Case& c :
         {Case{kForms[0],
               none,
               {2, 3, 0, 5, 1, 4},
               {0.499517739, 0.389024794, 0.111457482, 0.628531694, 0.231223896, 0.140244395},
               {0.080561817, 0, 0.610811830, -0.691373646, 0, 0, 0, 0.262734085, 0, 0, -0.191254705,
                -0.071479388}},
          Case{kForms[1],
               none,
               {2, 3, 0, 5, 1, 4},
               {0.435433090, 0.339115620, 0.097158261, 0.582765698, 0.214387521, 0.130032614},
               {0.067449108, 0.003279111, 0.520002484, -0.612368524, 0.006941878, 0.014695956, -0.000803181,
                0.249281213, -0.016132327, -0.007620371, -0.173884824, -0.050840538}},
          Case{kForms[2],
               bias,
               {0, 3, 4, 4, 1, 5},
               {0.336109728, 0.460029393, 0.203860849, 0.295643002, 0.330630332, 0.373726606},
               {0.188060895, 0, 0, -0.103383787, 0.124613337, 0, 0, 0.078643493, 0, 0, 0.004283267,
                -0.033910535}},
          Case{kForms[3],
               bias,
               {0, 3, 4, 4, 1, 5},
               {0.622459352, 0.851952732, 0.377540678, 0.731058598, 0.817574441, 0.924141824},
               {0.235003710, 0, 0, -0.252258539, 0.117501855, 0, 0, 0.223719716, 0, 0, 0.049152981,
                -0.070103712}}}) {
        const std::string what = name_of_form(c.form);
        const Routed found = routed(view(DType::f32, 2, 6, 0, logits), c.bias, c.form, 3);
        const Tensor d = view(DType::f32, 2, 6, 0);
        route_backward(b_, view(DType::f32, 2, 3, 0, d_weight), found.scores, found.choice, c.form, d);
        EXPECT_EQ(integers(found.choice), c.choice) << what;
        expect_each(found.weight, c.weights, 1e-6, what + ", weights");
        expect_each(d, c.gradient, 1e-6, what + ", gradient");
    }
}

TEST_F(Router, EqualScoresGoToTheLowerExpert) {
    const auto chosen = [&](const std::vector<double>& logits, const Tensor& bias, std::int64_t k) {
        const auto experts = static_cast<std::int64_t>(logits.size());
        const Tensor in = view(DType::f32, 1, experts, 0, logits);
        std::vector<std::int32_t> found;
        for (const RouterForm form : kForms) {
            const auto one = integers(routed(in, bias, form, k).choice);
            EXPECT_TRUE(found.empty() || found == one) << name_of_form(form);
            found = one;
        }
        return found;
    };
    using Choice = std::vector<std::int32_t>;
    EXPECT_EQ(chosen(std::vector<double>(7, 0.3), {}, 3), (Choice{0, 1, 2}));
    EXPECT_EQ(chosen({1, 3, 3, 2, 3, 1, 2}, {}, 7), (Choice{1, 2, 4, 3, 6, 0, 5}));
    std::vector<double> wide(100, -1);  // several experts of a lane, and the same place in several lanes
    for (const std::size_t e : {99u, 67u, 66u, 35u, 34u, 3u}) wide[e] = 2;
    EXPECT_EQ(chosen(wide, {}, 5), (Choice{3, 34, 35, 66, 67}));
    EXPECT_EQ(chosen(wide, {}, 8), (Choice{3, 34, 35, 66, 67, 99, 0, 1}));
    EXPECT_EQ(chosen({0, 0, 0, 0}, list(std::vector<float>{0.25f, 0.5f, 0.25f, 0.5f}), 4),
              (Choice{1, 3, 0, 2}));
}

TEST_F(Router, BiasChangesTheChoiceAndNotTheWeights) {
    const std::vector<double> logits{2, 1, 0, -1};
    const Tensor in = view(DType::f64, 1, 4, 0, logits);
    for (const RouterForm form : kForms) {
        const std::vector<double> scores = scores_of(logits, form.score);
        const Tensor bias = list(std::vector<double>{-2, 0, 0, 2});
        const Routed found = routed(in, bias, form, 2);
        EXPECT_EQ(integers(found.choice), (std::vector<std::int32_t>{3, 1})) << name_of_form(form);
        const double sum = form.normalize ? scores[3] + scores[1] : 1;
        expect_each(found.weight, {scores[3] / sum, scores[1] / sum}, 1e-14, name_of_form(form));
        expect_each(found.scores, scores, 1e-14, name_of_form(form) + ", scores");
        const Routed all = routed(in, bias, form, 4);
        EXPECT_EQ(integers(all.choice), (std::vector<std::int32_t>{3, 1, 2, 0})) << name_of_form(form);
    }
}

TEST_F(Router, RowsDoNotDependOnEachOther) {
    constexpr std::int64_t kRows = 11, kExperts = 60, kChoices = 6;
    const Tensor logits = random(DType::f32, {kRows, kExperts});
    for (const RouterForm form : kForms) {
        const Routed all = routed(logits, {}, form, kChoices);
        for (const std::int64_t r : {0, 4, 10}) {
            const Routed one = routed(logits.slice(r, r + 1), {}, form, kChoices);
            EXPECT_EQ(values(one.scores), values(all.scores.slice(r, r + 1)));
            EXPECT_EQ(values(one.weight), values(all.weight.slice(r, r + 1)));
            EXPECT_EQ(integers(one.choice), integers(all.choice.slice(r, r + 1)));
        }
    }
}

TEST_F(Router, OneChoiceHasWeightOneAndNoGradient) {
    const Tensor logits = random(DType::f64, {5, 9}), d = view(DType::f64, 5, 9, 0);
    for (const RouterForm form : {kForms[0], kForms[2]}) {
        const Routed found = routed(logits, {}, form, 1);
        expect_each(found.weight, std::vector<double>(5, 1), 1e-14, "weights");
        route_backward(b_, normal_view(DType::f64, 5, 1, 0), found.scores, found.choice, form, d);
        expect_each(d, std::vector<double>(45), 1e-14, "gradient");
    }
}

TEST_F(Router, ScoresOfZeroGiveNoNaN) {
    for (const DType type : {DType::f64, DType::f32}) {
        const Tensor logits = filled(type, {2, 5}, -1e4), d = filled(type, {2, 5}, kPoison);
        const Routed found = routed(logits, {}, {RouterScore::sigmoid, true}, 3);
        route_backward(b_, filled(type, {2, 3}, 1), found.scores, found.choice, {RouterScore::sigmoid, true},
                       d);
        expect_each(found.weight, std::vector<double>(6), 1e-15, "weights");
        for (const double value : values(d)) EXPECT_TRUE(std::isfinite(value));
    }
}

// What follows reads and writes rows by the choice, so that it must always be one of experts.
TEST_F(Router, NaNAndInfinityAreChosenAndStayInTheirRow) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr std::int64_t kExperts = 40, kChoices = 6;
    std::vector<double> logits = normal(4 * kExperts);
    logits[kExperts + 37] = kPoison;
    logits[2 * kExperts + 38] = kInf;
    std::fill(logits.begin() + 3 * kExperts, logits.end(), -kInf);
    for (const RouterForm form : kForms) {
        const Routed found = routed(view(DType::f32, 4, kExperts, 0, logits), {}, form, kChoices);
        const auto choice = integers(found.choice);
        for (std::int64_t r = 0; r < 4; ++r) {
            const auto row = part(choice, r, kChoices);
            const std::set<std::int32_t> different(row.begin(), row.end());
            EXPECT_EQ(different.size(), static_cast<std::size_t>(kChoices)) << name_of_form(form);
            EXPECT_TRUE(*different.begin() >= 0 && *different.rbegin() < kExperts) << name_of_form(form);
        }
        if (form.score == RouterScore::sigmoid) {
            EXPECT_EQ(choice[kChoices], 37);
            EXPECT_EQ(choice[2 * kChoices], 38);
        }
        EXPECT_TRUE(std::isnan(get(found.weight, kChoices))) << name_of_form(form);
        for (std::int64_t j = 0; j < kChoices; ++j)
            EXPECT_TRUE(std::isfinite(get(found.weight, j))) << name_of_form(form);
    }
}

TEST_F(Router, RefusesWhatDoesNotFit) {
    const Tensor logits = random(DType::f32, {3, 4}), scores = filled(DType::f32, {3, 4}),
                 weight = filled(DType::f32, {3, 2}), choice = places(3, 2);
    const RouterForm form;
    EXPECT_THROW(route(b_, logits, {}, form, scores, places(3, 5), filled(DType::f32, {3, 5})), Error);
    EXPECT_THROW(route(b_, logits, {}, form, scores, choice, filled(DType::f32, {3, 3})), Error);
    EXPECT_THROW(route(b_, logits, {}, form, scores, choice, filled(DType::f64, {3, 2})), Error);
    EXPECT_THROW(route(b_, logits, {}, form, filled(DType::f32, {3, 5}), choice, weight), Error);
    EXPECT_THROW(route(b_, logits, filled(DType::f32, {3}), form, scores, choice, weight), Error);
    EXPECT_THROW(route(b_, logits, filled(DType::f64, {4}), form, scores, choice, weight), Error);
    const Tensor bf16_logits = random(DType::bf16, {3, 4});
    EXPECT_THROW(
        route(b_, bf16_logits, {}, form, filled(DType::bf16, {3, 4}), choice, filled(DType::bf16, {3, 2})),
        Error);
    EXPECT_THROW(route_backward(b_, weight, scores, choice, form, filled(DType::f32, {2, 4})), Error);
    if (kOnGpu) return;  // a GPU does not check indices
    const Tensor beyond = list(std::vector<std::int32_t>{0, 1, 2, 4, 0, 3}).reshape({3, 2});
    EXPECT_THROW(route_backward(b_, weight, scores, beyond, form, logits), Error);
}

}  // namespace
}  // namespace maestro::ops
