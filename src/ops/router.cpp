#include "ops/router.hpp"

#include "kernels/cross_entropy.hpp"
#include "kernels/router.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

namespace {

void check_routing(const Tensor& scores, const Tensor& choice, const Tensor& weight) {
    MAESTRO_CHECK(choice.rows() == scores.rows() && choice.columns() <= scores.columns() &&
                      choice.dtype == DType::i32 && weight.size() == choice.size() &&
                      weight.dtype == scores.dtype,
                  "scores {}, choice {}, weight {}", scores.describe(), choice.describe(), weight.describe());
}

/// out[e] = the score of expert e.
template <class A>
void score_row(const A* logits, std::int64_t experts, RouterScore score, A* out) {
    if (score == RouterScore::sigmoid) {
        MAESTRO_INDEPENDENT
        for (std::int64_t e = 0; e < experts; ++e) out[e] = sigmoid(logits[e]);
        return;
    }
    std::copy(logits, logits + experts, out);
    const A total = exponentiate(out, experts, A(1), largest(out, experts, A(1)));
    for (std::int64_t e = 0; e < experts; ++e) out[e] /= total;
}

/// choice[k] = the k experts with the largest keys, of equal ones the lower number first. An insertion into
/// those found so far, of which few happen where k is much smaller than the number of experts.
template <class Key>
void choose(std::int64_t experts, std::int64_t k, Key&& key, std::int32_t* choice) {
    for (std::int64_t e = 0; e < experts; ++e) {
        const auto found = key(e);
        std::int64_t place = std::min(e, k);
        for (; place > 0 && found > key(choice[place - 1]); --place)
            if (place < k) choice[place] = choice[place - 1];
        if (place < k) choice[place] = static_cast<std::int32_t>(e);
    }
}

template <class A>
A sum_of_chosen(const A* scores, const std::int32_t* choice, std::int64_t k) {
    A sum = 0;
    for (std::int64_t j = 0; j < k; ++j) sum += scores[choice[j]];
    return sum + static_cast<A>(kernels::kRouterEpsilon);
}

/// out[e] = the gradient of a row's logits. It passes through the division by the sum, which all chosen
/// scores are part of, and through the scores.
template <class A>
void row_gradient(const A* d_weight, const A* scores, const std::int32_t* choice, std::int64_t experts,
                  std::int64_t k, RouterForm form, A* out) {
    const A total = form.normalize ? sum_of_chosen(scores, choice, k) : A(1);
    A shared = 0;  // what the division by the sum takes from the gradient of each weight
    if (form.normalize)
        for (std::int64_t j = 0; j < k; ++j) shared += d_weight[j] * scores[choice[j]];
    shared /= total;
    const auto d_score = [&](std::int64_t j) { return (d_weight[j] - shared) / total; };
    if (form.score == RouterScore::sigmoid) {
        std::fill(out, out + experts, A(0));
        for (std::int64_t j = 0; j < k; ++j) {
            const A s = scores[choice[j]];
            out[choice[j]] = d_score(j) * s * (A(1) - s);
        }
        return;
    }
    A mean = 0;
    for (std::int64_t j = 0; j < k; ++j) mean += d_score(j) * scores[choice[j]];
    for (std::int64_t e = 0; e < experts; ++e) out[e] = -mean * scores[e];
    for (std::int64_t j = 0; j < k; ++j) out[choice[j]] = (d_score(j) - mean) * scores[choice[j]];
}

}  // namespace

void route(backend::Backend& b, const Tensor& logits, const Tensor& bias, RouterForm form,
           const Tensor& scores, const Tensor& choice, const Tensor& weight) {
    const std::int64_t rows = logits.rows(), experts = logits.columns(), k = choice.columns();
    MAESTRO_CHECK(scores.rows() == rows && scores.columns() == experts && scores.dtype == logits.dtype,
                  "logits {}, scores {}", logits.describe(), scores.describe());
    MAESTRO_CHECK(bias.rank == 0 || (bias.size() == experts && bias.dtype == logits.dtype),
                  "logits {}, bias {}", logits.describe(), bias.describe());
    check_routing(scores, choice, weight);
    b.launch(
        {8.0 * static_cast<double>(logits.size()),
         2.0 * static_cast<double>(logits.bytes()) + static_cast<double>(choice.bytes() + weight.bytes())},
        [&] {
            by_logit_type(logits.dtype, [&]<class A>(A) {
                const A* in = logits.as<A>();
                const A* added = bias.rank == 0 ? nullptr : bias.as<A>();
                A *all = scores.as<A>(), *out = weight.as<A>();
                std::int32_t* chosen = choice.as<std::int32_t>();
                parallel_for(rows, experts * 16, [&](std::int64_t r) {
                    A* score = all + r * experts;
                    score_row(in + r * experts, experts, form.score, score);
                    const auto key = [score, added](std::int64_t e) {
                        const A value = added ? score[e] + added[e] : score[e];
                        return std::isnan(value) ? std::numeric_limits<A>::infinity() : value;
                    };
                    std::int32_t* row = chosen + r * k;
                    choose(experts, k, key, row);
                    const A total = form.normalize ? sum_of_chosen(score, row, k) : A(1);
                    for (std::int64_t j = 0; j < k; ++j) out[r * k + j] = score[row[j]] / total;
                });
            });
        },
        [&](Stream stream) {
            kernels::route(stream, logits, bias, form.score == RouterScore::sigmoid, form.normalize, scores,
                           choice, weight);
        });
}

void route_backward(backend::Backend& b, const Tensor& d_weight, const Tensor& scores, const Tensor& choice,
                    RouterForm form, const Tensor& d_logits) {
    const std::int64_t rows = scores.rows(), experts = scores.columns(), k = choice.columns();
    MAESTRO_CHECK(d_logits.rows() == rows && d_logits.columns() == experts && d_logits.dtype == scores.dtype,
                  "scores {}, d_logits {}", scores.describe(), d_logits.describe());
    check_routing(scores, choice, d_weight);
    b.launch(
        {static_cast<double>(scores.size()) + 9.0 * static_cast<double>(choice.size()),
         2.0 * static_cast<double>(scores.bytes()) + static_cast<double>(choice.bytes() + d_weight.bytes())},
        [&] {
            const std::int32_t* chosen = choice.as<std::int32_t>();
            for (std::int64_t i = 0; i < choice.size(); ++i)
                MAESTRO_CHECK(chosen[i] >= 0 && chosen[i] < experts, "expert {} of {}", chosen[i], experts);
            by_logit_type(scores.dtype, [&]<class A>(A) {
                const A *in = scores.as<A>(), *gradient = d_weight.as<A>();
                A* out = d_logits.as<A>();
                parallel_for(rows, experts + 8 * k, [&](std::int64_t r) {
                    row_gradient(gradient + r * k, in + r * experts, chosen + r * k, experts, k, form,
                                 out + r * experts);
                });
            });
        },
        [&](Stream stream) {
            kernels::route_backward(stream, d_weight, scores, choice, form.score == RouterScore::sigmoid,
                                    form.normalize, d_logits);
        });
}

void balance_backward(backend::Backend& b, const Tensor& scores, const Tensor& group, const Tensor& chosen,
                      const Tensor& factor, RouterForm form, const Tensor& d_logits, const Tensor& loss,
                      backend::Arena& scratch) {
    const std::int64_t rows = scores.rows(), experts = scores.columns();
    MAESTRO_CHECK(d_logits.size() == scores.size() && d_logits.dtype == scores.dtype &&
                      group.size() == rows && group.dtype == DType::i32 && chosen.columns() == experts &&
                      chosen.dtype == scores.dtype && factor.size() == chosen.rows() &&
                      factor.dtype == scores.dtype,
                  "scores {}, d_logits {}, group {}, chosen {}, factor {}", scores.describe(),
                  d_logits.describe(), group.describe(), chosen.describe(), factor.describe());
    const bool by_sigmoid = form.score == RouterScore::sigmoid;
    const backend::ArenaScope scope(scratch);
    const Tensor losses = loss.rank != 0 ? scratch.allocate(DType::f64, {rows}) : Tensor();
    b.launch(
        {8.0 * static_cast<double>(scores.size()), 4.0 * static_cast<double>(scores.bytes())},
        [&] {
            const std::int32_t* of_row = group.as<std::int32_t>();
            for (std::int64_t r = 0; r < rows; ++r)
                MAESTRO_CHECK(of_row[r] >= 0 && of_row[r] < factor.size(), "group {} of {}", of_row[r],
                              factor.size());
            by_logit_type(scores.dtype, [&]<class A>(A) {
                parallel_for(rows, experts * 8, [&](std::int64_t r) {
                    const A *score = scores.as<A>() + r * experts,
                            *often = chosen.as<A>() + of_row[r] * experts;
                    A* out = d_logits.as<A>() + r * experts;
                    A total = 0, mean = 0;
                    for (std::int64_t e = 0; e < experts; ++e) {
                        total += score[e];
                        mean += often[e] * score[e];
                    }
                    if (!by_sigmoid) total = 1;
                    mean /= total;
                    const A scale = factor.as<A>()[of_row[r]] / total;
                    for (std::int64_t e = 0; e < experts; ++e)
                        out[e] +=
                            scale * (often[e] - mean) * score[e] * (by_sigmoid ? A(1) - score[e] : A(1));
                    if (losses.rank != 0)
                        losses.as<double>()[r] =
                            static_cast<double>(factor.as<A>()[of_row[r]]) * static_cast<double>(mean);
                });
            });
            if (losses.rank != 0) sum_losses(losses, loss);
        },
        [&](Stream stream) {
            kernels::balance_backward(stream, scores, group, chosen, factor, by_sigmoid, d_logits, losses);
            if (losses.rank != 0) kernels::sum_losses(stream, losses, loss);
        });
}

}  // namespace maestro::ops
