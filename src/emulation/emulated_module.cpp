#include "emulation/emulated_module.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "comm/environment.hpp"
#include "emulation/emulation.hpp"
#include "ops/elementwise.hpp"

namespace maestro::emulation {

namespace {

Tensor meta_rows(std::int64_t rows, std::int64_t width, DType dtype) {
    return Tensor(nullptr, dtype, {rows, width});
}

model::Role without_frozen(model::Role role) {
    role.frozen = {};
    return role;
}

class EmulatedModule final : public model::Module, private parallel::PassObserver {
public:
    /// The parameters here have other names than those of the model: what the role freezes there is left out.
    EmulatedModule(backend::Backend& backend, const model::ModelSpec& spec, const model::Role& role,
                   const backend::DeviceRates& rates, const Scales& scales, Sleep sleep_until,
                   Factors factors, parallel::Mesh mesh, parallel::Mesh meta_mesh)
        : Module(backend, without_frozen(role), std::move(mesh)),
          backend_(backend),
          spec_(spec),
          role_(role),
          scales_(scales),
          sleep_until_(std::move(sleep_until)),
          factors_(std::move(factors)),
          meta_(backend::make_meta(rates)),
          model_(model::make_module(*meta_, spec, role, std::move(meta_mesh))) {
        int layer = 0;
        const bool trained = model_->parameters().trainable() > 0;
        for (const parallel::ParameterGroup& group : model_->parameters().groups()) {
            if (group.trainable() != trained) continue;
            std::int64_t elements = 0;
            for (const parallel::Parameter* p : group.parameters()) elements += most_elements(*p);
            const std::int64_t size = trained ? scales.of(elements) : 1;
            const std::int64_t first = mesh_.tp().rank() * size;
            if (layer > 0) store_.begin_layer();
            store_.declare(fmt::format("emulated.{}.{}.weight", role.stage.index, layer),
                           {mesh_.degrees().tp * size}, parallel::Init::zeros, trained,
                           {{{first, first + size}}}, {0, 1});
            layer_of_[&group] = layer++;
            if (!trained) break;
        }
        store_.allocate(1, 1);  // a group for each of the model's
        if (trained) model_->parameters().set_observer(this);
    }

    std::unique_ptr<model::Saved> forward(const model::Batch& batch,
                                          std::span<const std::vector<Tensor>> inputs, backend::Arena& saved,
                                          backend::Arena& real_scratch, Tensor& output,
                                          model::Result& result) override {
        const double start = begin(real_scratch);
        std::vector<std::vector<Tensor>> rows(inputs.size());
        auto state = std::make_unique<State>();
        for (std::size_t e = 0; e < inputs.size(); ++e) {
            std::int64_t total = 0;
            for (const Tensor& t : inputs[e]) {
                rows[e].push_back(meta_rows(t.dim(0), input_width(e), role_.compute));
                total += t.dim(0);
            }
            state->input_rows.push_back(total);
        }
        backend::Arena kept, scratch;  // measure only
        Tensor all;
        model::Result counted;
        state->factors = factors_(batch);
        factor_ = state->factors[0];
        reset_counts();
        state->model = model_->forward(batch, rows, kept, scratch, all, counted);
        if (role_.emits) {
            state->output_rows = all.dim(0);
            output = saved.allocate(role_.compute, {all.dim(0), scales_.of(all.columns())});
            ops::zero(backend_, output);
        }
        result.tokens += counted.tokens;
        if (role_.computes_loss() && mesh_.rank_in_replica() == 0) {
            double weight = 0;
            for (const model::SampleView& sample : batch.samples)
                for (const float w : sample.weights) weight += w;
            result.loss += emulated_loss(batch.step) * weight * batch.loss_scale;
        }
        sleep_through(
            start, [this](int layer) { store_.layer_needed(layer); },
            store_.observer() && store_.observer()->awaits_weights());
        return state;
    }

    void backward(model::Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& real_scratch) override {
        const double start = begin(real_scratch);
        auto& state = static_cast<State&>(saved);
        std::vector<Tensor> gradients(d_inputs.size());
        for (std::size_t e = 0; e < d_inputs.size(); ++e) {
            if (d_inputs[e].rank == 0) continue;
            ops::zero(backend_, d_inputs[e]);
            gradients[e] = meta_rows(state.input_rows[e], input_width(e), role_.compute);
        }
        backend::Arena scratch;
        factor_ = state.factors[1];
        reset_counts();
        model_->backward(
            *state.model,
            d_output.rank == 0 ? Tensor{} : meta_rows(state.output_rows, output_width(), role_.compute),
            gradients, scratch);
        sleep_through(
            start, [this](int layer) { store_.layer_final(layer); },
            store_.observer() && store_.observer()->awaits_gradients());
    }

private:
    struct State final : model::Saved {
        std::unique_ptr<model::Saved> model;
        std::vector<std::int64_t> input_rows;  ///< by edge
        std::int64_t output_rows = 0;
        std::array<double, 2> factors{1, 1};
    };
    /// The most elements of a parameter of the model that a tp rank holds: the same on all of them.
    std::int64_t most_elements(const parallel::Parameter& p) const {
        if (!p.replicated.empty()) return p.size();
        const std::int64_t tp = mesh_.degrees().tp;
        return (whole(p.shape).size() + tp - 1) / tp;
    }
    std::int64_t input_width(std::size_t edge) const {
        return model::row_width(role_.inputs[edge], spec_.width);
    }
    std::int64_t output_width() const { return role_.output_width; }
    /// Waits for the ranks of the replica and for those that share its experts, as the collectives of a task
    /// would, and returns the time.
    double begin(backend::Arena& scratch) {
        for (collective::ProcessGroup* group : {&mesh_.tp(), &mesh_.cp(), &mesh_.ep()}) {
            if (group->size() == 1) continue;
            const backend::ArenaScope scope(scratch);
            const Tensor sign = scratch.allocate(DType::f32, {group->size()});
            ops::zero(backend_, sign);
            group->all_reduce(backend_, sign, ops::Reduction::sum, scratch);
        }
        return comm::now_s();
    }
    /// Sleeps for the time of a task that began at `start_s`. Tells the groups of parameters that it passes:
    /// at their time, where `awaited`, because this may take time as well.
    template <class Tell>
    void sleep_through(double start_s, Tell&& tell, bool awaited) {
        for (const Passed& passed : passed_) {
            if (awaited) sleep_until_(start_s + scales_.time * passed.at_s);
            const double told_s = comm::now_s();
            tell(passed.layer);
            start_s += comm::now_s() - told_s;
        }
        sleep_until_(start_s + scales_.time * counted_s());
    }
    // Of the model's groups.
    void weights_needed(const parallel::ParameterGroup& group) override { note(group); }
    void gradients_final(const parallel::ParameterGroup& group) override { note(group); }
    void note(const parallel::ParameterGroup& group) {
        passed_.push_back({layer_of_.at(&group), counted_s()});
    }
    void reset_counts() {
        passed_.clear();
        meta_->reset_counts();
        model_->mesh().tp().reset_traffic();
        model_->mesh().cp().reset_traffic();
        model_->mesh().ep().reset_traffic();
    }
    double counted_s() const {
        return factor_ * meta_->counts().seconds + model_->mesh().tp().traffic().seconds +
               model_->mesh().cp().traffic().seconds + model_->mesh().ep().traffic().seconds;
    }

    backend::Backend& backend_;
    model::ModelSpec spec_;
    model::Role role_;
    Scales scales_;
    Sleep sleep_until_;
    Factors factors_;
    double factor_ = 1;  ///< of the present task
    /// By group of the model: the layer of its parameter here.
    std::map<const parallel::ParameterGroup*, int> layer_of_;
    /// A group that the present task passes, and after how many seconds of the cluster.
    struct Passed {
        int layer;
        double at_s;
    };
    std::vector<Passed> passed_;
    std::unique_ptr<backend::Backend> meta_;
    std::unique_ptr<model::Module> model_;
};

}  // namespace

std::int64_t Scales::of(std::int64_t width) const {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(width) * messages));
}

std::unique_ptr<model::Module> make_emulated_module(backend::Backend& backend, const model::ModelSpec& spec,
                                                    const model::Role& role,
                                                    const backend::DeviceRates& rates, const Scales& scales,
                                                    Sleep sleep_until, Factors factors, parallel::Mesh mesh,
                                                    parallel::Mesh meta_mesh) {
    return std::make_unique<EmulatedModule>(backend, spec, role, rates, scales, std::move(sleep_until),
                                            std::move(factors), std::move(mesh), std::move(meta_mesh));
}

}  // namespace maestro::emulation
