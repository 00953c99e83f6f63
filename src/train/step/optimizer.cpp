#include "train/step/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "ops/adamw.hpp"
#include "ops/elementwise.hpp"

namespace maestro::train {

namespace {

Tensor floats(const backend::Buffer& buffer) {
    return Tensor(buffer.data(), DType::f32, {static_cast<std::int64_t>(buffer.bytes() / sizeof(float))});
}
Tensor chunks_of(const backend::Buffer& buffer) {
    constexpr std::size_t kEach = sizeof(kernels::UpdateChunk);
    return Tensor(buffer.data(), DType::u8, {static_cast<std::int64_t>(buffer.bytes() / kEach), kEach});
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

Optimizer::Optimizer(backend::Backend& backend, parallel::ParameterStore& store,
                     std::unique_ptr<collective::ProcessGroup> data, const parallel::Peers& peers)
    : backend_(backend),
      store_(store),
      data_(std::move(data)),
      peers_(peers),
      squares_(backend, sizeof(double)) {
    const std::int64_t size = store.gradient().size();
    blocks_ = parallel::blocks_of_shares(size, data_->size());
    share_ = parallel::flat_share(size, data_->rank(), data_->size());
    std::int64_t at = share_.begin;  // what lies before is counted, or not to be
    for (const parallel::Parameter& p : store.parameters()) {
        const Range held = share_of(p);
        if (held.size() <= 0) continue;
        const std::vector<Range> first = parallel::first_held(p, held, peers);
        if (first == std::vector{held}) continue;
        if (at < p.offset + held.begin) counted_.push_back({at, p.offset + held.begin});
        for (const Range& r : first) counted_.push_back({p.offset + r.begin, p.offset + r.end});
        at = p.offset + held.end;
    }
    if (at < share_.end) counted_.push_back({at, share_.end});
    make_chunks();
    const auto bytes = static_cast<std::size_t>(share_.size()) * sizeof(float);
    for (auto* moments : {&first_, &second_}) {
        *moments = backend::Buffer(backend, bytes);
        if (bytes > 0) ops::zero(backend, floats(*moments));
    }
}

void Optimizer::make_chunks() {
    std::vector<ops::Updated> updated;
    for (const parallel::Parameter& p : store_.parameters()) {
        const Range held = share_of(p);
        if (held.size() <= 0) continue;
        const std::int64_t from = p.offset - share_.begin;
        updated.push_back({{from + held.begin, from + held.end}, p.decay});
    }
    const auto chunks = ops::update_chunks(updated);
    if (chunks.empty()) return;
    chunks_ = backend::Buffer(backend_, chunks.size() * sizeof(kernels::UpdateChunk));
    backend_.upload(chunks.data(), chunks_of(chunks_));
}

Tensor Optimizer::gradient() const {
    return store_.gradient().slice(share_.begin, share_.end);
}

void Optimizer::sum_shared(parallel::Sharing sharing, backend::Arena& scratch) {
    collective::ProcessGroup& group = peers_.group(sharing);
    if (group.size() == 1) return;
    const backend::ArenaScope scope(scratch);
    const Tensor together = scratch.allocate(DType::f32, {store_.shared(sharing)});
    const auto each = [&](auto&& move) {
        std::int64_t at = 0;
        for (const parallel::Parameter& p : store_.parameters()) {
            if (!p.trainable || p.sharing != sharing) continue;
            const std::int64_t begin = p.offset + p.common.begin, end = at + p.common.size();
            move(store_.gradient().slice(begin, p.offset + p.common.end), together.slice(at, end));
            at = end;
        }
    };
    each([&](const Tensor& own, const Tensor& beside) { ops::convert(backend_, own, beside); });
    group.all_reduce(backend_, together, ops::Reduction::sum, scratch);
    each([&](const Tensor& own, const Tensor& beside) { ops::convert(backend_, beside, own); });
}

double Optimizer::reduce(backend::Arena& scratch) {
    for (const parallel::Sharing sharing : parallel::kSharings) sum_shared(sharing, scratch);
    data_->reduce_scatter(backend_, parallel::in_blocks(store_.gradient()), parallel::in_blocks(gradient()),
                          blocks_, ops::Reduction::sum, scratch);
    return sum_squares(store_.gradient(), counted_, scratch);
}

double Optimizer::sum_squares(const Tensor& values, std::span<const Range> ranges, backend::Arena& scratch) {
    const Tensor sum(squares_.data(), DType::f64, {1});
    ops::zero(backend_, sum);
    for (const Range& r : ranges)
        if (r.size() > 0) ops::add_squares(backend_, values.slice(r.begin, r.end), sum, scratch);
    double squares = 0;
    backend_.download(sum, &squares);
    return squares;
}

void Optimizer::update(const AdamSettings& settings, std::int64_t step, double gradient_scale) {
    if (share_.size() > 0)
        ops::adamw(backend_, store_.master().slice(share_.begin, share_.end), gradient(), floats(first_),
                   floats(second_), chunks_of(chunks_),
                   {.learning_rate = learning_rate(settings, step),
                    .beta1 = settings.beta1,
                    .beta2 = settings.beta2,
                    .eps = settings.eps,
                    .weight_decay = settings.weight_decay,
                    .step = step,
                    .gradient_scale = gradient_scale});
    const Tensor trained = store_.master().slice(0, store_.gradient().size());
    data_->wait(data_->start_all_gather_in_place(parallel::in_blocks(trained), blocks_));
    store_.refresh_compute();
}

/// The sum of their squares, in double, is one: no sum of squares of floats is too large for it.
bool Optimizer::weights_are_numbers(backend::Arena& scratch) {
    const double squares = sum_squares(store_.master(), std::span(&share_, 1), scratch);
    return std::isfinite(squares);
}

Range Optimizer::share_of(const parallel::Parameter& parameter) const {
    if (!parameter.trainable) return {0, 0};
    return {std::max(parameter.offset, share_.begin) - parameter.offset,
            std::min(parameter.offset + parameter.size(), share_.end) - parameter.offset};
}

Tensor Optimizer::part(const backend::Buffer& moments, const parallel::Parameter& parameter) const {
    const Range held = share_of(parameter);
    if (held.size() <= 0) return Tensor(nullptr, DType::f32, {0});
    const std::int64_t begin = parameter.offset + held.begin - share_.begin;
    return floats(moments).slice(begin, begin + held.size());
}

void Optimizer::set_moments(const parallel::Parameter& parameter, std::span<const float> first,
                            std::span<const float> second) {
    const auto set = [&](const Tensor& moments, std::span<const float> values) {
        MAESTRO_CHECK(static_cast<std::int64_t>(values.size()) == moments.size(),
                      "{} moments for {} elements of {}", values.size(), moments.size(), parameter.name);
        backend_.upload(values.data(), moments);
    };
    set(first_moments(parameter), first);
    set(second_moments(parameter), second);
}

}  // namespace maestro::train
