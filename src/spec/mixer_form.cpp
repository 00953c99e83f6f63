#include "spec/mixer_form.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace maestro::model {

namespace {

bool divides_either_way(int a, int b) {
    return a % b == 0 || b % a == 0;
}

}  // namespace

std::string AttentionForm::check_sizes(int unit) const {
    if (heads < 1 || kv_heads < 1) return "heads and kv_heads must be at least 1";
    if (heads % kv_heads != 0) return "heads must be a multiple of kv_heads";
    if (head_dim < 1 || head_dim % unit != 0 || head_dim > 256)
        return fmt::format("head_dim must be a multiple of {}, at most 256", unit);
    return {};
}

std::string AttentionForm::not_split_by(int tp) const {
    if (heads % tp != 0) return fmt::format("{} heads", heads);
    return divides_either_way(kv_heads, tp) ? std::string() : fmt::format("{} kv_heads", kv_heads);
}

std::string AttentionForm::not_split_by(int tp, int cp) const {
    const int queries = heads / tp, keys = std::max(kv_heads / tp, 1);
    if (queries % cp == 0 && divides_either_way(keys, cp)) return {};
    return fmt::format("{} heads and {} kv_heads", queries, keys);
}

}  // namespace maestro::model
