// Models of Hugging Face folders decode what transformers generates
// (tests/golden/families/make_generated.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "model/decoding.hpp"
#include "model/language.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr int kImage = 45;  ///< the token that stands for a picture

struct Generated {
    Ids prompt, tokens, sizes;  ///< sizes: height and width of each picture
};

Ids ids_of(const std::string& text) {
    std::istringstream words(text);
    return {std::istream_iterator<std::int32_t>(words), {}};
}

std::vector<Generated> read_generated(const std::string& folder) {
    std::ifstream file(folder + "/generated.txt");
    std::vector<Generated> all;
    for (std::string line; std::getline(file, line);) {
        std::istringstream parts(line);
        Generated& each = all.emplace_back();
        for (Ids* ids : {&each.prompt, &each.tokens, &each.sizes})
            if (std::string part; std::getline(parts, part, ':')) *ids = ids_of(part);
    }
    return all;
}

/// The models of a folder, with its weights.
class FolderModel {
public:
    explicit FolderModel(const std::string& family, bool pictures)
        : folder_(testing_support::folder_of(family)), backend_(backend::make_cpu(1)) {
        const model::ModelSpec spec = testing_support::spec_of_folder(family);
        model::Role role{};
        role.section = "text";
        role.loss_terms = {model::LossTerm{}};
        if (pictures) {
            const model::ModelSpec vision = testing_support::specs_of_folder(family).at(1);
            role.inputs = {{EdgeTensor::embeddings, vision}};
            role.markers = Markers(kImage);
            model::Role encoder{};
            encoder.section = "vision";
            encoder.emits = true;
            encoder.output_width = model::row_width(role.inputs[0], spec.width);
            vision_ = load(vision, encoder);
        }
        language_ = load(spec, role);
        constexpr std::int64_t kRows = 64;
        role.trained = role.needs_backward = false;
        memory_.emplace(*backend_,
                        model::decoding_bytes(spec, role, kRows, {}, parallel::single_rank_mesh()));
        sequence_.emplace(language().make_continuation(kRows, *memory_));
    }

    Ids decode(const Generated& expected) {
        std::vector<std::vector<std::uint8_t>> pixels(expected.sizes.size() / 2);
        std::vector<model::ItemView> pictures;
        for (std::size_t p = 0; p < pixels.size(); ++p) {
            const std::int64_t height = expected.sizes[2 * p], width = expected.sizes[2 * p + 1];
            for (std::int64_t i = 0; i < height * width * 3; ++i)
                pixels[p].push_back(static_cast<std::uint8_t>(
                    (5 * i * i + 31 * i + 17 * static_cast<std::int64_t>(p)) % 256));
            pictures.push_back({pixels[p].data(), static_cast<int>(height), static_cast<int>(width)});
        }
        Ids tokens = expected.prompt;
        tokens.push_back(expected.tokens.front());
        std::vector<float> weights(tokens.size(), 0.0f);
        weights.back() = 1;
        const std::vector<std::uint8_t> flags(tokens.size(), 0);
        const model::SampleView sample{0, tokens, weights, flags, pictures};
        const model::Batch batch{.samples = {&sample, 1}, .train = false};
        backend::Arena saved(*backend_, std::size_t{4} << 20), scratch(*backend_, std::size_t{4} << 20);
        Tensor rows, none;
        model::Result result;
        std::vector<std::vector<Tensor>> inputs;
        if (vision_) {
            vision_->forward(batch, {}, saved, scratch, rows, result);
            inputs.push_back({rows});
        }
        language().record(&*sequence_);
        language().forward(batch, inputs, saved, scratch, none, result);
        Ids answer{sequence_->next_token};
        while (answer.size() < expected.tokens.size()) {
            language().decode(*sequence_, *memory_);
            answer.push_back(sequence_->next_token);
        }
        return answer;
    }

private:
    std::unique_ptr<model::Module> load(const model::ModelSpec& spec, model::Role role) {
        role.trained = role.needs_backward = false;
        auto module = model::make_module(*backend_, spec, role);
        Pulse pulse;
        load_folder(folder_, spec, module->parameters(), pulse);
        return module;
    }
    model::Language& language() { return dynamic_cast<model::Language&>(*language_); }

    std::string folder_;
    std::unique_ptr<backend::Backend> backend_;
    std::unique_ptr<model::Module> vision_, language_;
    std::optional<backend::Arena> memory_;
    std::optional<model::Continuation> sequence_;
};

class Decoded : public testing::TestWithParam<std::string> {};

TEST_P(Decoded, TokensAreThoseOfTransformers) {
    const std::vector<Generated> all = read_generated(testing_support::folder_of(GetParam()));
    ASSERT_EQ(all.size(), 4u);
    FolderModel model(GetParam(), !all.front().sizes.empty());
    for (const Generated& expected : all) EXPECT_EQ(model.decode(expected), expected.tokens);
}

INSTANTIATE_TEST_SUITE_P(Families, Decoded, testing::ValuesIn(testing_support::folder_families()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
