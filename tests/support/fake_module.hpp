// A module whose results follow from closed forms and which records its calls. All numbers are integers,
// exact in f32.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "model/module.hpp"

namespace maestro::testing_support {

/// The calls of the fake modules of a rank, in order, and how many micro-batches they keep.
struct Diary {
    std::vector<std::string> calls;  ///< "vision forward 5 7", "vision backward 5 7"
    int saved = 0;                   ///< micro-batches whose model::Saved is there
};

/// Computes numbers that can be checked by hand. For a sample, x is the sum of its tokens, its pixels and the
/// elements of its input rows. The output has elements (j, c) = 2 x + 10 j + c; a loss module adds
/// x * loss_scale to the loss instead. In backward, g = sum of (j + 1) d(j, c), or 1 + the sample's id with a
/// loss, and row j of input edge e gets g (j + 1) + c + 7 e. The gradients of the two weights are the sums of
/// g and of x.
class FakeModule : public model::Module {
public:
    struct Settings {
        std::string section = {};
        std::function<std::int64_t(std::int64_t sample)> rows = {};  ///< put out; empty: a loss
        std::int64_t width = 2;                                      ///< of the rows put out
        bool trained = true;
        std::function<void(const std::string& call)> during = {};  ///< told of every call as it runs
    };
    FakeModule(backend::Backend& backend, Settings settings, Diary& diary,
               parallel::Mesh mesh = parallel::single_rank_mesh())
        : Module(backend, role_of(settings), std::move(mesh)), settings_(std::move(settings)), diary_(diary) {
        store_.declare("weight", {2}, parallel::Init::zeros, settings_.trained);
        store_.allocate(1);
    }

    std::unique_ptr<model::Saved> forward(const model::Batch& batch,
                                          std::span<const std::vector<Tensor>> inputs, backend::Arena& saved,
                                          backend::Arena& scratch, Tensor& output,
                                          model::Result& result) override {
        check_memory(scratch);
        MAESTRO_CHECK(saved.mark() == 0, "{}: the slot's memory is not empty", settings_.section);
        auto kept = std::make_unique<Kept>(diary_);
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < batch.samples.size(); ++i) {
            const model::SampleView& sample = batch.samples[i];
            kept->ids.push_back(sample.id);
            kept->x.push_back(sum_of(sample));
            kept->input_rows.emplace_back();
            for (const std::vector<Tensor>& edge : inputs) {
                for (std::int64_t k = 0; k < edge[i].size(); ++k)
                    kept->x.back() += static_cast<double>(edge[i].as<float>()[k]);
                kept->input_rows.back().push_back(edge[i].dim(0));
            }
            if (settings_.rows)
                rows += settings_.rows(sample.id);
            else
                result.loss += kept->x.back() * batch.loss_scale;
        }
        note("forward", kept->ids);
        if (settings_.rows) {
            output = saved.allocate(DType::f32, {rows, settings_.width});
            float* element = output.as<float>();
            for (std::size_t i = 0; i < kept->ids.size(); ++i)
                for (std::int64_t j = 0; j < settings_.rows(kept->ids[i]); ++j)
                    for (std::int64_t c = 0; c < settings_.width; ++c)
                        *element++ = static_cast<float>(2 * kept->x[i] + 10.0 * static_cast<double>(j) +
                                                        static_cast<double>(c));
        }
        return kept;
    }

    void backward(model::Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& scratch) override {
        const Kept& kept = dynamic_cast<Kept&>(saved);
        note("backward", kept.ids);
        std::vector<std::int64_t> at(d_inputs.size(), 0);  // next row of each edge
        std::int64_t row = 0;
        for (std::size_t i = 0; i < kept.ids.size(); ++i) {
            double g = settings_.rows ? 0 : 1.0 + static_cast<double>(kept.ids[i]);
            if (d_output.rank > 0)
                for (std::int64_t j = 0; j < settings_.rows(kept.ids[i]); ++j, ++row)
                    for (std::int64_t c = 0; c < settings_.width; ++c)
                        g += static_cast<double>(j + 1) *
                             static_cast<double>(d_output.as<float>()[row * settings_.width + c]);
            for (std::size_t e = 0; e < d_inputs.size(); ++e) {
                if (d_inputs[e].rank == 0) continue;
                const std::int64_t width = d_inputs[e].columns();
                for (std::int64_t j = 0; j < kept.input_rows[i][e]; ++j, ++at[e])
                    for (std::int64_t c = 0; c < width; ++c)
                        d_inputs[e].as<float>()[at[e] * width + c] =
                            static_cast<float>(g * static_cast<double>(j + 1) +
                                               static_cast<double>(c + 7 * static_cast<std::int64_t>(e)));
            }
            if (!settings_.trained) continue;
            float* gradient = store_.groups().front().gradient().as<float>();
            gradient[0] += static_cast<float>(g);
            gradient[1] += static_cast<float>(kept.x[i]);
        }
        for (std::size_t e = 0; e < d_inputs.size(); ++e)
            MAESTRO_CHECK(d_inputs[e].rank == 0 || at[e] == d_inputs[e].dim(0),
                          "{}: {} rows of {} on edge {}", settings_.section, at[e], d_inputs[e].dim(0), e);
        scratch.allocate(DType::f32, {16});  // left to the caller to take back
    }

private:
    static model::Role role_of(const Settings& settings) {
        model::Role role;
        role.section = settings.section;
        return role;
    }
    struct Kept : model::Saved {
        explicit Kept(Diary& d) : diary(d) { ++diary.saved; }
        ~Kept() override { --diary.saved; }
        Diary& diary;
        std::vector<std::int64_t> ids;
        std::vector<double> x;
        std::vector<std::vector<std::int64_t>> input_rows;  ///< [sample][edge]
    };

    static double sum_of(const model::SampleView& sample) {
        double sum = 0;
        for (const std::int32_t token : sample.tokens) sum += token;
        for (const model::ItemView& p : sample.items)
            for (int i = 0; p.data && i < p.item.height * p.item.width; ++i) sum += p.data[i];
        return sum;
    }
    void check_memory(backend::Arena& scratch) const {
        MAESTRO_CHECK(scratch.mark() == 0, "{}: another task's scratch memory is taken", settings_.section);
        scratch.allocate(DType::f32, {16});
    }
    void note(const char* what, const std::vector<std::int64_t>& ids) {
        std::string text = settings_.section + " " + what;
        for (const std::int64_t id : ids) text += fmt::format(" {}", id);
        write_down(text);
    }
    void write_down(const std::string& call) {
        diary_.calls.push_back(call);
        if (settings_.during) settings_.during(call);
    }

    Settings settings_;
    Diary& diary_;
};

}  // namespace maestro::testing_support
