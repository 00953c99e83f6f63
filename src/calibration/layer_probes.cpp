#include "calibration/layer_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "backend/arena.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "calibration/quantiles.hpp"
#include "comm/environment.hpp"
#include "workload/corrected_work.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"
#include "workload/stage_probe.hpp"
#include "workload/task_factors.hpp"

namespace maestro::calibration {

namespace {

constexpr int kWarmUp = 2, kLeastRuns = 5;
constexpr double kRunsS = 0.2;  ///< of one part, at least

/// Samples of these shapes with random data. Every token is a target.
class RandomSamples {
public:
    RandomSamples(const model::ModelSpec& spec, const Markers& markers,
                  std::span<const model::SampleShape> shapes) {
        const model::Units units(spec);
        std::vector<std::int32_t> words;
        for (std::int32_t word = 0; word < std::max(spec.vocabulary, 1); ++word)
            if (!markers.kind_of(word)) words.push_back(word);
        const Random random(0, "calibration/samples");
        std::uint64_t drawn = 0;
        samples_.resize(shapes.size());
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            Sample& sample = samples_[i];
            const auto tokens = static_cast<std::size_t>(shapes[i].tokens);
            for (std::size_t t = 0; t < tokens; ++t)
                sample.tokens.push_back(t < shapes[i].items.size()
                                            ? markers.of(shapes[i].items[t].kind)
                                            : words[random.bits(drawn++) % words.size()]);
            sample.weights.assign(tokens, 1.0f);
            sample.flags.assign(tokens, 0);
            for (const Item& item : shapes[i].items) {
                std::vector<std::uint8_t>& bytes = sample.bytes.emplace_back();
                bytes.resize(static_cast<std::size_t>(units.bytes(item)));
                for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.bits(drawn++));
            }
            for (std::size_t k = 0; k < sample.bytes.size(); ++k)
                sample.items.push_back({sample.bytes[k].data(), shapes[i].items[k]});
            views_.push_back(
                {static_cast<std::int64_t>(i), sample.tokens, sample.weights, sample.flags, sample.items});
        }
    }
    std::span<const model::SampleView> views() const { return views_; }

private:
    struct Sample {
        std::vector<std::int32_t> tokens;
        std::vector<float> weights;
        std::vector<std::uint8_t> flags;
        std::vector<std::vector<std::uint8_t>> bytes;
        std::vector<model::ItemView> items;
    };
    std::vector<Sample> samples_;
    std::vector<model::SampleView> views_;
};

/// Room for what real choices of experts need beyond the equal ones that are measured.
std::size_t with_margin(std::size_t bytes) {
    return bytes + bytes / 8 + (std::size_t{1} << 20);
}

}  // namespace

class PartRun::Impl {
public:
    Impl(backend::Backend& backend, const model::ModelSpec& spec, const model::Role& role,
         const parallel::MeshShape& shape, const std::vector<int>& expert_nodes,
         std::span<const model::SampleShape> samples)
        : backend_(backend),
          role_(role),
          width_(spec.width),
          samples_(spec, role.markers, samples),
          batch_{.samples = samples_.views(), .loss_scale = 1.0 / static_cast<double>(samples.size())},
          module_(model::make_module(backend, spec, role,
                                     parallel::make_loopback_mesh(0, shape, expert_nodes, backend))) {
        const model::Footprint needed = model::measure(
            spec, role, samples,
            {.traits = {backend.threads(), backend.shares_memory(), backend.attention_support()}},
            parallel::make_meta_mesh(0, shape, {.expert_nodes = expert_nodes}));
        saved_ = backend::Arena(backend, with_margin(needed.saved));
        scratch_ = backend::Arena(backend, with_margin(needed.scratch));
        make_inputs();
        std::set<std::int64_t> rows;
        for (const model::SampleShape& sample : samples) rows.insert(length_of(model::Units(spec), sample));
        module_->prepare(std::vector(rows.begin(), rows.end()), std::ssize(samples));
    }

    Passes run() {
        saved_.reset();
        scratch_.reset();
        Tensor output;
        model::Result result;
        std::unique_ptr<model::Saved> state;
        Passes passes;
        passes.forward =
            timed([&] { state = module_->forward(batch_, inputs_, saved_, scratch_, output, result); });
        if (role_.needs_backward) {
            scratch_.reset();
            std::vector<Tensor> d_inputs(inputs_.size());
            for (std::size_t e = 0; e < inputs_.size(); ++e) {
                if (!role_.inputs[e].gradient && role_.inputs[e].tensor != EdgeTensor::stream) continue;
                std::int64_t rows = 0;
                for (const Tensor& of_sample : inputs_[e]) rows += of_sample.dim(0);
                d_inputs[e] = scratch_.allocate(role_.compute, {rows, row_width(e)});
            }
            // The output stands for its gradient.
            passes.backward = timed(
                [&] { module_->backward(*state, output.rank != 0 ? output : Tensor{}, d_inputs, scratch_); });
        }
        module_->collect(result);
        return passes;
    }

private:
    static std::int64_t length_of(const model::Units& units, const model::SampleShape& sample) {
        if (!units.encodes()) return sample.tokens;
        return sample.items.empty() ? 0 : units.rows(sample.items.front());
    }
    std::int64_t row_width(std::size_t edge) const { return model::row_width(role_.inputs[edge], width_); }
    void make_inputs() {
        const auto rows = module_->input_rows(batch_);
        std::size_t bytes = 64;
        for (std::size_t e = 0; e < role_.inputs.size(); ++e)
            for (const std::int64_t n : rows[e])
                bytes += static_cast<std::size_t>(n * row_width(e)) * size_of(role_.compute) + 64;
        input_memory_ = backend::Arena(backend_, bytes);
        marker_ = input_memory_.allocate(DType::u8, {1});
        inputs_.resize(role_.inputs.size());
        std::uint64_t drawn = 0;
        for (std::size_t e = 0; e < inputs_.size(); ++e)
            for (const std::int64_t n : rows[e]) {
                const Tensor tensor = input_memory_.allocate(role_.compute, {n, row_width(e)});
                fill(tensor, drawn);
                inputs_[e].push_back(tensor);
            }
    }
    /// Values of variance 1, as norms leave them.
    void fill(const Tensor& tensor, std::uint64_t& drawn) {
        if (tensor.size() == 0) return;
        const Random random(0, "calibration/inputs");
        const auto upload = [&]<class T>(T) {
            std::vector<T> values(static_cast<std::size_t>(tensor.size()));
            for (T& value : values)
                value = T(static_cast<float>(std::sqrt(12) * (random.uniform(drawn++) - 0.5)));
            backend_.upload(values.data(), tensor);
        };
        if (tensor.dtype == DType::bf16)
            upload(bf16());
        else if (tensor.dtype == DType::f64)
            upload(0.0);
        else
            upload(0.0f);
    }
    template <class Call>
    Pass timed(Call&& call) {
        for (collective::ProcessGroup* group : groups()) group->reset_traffic();
        backend_.reset_counts();
        const double start_s = comm::now_s();
        call();
        wait();
        Pass pass{.seconds = comm::now_s() - start_s, .flops = backend_.counts().flops};
        // On a GPU the host only queues them.
        if (backend_.shares_memory())
            for (collective::ProcessGroup* group : groups()) pass.seconds -= group->traffic().seconds;
        return pass;
    }
    std::vector<collective::ProcessGroup*> groups() const {
        const parallel::Mesh& mesh = module_->mesh();
        return {&mesh.tp(), &mesh.cp(), &mesh.ep()};
    }
    /// A download waits for all operations before it.
    void wait() {
        std::uint8_t value = 0;
        if (!backend_.shares_memory()) backend_.download(marker_, &value);
    }

    backend::Backend& backend_;
    model::Role role_;
    int width_;
    RandomSamples samples_;
    model::Batch batch_;
    std::unique_ptr<model::Module> module_;
    backend::Arena saved_, scratch_, input_memory_;
    Tensor marker_;  ///< a byte, to wait for the device
    std::vector<std::vector<Tensor>> inputs_;
};

PartRun::PartRun(backend::Backend& backend, const model::ModelSpec& spec, const model::Role& role,
                 const parallel::MeshShape& shape, const std::vector<int>& expert_nodes,
                 std::span<const model::SampleShape> samples)
    : impl_(std::make_unique<Impl>(backend, spec, role, shape, expert_nodes, samples)) {}
PartRun::~PartRun() = default;
PartRun::Passes PartRun::run() {
    return impl_->run();
}

namespace {

/// Returns sequences of up to three lengths: those that hold the row after 10%, 50% and 90% of all rows, by
/// ascending length.
std::vector<workload::Sequence> typical(const workload::SampleTable& table, int section,
                                        std::span<const std::int64_t> samples) {
    std::vector<workload::Sequence> all;
    for (const std::int64_t id : samples)
        for (workload::Sequence& sequence : workload::sequences_of(table, section, id))
            all.push_back(std::move(sequence));
    std::stable_sort(all.begin(), all.end(), [](const workload::Sequence& a, const workload::Sequence& b) {
        return a.rows < b.rows;
    });
    double rows = 0, before = 0;
    for (const workload::Sequence& sequence : all) rows += static_cast<double>(sequence.rows);
    std::vector<workload::Sequence> chosen;
    std::vector<double> shares{0.1, 0.5, 0.9};
    for (const workload::Sequence& sequence : all) {
        before += static_cast<double>(sequence.rows);
        const auto passed =
            std::find_if(shares.begin(), shares.end(), [&](double share) { return share * rows >= before; });
        if (passed == shares.begin()) continue;
        shares.erase(shares.begin(), passed);
        if (chosen.empty() || chosen.back().rows < sequence.rows) chosen.push_back(sequence);
    }
    return chosen;
}

/// A part of a model: "first", "layer" or "last" (config::Correction), as a stage of a pipeline.
struct Part {
    std::string name;
    int layer = 0;
    model::Stage stage;
};

std::vector<Part> parts_of(const model::ModelSpec& spec) {
    std::vector<Part> parts{{"first", 0, {.index = 0, .count = 3, .first_layer = 0, .layers = 1}}};
    std::set<int> kinds;
    for (int layer = 0; layer < spec.layers; ++layer) kinds.insert(spec.first_like(layer));
    for (const int layer : kinds)
        parts.push_back({"layer", layer, {.index = 1, .count = 3, .first_layer = layer, .layers = 1}});
    parts.push_back({"last", 0, {.index = 2, .count = 3, .first_layer = spec.layers - 1, .layers = 1}});
    return parts;
}

/// The mesh of a section's tasks, which know of no other replicas than those with which they share experts.
}  // namespace

std::vector<config::Correction> measure_layers(const comm::Communicator& world, backend::Backend& backend,
                                               const workload::Scenario& scenario,
                                               const workload::SampleTable& table,
                                               std::span<const std::int64_t> samples) {
    std::vector<config::Correction> corrections;
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s) {
        const graph::Section& section = scenario.graph.sections[s];
        const model::ModelSpec& spec = scenario.models[s];
        const parallel::MeshShape mesh =
            workload::task_mesh(workload::mesh_shape_of(scenario, section.first_stage));
        const std::vector<int> nodes = workload::widest_expert_nodes_of(scenario, section.first_stage);
        for (const workload::Sequence& sequence : typical(table, s, samples)) {
            const auto count = static_cast<std::size_t>(workload::probed_samples(
                section.micro_batch, table.lengths(s), static_cast<double>(sequence.rows)));
            const std::vector<model::SampleShape> batch(count, sequence.sample);
            const workload::TaskShape shape = workload::task_shape(std::vector(count, sequence.rows), mesh);
            for (const Part& part : parts_of(spec)) {
                model::Role role = workload::role_of(scenario, s, part.stage);
                // A stage of one layer has no room for what is added after the first layers.
                for (model::InputSpec& input : role.inputs) input.from.deepstack.clear();
                const model::Footprint predicted =
                    model::measure(spec, role, batch, {.rates = workload::rates_of(scenario.cluster->device)},
                                   parallel::make_meta_mesh(0, mesh, {.expert_nodes = nodes}));
                PartRun run(backend, spec, role, mesh, nodes, batch);
                world.barrier();
                std::vector<double> forward, backward;
                for (double sum_s = 0; forward.size() < kWarmUp + kLeastRuns || sum_s < kRunsS;) {
                    const PartRun::Passes passes = run.run();
                    forward.push_back(passes.forward.seconds);
                    backward.push_back(passes.backward.seconds);
                    sum_s += passes.forward.seconds + passes.backward.seconds;
                }
                const auto ratio = [&](std::vector<double>& seconds, double predicted_s) {
                    seconds.erase(seconds.begin(), seconds.begin() + kWarmUp);
                    const double measured_s = median(world.allgather(lower_quartile(std::move(seconds))));
                    return predicted_s > 0 && measured_s > 0 ? measured_s / predicted_s : 1;
                };
                corrections.push_back({.section = section.name,
                                       .precision = scenario.compute == DType::bf16 ? "bf16" : "fp32",
                                       .width = spec.width,
                                       .part = part.name,
                                       .layer = part.layer,
                                       .rows = shape.rows,
                                       .length = shape.length,
                                       .tp = shape.tp,
                                       .cp = shape.cp,
                                       .ep = shape.ep,
                                       .forward_s = predicted.forward_s,
                                       .backward_s = predicted.backward_s,
                                       .forward = ratio(forward, predicted.forward_s),
                                       .backward = ratio(backward, predicted.backward_s)});
            }
        }
    }
    return corrections;
}

}  // namespace maestro::calibration
