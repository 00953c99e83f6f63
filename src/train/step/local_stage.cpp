#include "train/step/local_stage.hpp"

#include <algorithm>
#include <iterator>

#include "backend/profiler_range.hpp"
#include "comm/environment.hpp"
#include "ops/elementwise.hpp"

namespace maestro::train {

namespace {

/// Returns those of the samples that come over the edge.
std::vector<std::int64_t> expected(const channel::Channel& input, std::span<const std::int64_t> samples) {
    std::vector<std::int64_t> found;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(found),
                 [&](std::int64_t sample) { return input.expects(sample); });
    return found;
}

LocalStage::Settings with_label(LocalStage::Settings settings) {
    if (settings.label.empty()) settings.label = settings.name;
    return settings;
}

}  // namespace

LocalStage::LocalStage(backend::Backend& backend, Settings settings, std::unique_ptr<model::Module> module,
                       comm::Waiter& waiter, std::vector<channel::Channel*> inputs,
                       std::vector<channel::Channel*> outputs, backend::Arena& scratch)
    : backend_(backend),
      settings_(with_label(std::move(settings))),
      module_(std::move(module)),
      waiter_(waiter),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      scratch_(scratch),
      slots_(backend, settings_.label, settings_.window, settings_.saved_bytes) {
    if (module_->parameters().trainable() > 0)
        optimizer_ = std::make_unique<Optimizer>(backend, module_->parameters());
    if (optimizer_)
        sync_ = std::make_unique<ParameterSync>(module_->parameters(), *optimizer_, waiter, settings_.label,
                                                settings_.emulated);
}

std::size_t LocalStage::bytes() const {
    return module_->parameters().bytes() + (optimizer_ ? optimizer_->bytes() + sync_->scratch_bytes() : 0) +
           slots_.bytes();
}

std::size_t LocalStage::used_bytes() const {
    const std::size_t unused_scratch = sync_ ? sync_->scratch_bytes() - sync_->used_scratch_bytes() : 0;
    return bytes() - unused_scratch - slots_.bytes() + slots_.used_bytes();
}

bool LocalStage::collect_drained() {
    slots_.release_if([&](int micro_batch) {
        return std::all_of(outputs_.begin(), outputs_.end(),
                           [&](channel::Channel* output) { return output->drained(micro_batch); });
    });
    return slots_.any_free();
}

bool LocalStage::can_forward(std::span<const std::int64_t> samples) {
    for (channel::Channel* input : inputs_)
        for (const std::int64_t sample : samples)
            if (input->expects(sample) && !input->arrived(sample)) return false;
    for (channel::Channel* output : outputs_)
        if (!output->has_credit()) return false;
    // Polling the consumers of every micro-batch in flight is the most expensive condition, so it comes last.
    return slots_.any_free() || (!settings_.backward && !outputs_.empty() && collect_drained());
}

bool LocalStage::can_backward(int micro_batch) {
    if (!slots_.in_flight(micro_batch)) return false;
    return std::all_of(outputs_.begin(), outputs_.end(), [&](channel::Channel* output) {
        return !output->spec().carries_gradient || output->drained(micro_batch);
    });
}

void LocalStage::set_between_steps(ParameterSync::BetweenSteps which) {
    if (sync_) sync_->set_between_steps(which);
}

void LocalStage::gradients_final() {
    if (sync_) sync_->gradients_final();
}

double LocalStage::reduce() {
    if (!sync_) return 0;
    const backend::ProfilerRange range(backend_, settings_.label, "reduce");
    const backend::Mark begin = backend_.clock().mark();
    const double squares = sync_->finish_sums();
    // On a GPU the work ends after the host has issued it: read_clock() turns the marks into seconds.
    reducing_.emplace_back(begin, backend_.clock().mark());
    return squares;
}

void LocalStage::balance(std::span<const model::ExpertLoad> loads) {
    if (optimizer_) optimizer_->balance(loads);
}

void LocalStage::update(const AdamSettings& adam, std::int64_t step, double gradient_scale) {
    if (!sync_) return;
    const backend::ProfilerRange range(backend_, settings_.label, "update");
    const backend::Mark begin = backend_.clock().mark();
    sync_->update(adam, step, gradient_scale);
    reducing_.emplace_back(begin, backend_.clock().mark());
}

void LocalStage::await_weights() {
    if (!sync_) return;
    const backend::Mark begin = backend_.clock().mark();
    sync_->await_weights();
    reducing_.emplace_back(begin, backend_.clock().mark());
}

std::vector<SyncSpan> LocalStage::take_syncs() {
    return sync_ ? sync_->take_spans() : std::vector<SyncSpan>();
}

std::vector<std::vector<Tensor>> LocalStage::input_rows(std::span<const model::SampleView> samples) {
    const backend::ProfilerRange range(backend_, "edge");
    // A sample that does not come over an edge has a tensor of 0 rows, because modules expect one for each
    // sample.
    std::vector<std::vector<Tensor>> rows(inputs_.size());
    for (std::size_t e = 0; e < inputs_.size(); ++e)
        for (const auto& sample : samples)
            rows[e].push_back(inputs_[e]->expects(sample.id)
                                  ? inputs_[e]->rows(sample.id)
                                  : Tensor(nullptr, settings_.dtype, {0, inputs_[e]->spec().width}));
    return rows;
}

std::vector<int> LocalStage::await_forward(std::span<const std::int64_t> samples,
                                           std::span<const int> slots) {
    for (channel::Channel* input : inputs_)
        for (const std::int64_t sample : samples)
            if (input->expects(sample)) input->wait_arrived(sample);
    std::vector<int> chosen;
    for (std::size_t e = 0; e < outputs_.size(); ++e) {
        outputs_[e]->wait_credit(slots.empty() ? -1 : slots[e]);
        chosen.push_back(slots.empty() ? outputs_[e]->free_slot() : slots[e]);
    }
    // A slot of activations comes back with the backward. Without one, the output in it stays until the last
    // consumer has read it, which this rank only notices when it looks.
    if (!settings_.backward && !outputs_.empty())
        waiter_.wait_until([&] { return collect_drained(); },
                           [&] { return settings_.label + ": all consumers of one micro-batch"; });
    return chosen;
}

void LocalStage::await_backward(int micro_batch) {
    for (channel::Channel* output : outputs_)
        if (output->spec().carries_gradient) output->wait_drained(micro_batch);
}

Tensor LocalStage::no_rows() const {
    return {nullptr, settings_.dtype, {0, outputs_.empty() ? 0 : outputs_.front()->spec().width}};
}

TaskMarks LocalStage::forward(int micro_batch, std::span<const std::int64_t> lane_samples,
                              const model::Batch& batch, std::span<const int> slots, model::Result& result,
                              double requested_s) {
    const std::span<const model::SampleView> samples = batch.samples;
    const backend::ProfilerRange range(backend_, settings_.label, "forward", micro_batch);
    const std::vector<std::vector<Tensor>> inputs = input_rows(samples);
    if (sync_) sync_->begin_forward();
    const backend::Mark start = backend_.clock().mark();  // what came before is waiting, not computing

    InFlight entry = slots_.take();
    // The leader of a lane answers for the arrival of all samples, also those of other parts: see
    // channel::FlagPair.
    entry.samples.assign(lane_samples.begin(), lane_samples.end());
    Tensor output = no_rows();
    if (!samples.empty() || settings_.shares_experts) {
        backend::ArenaScope scope(scratch_);
        entry.saved = module_->forward(batch, inputs, slots_.memory(entry), scratch_, output, result);
        if (sync_) sync_->end_forward();
    }
    const backend::Mark computed = backend_.clock().mark();
    {
        const backend::ProfilerRange edges(backend_, "edge");
        for (std::size_t e = 0; e < outputs_.size(); ++e) outputs_[e]->put(micro_batch, output, slots[e]);
        // On an edge with gradients, put_gradient() releases the rows.
        for (channel::Channel* input : inputs_)
            if (!input->spec().carries_gradient) input->release(expected(*input, entry.samples));
    }
    // Without a backward only the output is still needed, which consumers may read where it lies.
    if (!settings_.backward) entry.saved.reset();
    if (settings_.backward || !outputs_.empty())
        slots_.keep(micro_batch, std::move(entry));
    else
        slots_.release(entry);
    TaskMarks marks{requested_s, start, computed, backend_.clock().mark()};
    if (sync_) marks.weights = sync_->take_waits();
    return marks;
}

TaskTimes LocalStage::measured(const TaskMarks& task, double free_s) {
    // On a GPU, tasks are issued long before they run. As long as earlier work keeps the device busy, a task
    // does not wait for its inputs.
    const backend::Clock& clock = backend_.clock();
    const double start = clock.at(task.start), computed = clock.at(task.computed), end = clock.at(task.end);
    const double waited = std::max(0.0, start - std::max(task.requested_s, free_s));
    double weights = 0;
    for (const auto& [before, after] : task.weights) weights += clock.at(after) - clock.at(before);
    times_.waiting += waited + weights;
    times_.compute += computed - start - weights;
    times_.sending += end - computed;
    return {start, end, waited, weights};
}

void LocalStage::read_clock() {
    backend_.clock().read();
    for (const auto& [begin, end] : reducing_)
        times_.reducing += backend_.clock().at(end) - backend_.clock().at(begin);
    reducing_.clear();
}

const SectionTimes& LocalStage::times() {
    read_clock();
    return times_;
}

std::vector<Tensor> LocalStage::output_gradients(int micro_batch) {
    const backend::ProfilerRange range(backend_, "edge");
    std::vector<Tensor> gradients;
    for (channel::Channel* output : outputs_)
        if (output->spec().carries_gradient) gradients.push_back(output->gradient(micro_batch));
    return gradients;
}

TaskMarks LocalStage::backward(int micro_batch, double requested_s, bool last) {
    const backend::ProfilerRange range(backend_, settings_.label, "backward", micro_batch);
    const std::vector<Tensor> gradients = output_gradients(micro_batch);
    const backend::Mark start = backend_.clock().mark();

    // The slot stays in use until the end of this backward, which reads the activations in it.
    InFlight entry = slots_.extract(micro_batch);
    backend::ArenaScope scope(scratch_);
    const Tensor d_output = gradients.empty() ? Tensor() : gradients.front();
    // The sum goes into the memory of the first edge, which is this section's until retire().
    for (std::size_t e = 1; e < gradients.size(); ++e) ops::add(backend_, gradients[e], d_output);
    std::vector<Tensor> d_inputs(inputs_.size());
    std::vector<std::vector<std::int64_t>> delivered(inputs_.size());  // samples by edge
    for (std::size_t e = 0; e < inputs_.size(); ++e) {
        if (!inputs_[e]->spec().carries_gradient) continue;
        delivered[e] = expected(*inputs_[e], entry.samples);
        std::int64_t rows = 0;
        for (const std::int64_t sample : delivered[e]) rows += inputs_[e]->rows_of(sample);
        d_inputs[e] = scratch_.allocate(settings_.dtype, {rows, inputs_[e]->spec().width});
    }
    if (last && sync_) sync_->begin_last_backward();
    if (entry.saved) module_->backward(*entry.saved, d_output, d_inputs, scratch_);
    const backend::Mark computed = backend_.clock().mark();
    {
        const backend::ProfilerRange edges(backend_, "edge");
        // Other ranks wait for the gradients; retire() only frees a slot here, so it comes after them.
        for (std::size_t e = 0; e < inputs_.size(); ++e)
            if (inputs_[e]->spec().carries_gradient) inputs_[e]->put_gradient(delivered[e], d_inputs[e]);
        for (channel::Channel* output : outputs_)
            if (output->spec().carries_gradient) output->retire(micro_batch);
    }
    if (last) gradients_final();
    slots_.release(entry);
    return {requested_s, start, computed, backend_.clock().mark()};
}

void LocalStage::end_step() {
    if (!settings_.backward)
        slots_.release_if([&](int micro_batch) {
            for (channel::Channel* output : outputs_) output->wait_drained(micro_batch);
            return true;
        });
    slots_.check_empty();
}

}  // namespace maestro::train
