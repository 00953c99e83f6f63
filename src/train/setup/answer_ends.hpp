// The tokens that end answers: in samples, in the files of a model's folder, and in what is exported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "data/sample_file.hpp"
#include "tokens/detokenizer.hpp"

namespace maestro::train {

/// Ids in ascending order; nothing where they are not known.
using AnswerEnds = std::optional<std::vector<std::int32_t>>;

/// The tokenizer of the file. Error(bad_data) for one that is not built, Error(io_error).
tokens::Detokenizer detokenizer_of(const data::SampleFile& file, Pulse& pulse);

/// The token that ends these targets, which follow each other: a special one with nothing but white space
/// behind it.
std::optional<std::int32_t> end_of(std::span<const std::int32_t> answer,
                                   const tokens::Detokenizer& detokenizer);

/// The tokens that end answers in the file, by all answers of 1,000 samples at equal distances, or of all.
/// Targets before a picture are no answer. Not known where the tokenizer is not built. Error(bad_data,
/// io_error).
AnswerEnds trained_ends(const data::SampleFile& file, Pulse& pulse);

/// The ids eos_token_id of a model folder's generation_config.json, or else of its config.json.
/// Error(bad_data, io_error), as the next two.
std::vector<std::int32_t> ends_of_folder(const std::filesystem::path& folder, Pulse& pulse);

/// Those of `trained` at which generation would not end: transformers takes the ids of
/// generation_config.json, and only where there is no such file those of config.json.
std::vector<std::int32_t> missing_ends(const std::filesystem::path& folder, const AnswerEnds& trained,
                                       Pulse& pulse);

inline constexpr const char* kGenerationConfig = "generation_config.json";
/// The text of the folder's generation_config.json, or of a new one, with these ids behind those of
/// ends_of_folder().
std::string generation_config(const std::filesystem::path& folder, const std::vector<std::int32_t>& added,
                              Pulse& pulse);

}  // namespace maestro::train
