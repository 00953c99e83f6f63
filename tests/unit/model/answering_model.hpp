// A small vision-language model that decodes answers. The vision encoder is whole on every rank, and the
// language model is sharded over the mesh; the edge between them is simulated.
#pragma once

#include "model/decoding.hpp"
#include "model/language.hpp"
#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {

/// A prompt, and targets that follow it.
struct Question {
    std::vector<std::int32_t> tokens;
    std::vector<Item> sizes = {};
};

class AnsweringModel {
public:
    static constexpr std::int64_t kRows = 40;  ///< of the cache

    AnsweringModel(backend::Backend& b, DType type, Mesh mesh = single_rank_mesh(),
                   const std::function<void(ModelSpec&)>& change = {})
        : backend_(b), saved_(b, kRoom), scratch_(b, kRoom), shape_(mesh.shape()) {
        vision_spec_ = vision_spec();
        spec_ = language_spec(24, 32);
        if (change) {
            change(vision_spec_);
            change(spec_);
        }
        const Role vision_role{.section = "vision",
                               .inputs = {},
                               .emits = true,
                               .output_width = 24,
                               .trained = false,
                               .needs_backward = false,
                               .markers = Markers(kMarker),
                               .compute = type};
        role_ = {.section = "language",
                 .inputs = {{EdgeTensor::embeddings, vision_spec_}},
                 .loss_terms = {LossTerm{}},
                 .trained = false,
                 .needs_backward = false,
                 .markers = Markers(kMarker),
                 .compute = type};
        vision_ = make_module(b, vision_spec_, vision_role);
        module_ = make_module(b, spec_, role_, std::move(mesh));
        fill_weights(*vision_, "vision");
        fill_weights(*module_, "language");
        const backend::Traits traits{b.threads(), b.shares_memory(), b.attention_support()};
        planned_ = decoding_bytes(spec_, role_, kRows, traits, make_meta_mesh(0, shape_));
        memory_ = std::make_unique<backend::Arena>(b, planned_);
        sequence_ = std::make_unique<Continuation>(language().make_continuation(kRows, *memory_));
    }

    Language& language() { return dynamic_cast<Language&>(*module_); }
    std::size_t planned() const { return planned_; }
    std::size_t used() const { return memory_->peak(); }
    const Continuation& sequence() const { return *sequence_; }

    /// The ordinary forward pass of an evaluation, over a prompt and the targets that follow it. `flags` of
    /// targets: they count for exact match.
    Result evaluate(const Question& question, const std::vector<std::int32_t>& targets,
                    std::uint8_t flags = 0) {
        Samples samples;
        std::vector<std::int32_t> tokens = question.tokens;
        tokens.insert(tokens.end(), targets.begin(), targets.end());
        samples.add(std::move(tokens), question.sizes);
        Owned& sample = samples.at(0);
        for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
            sample.weights[j] = j < question.tokens.size() ? 0.0f : 1.0f;
            sample.flags[j] = j < question.tokens.size() ? std::uint8_t{0} : flags;
        }
        const Batch batch = samples.batch(false);
        saved_.reset();
        scratch_.reset();
        Result result;
        Tensor rows, none;
        const auto vision_state = vision_->forward(batch, {}, saved_, scratch_, rows, result);
        const std::vector<std::vector<Tensor>> inputs{{local_rows(batch, rows)}};
        const auto state = module_->forward(batch, inputs, saved_, scratch_, none, result);
        module_->collect(result);
        return result;
    }

    /// The token that the whole model predicts behind a prompt.
    std::int32_t predict(const Question& question) {
        language().record(sequence_.get());
        evaluate(question, {1});
        language().record(nullptr);
        return sequence_->next_token;
    }

    /// The first `count` tokens behind the prompt, one row at a time.
    std::vector<std::int32_t> decode(const Question& question, std::size_t count) {
        std::vector<std::int32_t> answer{predict(question)};
        while (answer.size() < count) {
            language().decode(*sequence_, *memory_);
            answer.push_back(sequence_->next_token);
        }
        return answer;
    }

    /// The same, where the whole model runs over the whole sequence for every token.
    std::vector<std::int32_t> predict(Question question, std::size_t count) {
        std::vector<std::int32_t> answer;
        while (answer.size() < count) {
            answer.push_back(predict(question));
            question.tokens.push_back(answer.back());
        }
        return answer;
    }

private:
    static constexpr std::size_t kRoom = std::size_t{16} << 20;

    /// Those of the pictures' rows that this rank holds: consecutive ones, because local rows are.
    Tensor local_rows(const Batch& batch, const Tensor& rows) const {
        const SampleView& sample = batch.samples[0];
        std::vector<bool> of_picture;
        std::size_t picture = 0;
        for (const std::int32_t token : sample.tokens) {
            std::int64_t count = 1;
            if (token == kMarker) {
                count = Units(vision_spec_).outputs(sample.items[picture++].item);
            }
            of_picture.insert(of_picture.end(), static_cast<std::size_t>(count), token == kMarker);
        }
        const Partition partition(std::vector{static_cast<std::int64_t>(of_picture.size())},
                                  AttentionMask::causal, shape_.degrees);
        const auto& tp_rows = partition.tp_rows(0);
        std::int64_t first = 0;
        for (int rank = 0; rank < module_->mesh().tp_rank(); ++rank) first += tp_rows[rank];
        const auto begin = std::count(of_picture.begin(), of_picture.begin() + first, true);
        return rows.slice(begin, begin + module_->input_rows(batch)[0][0]);
    }

    backend::Backend& backend_;
    backend::Arena saved_, scratch_;
    MeshShape shape_;
    ModelSpec vision_spec_, spec_;
    Role role_;
    std::unique_ptr<Module> vision_, module_;
    std::size_t planned_ = 0;
    std::unique_ptr<backend::Arena> memory_;
    std::unique_ptr<Continuation> sequence_;
};

/// Prompts with text alone, with pictures, and with a picture as their last token.
inline std::vector<Question> questions() {
    return {{{1, 2, 8, 4, 2, 17}},
            {{3, kMarker, 5, 7, kMarker, 11}, {{5, 7}, {8, 4}}},
            {{12, 30, kMarker}, {{6, 4}}},
            {{9}}};
}

}  // namespace maestro::model::test
