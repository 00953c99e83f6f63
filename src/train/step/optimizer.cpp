#include "train/step/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "model/module.hpp"
#include "ops/adamw.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"

namespace maestro::train {

namespace {

/// The moments of a group in `buffer`: of the type of its masters.
Tensor moments_in(const backend::Buffer& buffer, const parallel::ParameterGroup& group) {
    const DType type = group.master().dtype;
    return Tensor(buffer.data(), type, {static_cast<std::int64_t>(buffer.bytes() / size_of(type))});
}
Tensor chunks_of(const backend::Buffer& buffer) {
    constexpr std::size_t kEach = sizeof(kernels::UpdateChunk);
    return Tensor(buffer.data(), DType::u8, {static_cast<std::int64_t>(buffer.bytes() / kEach), kEach});
}

}  // namespace

double learning_rate(const AdamSettings& s, std::int64_t step) {
    // Steps count from 1, so that without a warm-up this is never reached with a divisor of 0.
    if (step <= s.warmup_steps)
        return s.learning_rate * static_cast<double>(step) / static_cast<double>(s.warmup_steps);
    if (step >= s.decay_steps) return s.decay_steps > 0 ? s.final_learning_rate : s.learning_rate;
    const double done =
        static_cast<double>(step - s.warmup_steps) / static_cast<double>(s.decay_steps - s.warmup_steps);
    return s.final_learning_rate +
           0.5 * (s.learning_rate - s.final_learning_rate) * (1 + std::cos(std::numbers::pi * done));
}

AdamSettings with_rates(AdamSettings settings, std::optional<double> learning_rate,
                        std::optional<double> weight_decay) {
    if (learning_rate) {
        if (settings.learning_rate > 0)
            settings.final_learning_rate *= *learning_rate / settings.learning_rate;
        settings.learning_rate = *learning_rate;
    }
    if (weight_decay) settings.weight_decay = *weight_decay;
    return settings;
}

Optimizer::Optimizer(backend::Backend& backend, parallel::ParameterStore& store)
    : backend_(backend), store_(store), squares_(backend, sizeof(double)) {
    ops::zero(backend_, squares());
    for (parallel::ParameterGroup& group : store.groups())
        if (group.trainable()) add_group(group);
    if (balanced_ > 0)
        moves_ = backend::Buffer(
            backend, static_cast<std::size_t>(balanced_) * size_of(ops::accumulate_type(store.compute())));
}

void Optimizer::add_group(parallel::ParameterGroup& group) {
    State& state =
        states_.emplace_back(State{.group = &group, .counted = {}, .chunks = {}, .first = {}, .second = {}});
    const Range shard = group.shard();
    // Most weights count in the norm wherever they are held. Only where ranks hold copies is the range of a
    // parameter cut, so `counted` stays short. Padding is zero and may be counted.
    std::int64_t at = shard.begin;  // what lies before is in `counted`, or counts on another rank
    std::vector<ops::UpdateRange> updated;
    for (const parallel::Parameter* p : group.parameters()) {
        const Range held = group.shard_of(*p);
        if (held.size() <= 0) continue;
        const std::int64_t from = p->offset - shard.begin;
        const Range in_shard{from + held.begin, from + held.end};
        if (p->balance_step > 0)
            balanced_ += held.size();
        else
            updated.push_back({in_shard, p->decay});
        const std::vector<Range> copies = group.first_copies(*p, held);
        if (copies == std::vector{held}) continue;
        if (at < p->offset + held.begin) state.counted.push_back({at, p->offset + held.begin});
        for (const Range& r : copies) state.counted.push_back({p->offset + r.begin, p->offset + r.end});
        at = p->offset + held.end;
    }
    if (at < shard.end) state.counted.push_back({at, shard.end});
    if (const auto chunks = ops::update_chunks(updated); !chunks.empty()) {
        state.chunks = backend::Buffer(backend_, chunks.size() * sizeof(kernels::UpdateChunk));
        backend_.upload(chunks.data(), chunks_of(state.chunks));
    }
    const auto bytes = static_cast<std::size_t>(shard.size()) * size_of(group.master().dtype);
    for (auto* moments : {&state.first, &state.second}) {
        *moments = backend::Buffer(backend_, bytes);
        if (bytes > 0) ops::zero(backend_, moments_in(*moments, group));
    }
}

void Optimizer::add_squares(std::size_t index, backend::Arena& scratch) {
    // In double, so that the norm of billions of elements is the same in every layout, up to a rounding that
    // clipping does not notice.
    for (const Range& r : states_[index].counted)
        if (r.size() > 0)
            ops::add_squares(backend_, states_[index].group->gradient().slice(r.begin, r.end), squares(),
                             scratch);
}

double Optimizer::take_squares() {
    double sum = 0;
    backend_.download(squares(), &sum);
    ops::zero(backend_, squares());
    return sum;
}

void Optimizer::update(std::size_t index, const AdamSettings& settings, std::int64_t step,
                       double gradient_scale) {
    State& state = states_[index];
    const Range shard = state.group->shard();
    if (shard.size() == 0) return;
    ops::adamw(backend_, state.group->master(), state.group->gradient().slice(shard.begin, shard.end),
               moments_in(state.first, *state.group), moments_in(state.second, *state.group),
               chunks_of(state.chunks),
               {.learning_rate = learning_rate(settings, step),
                .beta1 = settings.beta1,
                .beta2 = settings.beta2,
                .eps = settings.eps,
                .weight_decay = settings.weight_decay,
                .step = step,
                .gradient_scale = gradient_scale});
}

void Optimizer::balance(std::span<const model::ExpertLoad> loads) {
    std::vector<double> moves;  // of all layers, one after another
    std::vector<Tensor> biases;
    for (const auto& [layer, choices, bias] : loads) {
        if (!bias) continue;
        MAESTRO_CHECK(std::ssize(choices) == bias->size(), "layer {}: choices of {} experts for {} of {}",
                      layer, choices.size(), bias->size(), bias->name);
        const parallel::ParameterGroup& group = store_.group_of(*bias);
        const Range held = group.shard_of(*bias);
        if (held.size() <= 0) continue;
        biases.push_back(group.shard_weights(*bias, held));
        const std::int64_t total = std::accumulate(choices.begin(), choices.end(), std::int64_t{0});
        for (std::int64_t e = held.begin; e < held.end; ++e) {
            const std::int64_t excess = choices[static_cast<std::size_t>(e)] * bias->size() - total;
            moves.push_back(excess > 0 ? -bias->balance_step : (excess < 0 ? bias->balance_step : 0.0));
        }
    }
    if (moves.empty()) return;
    MAESTRO_CHECK(std::ssize(moves) <= balanced_, "{} elements of biases, {} are held", moves.size(),
                  balanced_);
    const Tensor all(moves_.data(), biases.front().dtype, {std::ssize(moves)});
    ops::by_type(all.dtype, [&]<class T>(T) {
        const std::vector<Accumulate<T>> values(moves.begin(), moves.end());
        backend_.upload(values.data(), all);
    });
    std::int64_t begin = 0;
    for (const Tensor& bias : biases) {
        ops::add(backend_, all.slice(begin, begin + bias.size()), bias);
        begin += bias.size();
    }
}

/// The sum of their squares is finite then, and only then: in double, no sum of squares of floats overflows.
bool Optimizer::all_finite(backend::Arena& scratch) {
    for (State& state : states_)
        if (const Tensor& masters = state.group->master(); masters.size() > 0)
            ops::add_squares(backend_, masters, squares(), scratch);
    return std::isfinite(take_squares());
}

const Optimizer::State& Optimizer::state_of(const parallel::Parameter& parameter) const {
    const auto at = std::find_if(states_.begin(), states_.end(),
                                 [&](const State& s) { return s.group == &store_.group_of(parameter); });
    MAESTRO_CHECK(at != states_.end(), "{} has no moments", parameter.name);
    return *at;
}

namespace {
/// The moments of a parameter among those of its group's shard.
Tensor moments_of(const parallel::ParameterGroup& group, const backend::Buffer& moments,
                  const parallel::Parameter& parameter) {
    const Range held = group.shard_of(parameter);
    if (held.size() <= 0) return Tensor(nullptr, group.master().dtype, {0});
    const std::int64_t begin = parameter.offset + held.begin - group.shard().begin;
    return moments_in(moments, group).slice(begin, begin + held.size());
}
}  // namespace

Tensor Optimizer::first_moments(const parallel::Parameter& parameter) const {
    const State& state = state_of(parameter);
    return moments_of(*state.group, state.first, parameter);
}

Tensor Optimizer::second_moments(const parallel::Parameter& parameter) const {
    const State& state = state_of(parameter);
    return moments_of(*state.group, state.second, parameter);
}

void Optimizer::set_moments(const parallel::Parameter& parameter, Range elements,
                            std::span<const float> first, std::span<const float> second) {
    const std::int64_t begin = state_of(parameter).group->shard_of(parameter).begin;
    const auto set = [&](const Tensor& all, std::span<const float> values) {
        const Tensor moments = all.slice(elements.begin - begin, elements.end - begin);
        MAESTRO_CHECK(static_cast<std::int64_t>(values.size()) == moments.size() &&
                          (moments.dtype == DType::f32 || values.empty()),
                      "{} moments for {} of {}", values.size(), moments.describe(), parameter.name);
        backend_.upload(values.data(), moments);
    };
    set(first_moments(parameter), first);
    set(second_moments(parameter), second);
}

std::size_t Optimizer::bytes() const {
    std::size_t bytes = squares_.bytes() + moves_.bytes();
    for (const State& state : states_)
        bytes += state.first.bytes() + state.second.bytes() + state.chunks.bytes();
    return bytes;
}

}  // namespace maestro::train
