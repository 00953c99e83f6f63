#include "train/replica.hpp"

#include <algorithm>
#include <iterator>

#include "comm/environment.hpp"
#include "ops/elementwise.hpp"

namespace maestro::train {

namespace {

/// Those of the samples that come over the edge.
std::vector<std::int64_t> expected(const channel::Channel& input, std::span<const std::int64_t> samples) {
    std::vector<std::int64_t> found;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(found),
                 [&](std::int64_t sample) { return input.expects(sample); });
    return found;
}

}  // namespace

Replica::Replica(backend::Backend& backend, Settings settings, std::unique_ptr<model::Module> module,
                 comm::Communicator replicas, std::vector<channel::Channel*> inputs,
                 std::vector<channel::Channel*> outputs, backend::Arena& scratch)
    : backend_(backend),
      settings_(settings),
      module_(std::move(module)),
      replicas_(std::move(replicas)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      scratch_(scratch) {
    if (module_->parameters().gradient().size() > 0)
        optimizer_ = std::make_unique<Optimizer>(backend, module_->parameters(), replicas_);
    for (int i = 0; i < settings_.window; ++i) {
        slots_.emplace_back(backend, settings_.saved_bytes);
        free_slots_.push_back(i);
    }
}

std::size_t Replica::bytes() const {
    std::size_t total = module_->parameters().bytes() + (optimizer_ ? optimizer_->bytes() : 0);
    for (const auto& slot : slots_) total += slot.capacity();
    return total;
}

std::size_t Replica::used_bytes() const {
    std::size_t total = bytes();
    for (const auto& slot : slots_) total -= slot.capacity() - slot.peak();
    return total;
}

bool Replica::collect_drained() {
    // Rows that a colocated consumer reads stay until it has released them.
    for (auto it = in_flight_.begin(); it != in_flight_.end();) {
        const bool drained = std::all_of(outputs_.begin(), outputs_.end(),
                                         [&](channel::Channel* c) { return c->drained(it->first); });
        if (drained) free_slots_.push_back(it->second.slot);
        it = drained ? in_flight_.erase(it) : std::next(it);
    }
    return !free_slots_.empty();
}

int Replica::take_slot() {
    MAESTRO_CHECK(!free_slots_.empty(), "section {}: more than {} micro-batches in flight", settings_.name,
                  settings_.window);
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
}

bool Replica::can_forward(std::span<const std::int64_t> samples) {
    for (channel::Channel* input : inputs_)
        for (const std::int64_t sample : samples)
            if (input->expects(sample) && !input->arrived(sample)) return false;
    for (channel::Channel* output : outputs_)
        if (!output->has_credit()) return false;
    return !free_slots_.empty() || (!settings_.backward && !outputs_.empty() && collect_drained());
}

bool Replica::can_backward(int micro_batch) {
    if (!in_flight_.contains(micro_batch)) return false;
    return std::all_of(outputs_.begin(), outputs_.end(), [&](channel::Channel* output) {
        return !output->spec().carries_gradient || output->drained(micro_batch);
    });
}

double Replica::reduce() {
    if (!optimizer_) return 0;
    const double begin = comm::now_s();
    const double squares = optimizer_->reduce();
    if (settings_.reduce_s > 0) comm::sleep_until(begin + settings_.reduce_s);
    times_.reducing += comm::now_s() - begin;
    return squares;
}

void Replica::update(const AdamSettings& adam, std::int64_t step, double gradient_scale) {
    if (!optimizer_) return;
    const double begin = comm::now_s();
    optimizer_->update(adam, step, gradient_scale);
    if (settings_.update_s > 0) comm::sleep_until(begin + settings_.update_s);
    times_.reducing += comm::now_s() - begin;
}

TaskTimes Replica::forward(int micro_batch, const model::Batch& batch, model::Result& result,
                           double asked_s) {
    const std::span<const model::SampleView> samples = batch.samples;
    for (channel::Channel* input : inputs_)
        for (const auto& sample : samples)
            if (input->expects(sample.id)) input->wait_arrived(sample.id);
    for (channel::Channel* output : outputs_) output->wait_credit();
    // Without a backward a slot is free once all consumers are done with one and the same micro-batch.
    if (!settings_.backward && !outputs_.empty())
        replicas_.waiter().wait_until([&] { return collect_drained(); },
                                      [&] { return settings_.name + ": all consumers of one micro-batch"; });
    const double start = comm::now_s();

    std::vector<std::vector<Tensor>> rows(inputs_.size());
    for (std::size_t e = 0; e < inputs_.size(); ++e)
        for (const auto& sample : samples)
            rows[e].push_back(inputs_[e]->expects(sample.id)
                                  ? inputs_[e]->rows(sample.id)
                                  : Tensor(nullptr, settings_.dtype, {0, inputs_[e]->spec().width}));
    InFlight flight;
    flight.slot = take_slot();
    backend::Arena& saved = slots_[static_cast<std::size_t>(flight.slot)];
    saved.reset();
    for (const auto& sample : samples) flight.samples.push_back(sample.id);
    Tensor output;
    {
        backend::ArenaScope scope(scratch_);
        flight.saved = module_->forward(batch, rows, saved, scratch_, output, result);
    }
    const double computed = comm::now_s();
    for (channel::Channel* channel : outputs_) channel->put(micro_batch, output);
    for (channel::Channel* input : inputs_)
        if (!input->spec().carries_gradient) input->release(expected(*input, flight.samples));
    if (!settings_.backward) flight.saved.reset();
    const bool keep = settings_.backward || !outputs_.empty();
    if (keep)
        in_flight_.emplace(micro_batch, std::move(flight));
    else
        free_slots_.push_back(flight.slot);
    return task_done(asked_s, start, computed);
}

TaskTimes Replica::task_done(double asked, double start, double computed) {
    const double end = comm::now_s();
    times_.waiting += start - asked;
    times_.compute += computed - start;
    times_.sending += end - computed;
    return {start, end, start - asked};
}

TaskTimes Replica::backward(int micro_batch, double asked_s) {
    for (channel::Channel* output : outputs_)
        if (output->spec().carries_gradient) output->wait_drained(micro_batch);
    const double start = comm::now_s();

    auto node = in_flight_.extract(micro_batch);
    MAESTRO_CHECK(!node.empty(), "section {}: backward of micro-batch {} before its forward", settings_.name,
                  micro_batch);
    InFlight& flight = node.mapped();
    Tensor d_output;
    for (channel::Channel* output : outputs_) {
        if (!output->spec().carries_gradient) continue;
        const Tensor gradient = output->gradient(micro_batch);
        if (d_output.rank == 0)
            d_output = gradient;
        else
            ops::add(backend_, gradient, d_output);
    }
    backend::ArenaScope scope(scratch_);
    std::vector<Tensor> d_inputs(inputs_.size());
    for (std::size_t e = 0; e < inputs_.size(); ++e) {
        if (!inputs_[e]->spec().carries_gradient) continue;
        std::int64_t rows = 0;
        for (const std::int64_t sample : expected(*inputs_[e], flight.samples))
            rows += inputs_[e]->rows_of(sample);
        d_inputs[e] = scratch_.allocate(settings_.dtype, {rows, inputs_[e]->spec().width});
    }
    module_->backward(*flight.saved, d_output, d_inputs, scratch_);
    const double computed = comm::now_s();
    for (std::size_t e = 0; e < inputs_.size(); ++e)
        if (inputs_[e]->spec().carries_gradient)
            inputs_[e]->put_gradient(expected(*inputs_[e], flight.samples), d_inputs[e]);
    for (channel::Channel* output : outputs_)
        if (output->spec().carries_gradient) output->retire(micro_batch);
    free_slots_.push_back(flight.slot);
    return task_done(asked_s, start, computed);
}

void Replica::end_step() {
    if (!settings_.backward) {
        for (auto& [micro_batch, flight] : in_flight_) {
            for (channel::Channel* output : outputs_) output->wait_drained(micro_batch);
            free_slots_.push_back(flight.slot);
        }
        in_flight_.clear();
    }
    MAESTRO_CHECK(in_flight_.empty(), "section {}: {} micro-batches without their backward", settings_.name,
                  in_flight_.size());
}

}  // namespace maestro::train
