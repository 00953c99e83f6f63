// Attention by its definition, in double, for tests: one query and one key at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/attention/attention.hpp"

namespace maestro::testing_support {

using Numbers = std::vector<double>;

struct PlainAttention {
    std::int64_t heads, kv_heads, dim;
    ops::VarlenMask mask;
    Numbers q, k, values;  ///< [Tq, heads * dim], [Tk, kv_heads * dim] twice
    Numbers out, lse;
    Numbers dq, dk, dvalues;

    /// Computes out and lse from q, k and values.
    void forward() {
        out.assign(q.size(), 0);
        lse.assign(q.size() / size(dim), -std::numeric_limits<double>::infinity());
        each_query([&](std::int64_t token, std::int64_t head, std::int64_t first, std::int64_t kv_limit) {
            Numbers score;
            for (std::int64_t t = first; t < first + kv_limit; ++t) score.push_back(score_of(token, t, head));
            if (kv_limit == 0) return;
            const double largest = *std::max_element(score.begin(), score.end());
            double sum = 0;
            for (double& s : score) sum += s = std::exp(s - largest);
            for (std::int64_t t = 0; t < kv_limit; ++t)
                for (std::int64_t c = 0; c < dim; ++c)
                    out[query(token, head) + size(c)] +=
                        score[size(t)] / sum * values[key(first + t, head) + size(c)];
            lse[size(token * heads + head)] = largest + std::log(sum);
        });
    }

    /// Computes dq, dk and dvalues from dout and everything above. out and lse need not be those of
    /// forward().
    void backward(const Numbers& dout) {
        dq.assign(q.size(), 0);
        dk.assign(k.size(), 0);
        dvalues.assign(k.size(), 0);
        const double scale = 1 / std::sqrt(static_cast<double>(dim));
        each_query([&](std::int64_t token, std::int64_t head, std::int64_t first, std::int64_t kv_limit) {
            const std::size_t q_at = query(token, head);
            double shared = 0;
            for (std::size_t c = 0; c < size(dim); ++c) shared += dout[q_at + c] * out[q_at + c];
            for (std::int64_t t = first; t < first + kv_limit; ++t) {
                const std::size_t k_at = key(t, head);
                const double weight = std::exp(score_of(token, t, head) - lse[size(token * heads + head)]);
                double gradient = -shared;
                for (std::size_t c = 0; c < size(dim); ++c) gradient += dout[q_at + c] * values[k_at + c];
                gradient *= weight * scale;
                for (std::size_t c = 0; c < size(dim); ++c) {
                    dvalues[k_at + c] += weight * dout[q_at + c];
                    dk[k_at + c] += gradient * q[q_at + c];
                    dq[q_at + c] += gradient * k[k_at + c];
                }
            }
        });
    }

private:
    static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
    std::size_t query(std::int64_t token, std::int64_t head) const {
        return size((token * heads + head) * dim);
    }
    std::size_t key(std::int64_t token, std::int64_t head) const {
        return size((token * kv_heads + head * kv_heads / heads) * dim);
    }
    double score_of(std::int64_t token, std::int64_t key_token, std::int64_t head) const {
        double sum = 0;
        for (std::size_t c = 0; c < size(dim); ++c)
            sum += q[query(token, head) + c] * k[key(key_token, head) + c];
        return sum / std::sqrt(static_cast<double>(dim));
    }
    /// Calls body(query, head, first key, number of keys that it attends to) for all queries and heads.
    template <class Body>
    void each_query(Body&& body) const {
        for (std::size_t s = 1; s < mask.cu_seqlens_q.size(); ++s)
            for (std::int32_t token = mask.cu_seqlens_q[s - 1]; token < mask.cu_seqlens_q[s]; ++token)
                for (std::int64_t head = 0; head < heads; ++head)
                    body(token, head, mask.cu_seqlens_k[s - 1], mask.kv_limit[size(token)]);
    }
};

}  // namespace maestro::testing_support
