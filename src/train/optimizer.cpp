#include "train/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/adamw.hpp"
#include "ops/elementwise.hpp"

namespace maestro::train {

namespace {

Tensor floats(const backend::Buffer& buffer) {
    return Tensor(buffer.data(), DType::f32, {static_cast<std::int64_t>(buffer.bytes() / sizeof(float))});
}

std::span<float> as_span(const Tensor& tensor) {
    return {tensor.as<float>(), static_cast<std::size_t>(tensor.size())};
}

}  // namespace

double learning_rate(const AdamSettings& s, std::int64_t step) {
    if (step <= s.warmup_steps)
        return s.learning_rate * static_cast<double>(step) / static_cast<double>(s.warmup_steps);
    if (step >= s.decay_steps) return s.decay_steps > 0 ? s.final_learning_rate : s.learning_rate;
    const double done =
        static_cast<double>(step - s.warmup_steps) / static_cast<double>(s.decay_steps - s.warmup_steps);
    return s.final_learning_rate +
           0.5 * (s.learning_rate - s.final_learning_rate) * (1 + std::cos(std::numbers::pi * done));
}

Optimizer::Optimizer(backend::Backend& backend, model::ParameterStore& store,
                     const comm::Communicator& section)
    : backend_(backend), store_(store), section_(section) {
    const std::int64_t size = store.gradient().size();
    MAESTRO_CHECK(size % section.size() == 0, "{} parameters in {} shards", size, section.size());
    shard_ = size / section.size();
    begin_ = shard_ * section.rank();
    const auto bytes = static_cast<std::size_t>(shard_) * sizeof(float);
    if (section.size() > 1) gradient_ = backend::Buffer(backend, bytes);
    first_ = backend::Buffer(backend, bytes);
    second_ = backend::Buffer(backend, bytes);
    for (const auto* buffer : {&gradient_, &first_, &second_})
        if (buffer->bytes() > 0) ops::zero(backend, floats(*buffer));
}

Tensor Optimizer::gradient() const {
    return section_.size() > 1 ? floats(gradient_) : store_.gradient();
}

double Optimizer::reduce() {
    if (shard_ == 0) return 0;
    if (section_.size() > 1)
        section_.reduce_scatter_sum(as_span(store_.gradient()), as_span(floats(gradient_)));
    return ops::squared_norm(backend_, gradient());
}

void Optimizer::update(const AdamSettings& settings, std::int64_t step, double gradient_scale) {
    if (shard_ == 0) return;
    const Tensor shard = store_.master().slice(begin_, begin_ + shard_);
    for (const model::Parameter& parameter : store_.parameters()) {
        if (!parameter.trainable) continue;
        const auto [from, to] = share_of(parameter);
        if (from >= to) continue;
        const std::int64_t at = parameter.offset - begin_;
        const auto part = [&, first = at + from, last = at + to](const Tensor& whole) {
            return whole.slice(first, last);
        };
        ops::adamw(backend_, part(shard), part(gradient()), part(floats(first_)), part(floats(second_)),
                   {.learning_rate = learning_rate(settings, step),
                    .beta1 = settings.beta1,
                    .beta2 = settings.beta2,
                    .eps = settings.eps,
                    .weight_decay = parameter.decay ? settings.weight_decay : 0.0,
                    .step = step,
                    .gradient_scale = gradient_scale});
    }
    section_.allgather(as_span(shard), as_span(store_.master().slice(0, store_.gradient().size())));
    store_.refresh_compute();
}

void Optimizer::gather(std::vector<float>& first, std::vector<float>& second) const {
    const auto size = static_cast<std::size_t>(store_.gradient().size());
    first.resize(size);
    second.resize(size);
    if (shard_ == 0) return;
    section_.allgather(as_span(floats(first_)), std::span<float>(first));
    section_.allgather(as_span(floats(second_)), std::span<float>(second));
}

Range Optimizer::share_of(const model::Parameter& parameter) const {
    if (!parameter.trainable) return {0, 0};
    return {std::max(parameter.offset, begin_) - parameter.offset,
            std::min(parameter.offset + parameter.size(), begin_ + shard_) - parameter.offset};
}

void Optimizer::set_moments(const model::Parameter& parameter, std::span<const float> first,
                            std::span<const float> second) {
    const auto [from, to] = share_of(parameter);
    MAESTRO_CHECK(static_cast<std::int64_t>(first.size()) == to - from && first.size() == second.size(),
                  "{} and {} moments for {} elements of {}", first.size(), second.size(), to - from,
                  parameter.name);
    const std::int64_t at = parameter.offset + from - begin_;
    std::copy(first.begin(), first.end(), floats(first_).as<float>() + at);
    std::copy(second.begin(), second.end(), floats(second_).as<float>() + at);
}

}  // namespace maestro::train
