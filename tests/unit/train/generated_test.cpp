// Models of Hugging Face folders decode what transformers generates
// (tests/golden/families/make_generated.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "model/decoding.hpp"
#include "model/language.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Generated {
    Ids prompt, tokens;
};

Ids ids_of(const std::string& text) {
    std::istringstream words(text);
    return {std::istream_iterator<std::int32_t>(words), {}};
}

std::vector<Generated> read_generated(const std::string& folder) {
    std::ifstream file(folder + "/generated.txt");
    std::vector<Generated> all;
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(':');
        all.push_back({ids_of(line.substr(0, colon)), ids_of(line.substr(colon + 1))});
    }
    return all;
}

class Decoded : public testing::TestWithParam<std::string> {};

TEST_P(Decoded, TokensAreThoseOfTransformers) {
    const std::string folder = MAESTRO_SOURCE_DIR "/tests/golden/families/" + GetParam();
    const model::ModelSpec spec = testing_support::spec_of_folder(GetParam());
    const auto backend = backend::make_cpu(1);
    model::Role role{};
    role.section = "text";
    role.loss = true;
    role.trained = role.needs_backward = false;
    const auto module = model::make_module(*backend, spec, role);
    Pulse pulse;
    load_folder(folder, spec, module->parameters(), pulse);
    auto& language = dynamic_cast<model::Language&>(*module);
    constexpr std::int64_t kRows = 64;
    backend::Arena saved(*backend, std::size_t{4} << 20), scratch(*backend, std::size_t{4} << 20),
        memory(*backend, model::decoding_bytes(spec, role, kRows, {}, parallel::single_rank_mesh()));
    model::Continuation sequence = language.make_continuation(kRows, memory);
    language.record(&sequence);
    const std::vector<Generated> all = read_generated(folder);
    EXPECT_EQ(all.size(), 4u);
    for (const auto& [prompt, expected] : all) {
        Ids tokens = prompt;
        tokens.push_back(expected.front());
        std::vector<float> weights(tokens.size(), 0.0f);
        weights.back() = 1;
        const std::vector<std::uint8_t> flags(tokens.size(), 0);
        const model::SampleView sample{0, tokens, weights, flags, {}};
        Tensor output;
        model::Result result;
        saved.reset();
        scratch.reset();
        language.forward({.samples = {&sample, 1}, .train = false}, {}, saved, scratch, output, result);
        Ids answer{sequence.next_token};
        while (answer.size() < expected.size()) {
            language.decode(sequence, memory);
            answer.push_back(sequence.next_token);
        }
        EXPECT_EQ(answer, expected);
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Decoded, testing::Values("llama", "qwen3"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
