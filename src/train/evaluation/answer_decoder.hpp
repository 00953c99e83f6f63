// Decodes the answers of a language section that has just run a sample, on the ranks of one replica.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/language.hpp"
#include "train/step/local_stage.hpp"

namespace maestro::train {

class AnswerDecoder {
public:
    /// Allocates `bytes` on the stage's device (workload::plan_decoding()), for prompts and answers of up to
    /// `rows` rows. The stage, a whole language section with the loss, outlives the decoder.
    AnswerDecoder(LocalStage& stage, std::size_t bytes, std::int64_t rows);

    /// From now on, until answer(), the stage's task runs one sample, whose prompt is recorded.
    void record() { language_.record(&sequence_); }
    /// Rows before the first target of the sample that has run.
    std::int64_t prompt_rows() const { return sequence_.layers.length(); }
    /// Returns the tokens that follow the prompt, each the most likely one: up to the first that is one of
    /// `ends`, or `most` of them. Calls `before_token` before each but the first. Collective over the
    /// replica.
    std::vector<std::int32_t> answer(std::int64_t most, const std::vector<std::int32_t>& ends,
                                     const std::function<void()>& before_token);

private:
    model::Language& language_;
    backend::Arena memory_;
    model::Continuation sequence_;
};

}  // namespace maestro::train
