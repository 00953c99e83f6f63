// A section in several pipeline stages, all in this process; the edges between them are simulated. On several
// ranks every rank has its shards of all stages.
#pragma once

#include <map>
#include <string>

#include "ops/elementwise.hpp"
#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {

/// A stage of a section with its memory, and the micro-batch that it works on.
struct StageOnDevice {
    StageOnDevice(backend::Backend& b, const ModelSpec& s, Role r, Mesh mesh)
        : spec(s),
          role(std::move(r)),
          module(make_module(b, spec, role, std::move(mesh))),
          saved(b, kRoom),
          scratch(b, kRoom) {
        fill_weights(*module, role.section);
    }
    static constexpr std::size_t kRoom = std::size_t{16} << 20;
    ModelSpec spec;
    Role role;
    std::unique_ptr<Module> module;
    backend::Arena saved, scratch;
    std::unique_ptr<Saved> state;
    std::vector<std::vector<Tensor>> inputs;
};

/// A section in several stages.
class Pipeline {
public:
    /// `layers`: of each stage. `mesh` makes the mesh of a stage. `wanted(stage)`: whether the gradient of
    /// its stream is.
    Pipeline(
        backend::Backend& backend, const ModelSpec& spec, const Role& whole, const std::vector<int>& layers,
        const std::function<Mesh()>& mesh = single_rank_mesh,
        const std::function<bool(int)>& wanted = [](int) { return true; }) {
        int first_layer = 0;
        for (std::size_t s = 0; s < layers.size(); ++s) {
            Role role = whole;
            role.stage = {.index = static_cast<int>(s),
                          .count = static_cast<int>(layers.size()),
                          .first_layer = first_layer,
                          .layers = layers[s]};
            first_layer += layers[s];
            if (!role.stage.last()) role.loss_terms.clear();
            role.emits = whole.emits || !role.stage.last();
            role.inputs.clear();
            for (const InputSpec& input : whole.inputs) {
                const bool embeddings = input.tensor == EdgeTensor::embeddings;
                if (embeddings ? role.stage.first() : role.stage.last())
                    role.inputs.push_back(input);
                else if (embeddings)
                    role.stage.expansions.emplace_back(input.from);
            }
            if (!role.stage.first())
                role.inputs.push_back({EdgeTensor::stream, spec, wanted(role.stage.index)});
            stages_.push_back(std::make_unique<StageOnDevice>(backend, spec, role, mesh()));
        }
    }
    /// `edges`: what each edge of the section delivers, by sample. Returns the output of the last stage.
    Tensor forward(const Batch& batch, const std::vector<std::vector<Tensor>>& edges, Result& result) {
        Tensor output;
        for (auto& stage : stages_) {
            stage->inputs.clear();
            std::size_t edge = 0;
            for (const InputSpec& input : stage->role.inputs) {
                if (input.tensor != EdgeTensor::stream) {
                    stage->inputs.push_back(edges[edge++]);
                    continue;
                }
                std::vector<Tensor> rows;
                std::int64_t at = 0;
                const auto input_rows = stage->module->input_rows(batch);
                for (const std::int64_t count : input_rows[stage->inputs.size()]) {
                    rows.push_back(output.slice(at, at + count));
                    at += count;
                }
                MAESTRO_CHECK(at == output.dim(0), "a stage takes {} rows of {}", at, output.dim(0));
                stage->inputs.push_back(std::move(rows));
            }
            output = Tensor();
            {
                const backend::ArenaScope task(stage->scratch);
                stage->state = stage->module->forward(batch, stage->inputs, stage->saved, stage->scratch,
                                                      output, result);
            }
            // The next task of a rank uses the same scratch memory: nothing of this one may be left in it.
            const std::size_t used = stage->scratch.peak();
            const backend::ArenaScope next(stage->scratch);
            ops::zero(stage->module->parameters().backend(),
                      stage->scratch.allocate(DType::f32, {static_cast<std::int64_t>(used / sizeof(float))}));
        }
        terms_.clear();
        collect(result);
        return output;
    }
    /// Returns the gradient of what the section's first edge delivers.
    Tensor backward(Tensor d_output) {
        Tensor d_edge;
        for (std::size_t s = stages_.size(); s-- > 0;) {
            StageOnDevice& stage = *stages_[s];
            std::vector<Tensor> d_inputs;
            Tensor d_stream;
            for (std::size_t e = 0; e < stage.inputs.size(); ++e) {
                std::int64_t rows = 0;
                for (const Tensor& t : stage.inputs[e]) rows += t.dim(0);
                const InputSpec& input = stage.role.inputs[e];
                d_inputs.push_back(
                    stage.scratch.allocate(stage.role.compute, {rows, row_width(input, stage.spec.width)}));
                (input.tensor == EdgeTensor::stream ? d_stream : d_edge) = d_inputs.back();
            }
            stage.module->backward(*stage.state, d_output, d_inputs, stage.scratch);
            d_output = d_stream;
        }
        Result none;
        collect(none);
        return d_edge;
    }
    /// The terms of the losses since the last forward(), of this rank.
    const std::map<std::string, double>& terms() const { return terms_; }
    /// How many rows of each sample the section's first edge delivers to this rank.
    std::vector<std::int64_t> edge_rows(const Batch& batch) const {
        for (const auto& stage : stages_)
            if (!stage->role.inputs.empty() && stage->role.inputs.front().tensor != EdgeTensor::stream)
                return stage->module->input_rows(batch).front();
        return {};
    }
    const std::vector<std::unique_ptr<StageOnDevice>>& stages() const { return stages_; }

private:
    void collect(Result& result) {
        for (auto& stage : stages_) {
            stage->module->collect(result);
            for (const LossSum& sum : stage->module->loss_sums()) terms_[sum.term] += sum.value;
        }
    }

    std::vector<std::unique_ptr<StageOnDevice>> stages_;
    std::map<std::string, double> terms_;
};

}  // namespace maestro::model::test
