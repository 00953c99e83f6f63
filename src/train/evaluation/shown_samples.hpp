// The samples that maestro evaluate --show prints: which they are, where their answers end, and how they look
// on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/deck.hpp"
#include "data/sample_file.hpp"
#include "tokens/detokenizer.hpp"
#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Refuses a layout, or a device, whose sections cannot decode: Error(bad_deck, all_ranks). `one_rank`: every
/// rank runs all sections by itself, whatever the layout of the deck.
void check_decoding(const RunContext& context, bool one_rank);

class ShownSamples {
public:
    /// Collective over the context's world, where all ranks name the same samples. Rank 0 reads them, with
    /// the tokenizer of the file, and tells the others where the answers end. The file outlives the object.
    ShownSamples(const RunContext& context, const data::SampleFile& file, std::vector<std::int64_t> samples);

    const std::vector<std::int64_t>& samples() const { return samples_; }
    /// The number of tokens of the first answer in the i-th sample: the targets that follow each other,
    /// beginning with the first.
    std::int64_t target_tokens(std::size_t i) const { return target_tokens_[i]; }
    /// Tokens that end the answer of the i-th sample: the special token that ends its target, and those
    /// that the model's folder names. None: only its length does.
    const std::vector<std::int32_t>& ends(std::size_t i) const { return ends_[i]; }

    /// Rank 0: logs prompt, answer and target of all samples. answers[i] has the tokens of the i-th.
    void print(const std::vector<std::vector<std::int32_t>>& answers) const;

private:
    void read(const RunContext& context);
    std::int64_t answer_begin(std::size_t i) const;
    /// The text of some tokens of a sample, or their ids where there is no tokenizer; `item` is the first of
    /// the sample's items among them.
    std::string text_of(std::span<const std::int32_t> tokens, const data::Sample& sample,
                        std::size_t item) const;

    const data::SampleFile& file_;
    std::string section_;
    std::vector<std::int64_t> samples_, target_tokens_;
    std::vector<std::vector<std::int32_t>> ends_;
    // On rank 0 alone.
    std::vector<data::Sample> read_;
    std::optional<tokens::Detokenizer> detokenizer_;
    std::string why_ids_;  ///< why there is no detokenizer
};

}  // namespace maestro::train
