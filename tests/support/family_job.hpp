// The models of a folder of tests/golden/families in double, on one rank: forward and backward over samples.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/low_rank_adapter.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::testing_support {

struct FamilyModel {
    model::ModelSpec spec;
    Lora lora;
    std::unique_ptr<model::Module> module;
};

/// The language model and, where the folder has one, the vision model before it, with the folder's weights.
class FamilyJob {
public:
    /// `loras`: the adapters of each model, the language model first.
    explicit FamilyJob(const std::string& family, const std::vector<Lora>& loras = {}) {
        const std::vector<model::ModelSpec> specs = specs_of_folder(family);
        const auto lora_of = [&](std::size_t i) { return i < loras.size() ? loras[i] : Lora{}; };
        model::Role language{};
        language.section = "language";
        language.loss_terms = {model::LossTerm{}};
        if (specs.size() > 1) {
            language.inputs = {{EdgeTensor::embeddings, specs[1]}};
            language.markers = Markers(kFamilyMarker);
        }
        models.push_back(load(family, specs[0], lora_of(0), language));
        if (specs.size() == 1) return;
        model::Role vision{};
        vision.section = "vision";
        vision.emits = true;
        vision.output_width = model::row_width(language.inputs[0], specs[0].width);
        models.push_back(load(family, specs[1], lora_of(1), vision));
    }

    /// Returns the loss, and adds to the gradients.
    double run(const model::Batch& batch) {
        backend::Arena saved(*backend, std::size_t{16} << 20), scratch(*backend, std::size_t{16} << 20);
        model::Result result;
        std::unique_ptr<model::Saved> vision_state;
        std::vector<std::vector<Tensor>> inputs;
        std::vector<Tensor> d_inputs;
        if (models.size() > 1) {
            Tensor rows;
            vision_state = models[1].module->forward(batch, {}, saved, scratch, rows, result);
            vision_rows.assign(rows.as<double>(), rows.as<double>() + rows.size());
            inputs.emplace_back();
            std::int64_t row = 0;
            for (const model::SampleView& sample : batch.samples) {
                const std::int64_t first = row;
                for (const model::ItemView& picture : sample.items)
                    row += model::Units(models[1].spec).outputs(picture.item);
                inputs[0].push_back(rows.slice(first, row));
            }
            MAESTRO_CHECK(row == rows.dim(0), "the vision model has {} rows, its pictures {}", rows.dim(0),
                          row);
            d_inputs.push_back(saved.allocate(DType::f64, {rows.dim(0), rows.columns()}));
        }
        Tensor output;
        const auto state = models[0].module->forward(batch, inputs, saved, scratch, output, result);
        models[0].module->collect(result);
        models[0].module->backward(*state, {}, d_inputs, scratch);
        if (vision_state) models[1].module->backward(*vision_state, d_inputs[0], {}, scratch);
        return result.loss;
    }

    std::vector<double> values(const Tensor& tensor) const {
        std::vector<double> found(static_cast<std::size_t>(tensor.size()));
        backend->download(tensor, found.data());
        return found;
    }

    std::unique_ptr<backend::Backend> backend = backend::make_cpu(1);
    std::vector<FamilyModel> models;  ///< the language model first
    std::vector<double> vision_rows;  ///< of the last run: [rows, width of the edge]

private:
    FamilyModel load(const std::string& family, const model::ModelSpec& spec, const Lora& lora,
                     model::Role role) const {
        role.compute = DType::f64;
        role.lora = lora;
        role.frozen = parallel::frozen_with(lora);
        FamilyModel model{spec, lora, model::make_module(*backend, spec, role)};
        Pulse pulse;
        train::check_folder(folder_of(family), spec, pulse);
        train::load_folder(folder_of(family), spec, model.module->parameters(), pulse);
        model.module->parameters().zero_gradients();
        return model;
    }
};

}  // namespace maestro::testing_support
