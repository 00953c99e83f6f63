#include "train/evaluation/answer_decoder.hpp"

#include <algorithm>

namespace maestro::train {

AnswerDecoder::AnswerDecoder(LocalStage& stage, std::size_t bytes, std::int64_t rows)
    : language_(dynamic_cast<model::Language&>(stage.module())),
      memory_(stage.module().parameters().backend(), bytes),
      sequence_(language_.make_continuation(rows, memory_)) {}

std::vector<std::int32_t> AnswerDecoder::answer(std::int64_t most, const std::vector<std::int32_t>& ends,
                                                const std::function<void()>& before_token) {
    language_.record(nullptr);
    std::vector<std::int32_t> tokens;
    while (true) {
        tokens.push_back(sequence_.next_token);
        const bool ended = std::find(ends.begin(), ends.end(), tokens.back()) != ends.end();
        if (ended || static_cast<std::int64_t>(tokens.size()) >= most) return tokens;
        before_token();
        language_.decode(sequence_, memory_);
    }
}

}  // namespace maestro::train
