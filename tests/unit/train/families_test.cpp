// Models of Hugging Face folders, in double, against transformers (tests/golden/families/make_families.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.hpp"
#include "support/family_job.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

using testing_support::FamilyJob;
using testing_support::FamilyReference;
using testing_support::FamilySamples;
using testing_support::folder_of;
using testing_support::specs_of_folder;

double norm_of(std::span<const double> values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}
/// The 2-norm of the difference, relative to that of `expected`.
double distance(std::span<const double> found, std::span<const double> expected) {
    std::vector<double> difference(found.begin(), found.end());
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
    return norm_of(difference) / norm_of(expected);
}

/// Compares every gradient of the model with that of transformers.
void expect_gradients(const FamilyJob& job, const testing_support::FamilyModel& model,
                      FamilyReference& reference) {
    for (const parallel::Parameter& p : model.module->parameters().parameters()) {
        const std::vector<double> gradient = job.values(p.gradient);
        const auto pieces = families::pieces_of(model.spec, p.name, p.shape);
        const Extent all{0, 0, static_cast<std::int64_t>(gradient.size())};
        const auto by_piece = families::extents_by_piece(pieces, std::span(&all, 1));
        std::size_t compared = 0;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const auto expected = reference.read<double>("gradient." + pieces[i].tensor);
            std::vector<double> found(expected.size());
            for (const Extent& e : by_piece[i])
                for (std::int64_t k = 0; k < e.count; ++k)
                    found.at(static_cast<std::size_t>(e.logical + k)) =
                        gradient.at(static_cast<std::size_t>(e.local + k * e.stride));
            EXPECT_GT(norm_of(expected), 1e-3) << pieces[i].tensor;
            EXPECT_LE(distance(found, expected), 1e-10) << pieces[i].tensor;
            compared += expected.size();
        }
        EXPECT_EQ(compared, gradient.size()) << p.name;
    }
}

class Folder : public testing::TestWithParam<std::string> {};

TEST_P(Folder, HasTheSameModelInBothFormsOfItsConfiguration) {
    EXPECT_EQ(specs_of_folder(GetParam()), specs_of_folder(GetParam(), "config_4.57.json"));
}

struct MissingKey {
    const char *family, *key, *name, *value;  ///< name and value: of the deck's key
};

/// What transformers 5.24 assumes (print its LlamaConfig() and so on).
TEST(FamilyConfig, AMissingKeyMeansWhatTransformersAssumes) {
    const auto keys_without = [](const char* family, const char* key, bool null = false) {
        nlohmann::json config = testing_support::config_of_folder(family);
        nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
        if (std::string_view(key) == "rope_theta")
            for (const char* table : {"rope_parameters", "rope_scaling"})
                if (text.contains(table) && text[table].is_object()) text[table].erase(key);
        if (null)
            text[key] = nullptr;
        else
            text.erase(key);
        return families::read_config(config.dump(), "config.json", "language");
    };
    for (const auto& [family, key, name, value] : {
             MissingKey{"llama", "num_key_value_heads", "kv_heads", "4"},
             {"mistral", "num_key_value_heads", "kv_heads", "8"},
             {"qwen2", "num_key_value_heads", "kv_heads", "32"},
             {"qwen3", "num_key_value_heads", "kv_heads", "32"},
             {"qwen3_moe", "num_key_value_heads", "kv_heads", "4"},
             {"qwen3_vl", "num_key_value_heads", "kv_heads", "32"},
             {"qwen3_vl_moe", "num_key_value_heads", "kv_heads", "16"},
             {"llama", "rms_norm_eps", "norm_eps", "1e-06"},
             {"llama", "rope_theta", "rope_theta", "10000"},
             {"mistral", "rope_theta", "rope_theta", "10000"},
             {"qwen3", "rope_theta", "rope_theta", "10000"},
             {"qwen3", "head_dim", "head_dim", "128"},
             {"qwen3_vl", "head_dim", "head_dim", "128"},
             {"mistral", "sliding_window", "attention_window", "4096"},
         })
        EXPECT_EQ(keys_without(family, key).at(name), value) << family << " " << key;
    EXPECT_EQ(keys_without("mistral", "num_key_value_heads", true).at("kv_heads"), "4");
    EXPECT_FALSE(keys_without("mistral", "sliding_window", true).contains("attention_window"));
    EXPECT_EQ(keys_without("mistral", "rms_norm_eps").at("attention_window"), "64");
    for (const char* family : {"qwen3_vl", "qwen3_vl_moe"})
        EXPECT_THAT([&] { keys_without(family, "rope_theta"); },
                    testing::ThrowsMessage<Error>(testing::HasSubstr("rope_theta: is missing")));
}

/// Compares the rows of the vision model, and those of its inner layers behind them, with transformers'.
void expect_vision_rows(const FamilyJob& job, const FamilySamples& samples, FamilyReference& reference) {
    const auto width = static_cast<std::size_t>(job.models[0].spec.width);
    const std::size_t columns = width * (1 + job.models[1].spec.deepstack.size());
    std::size_t row = 0;
    for (const model::SampleView& sample : samples.views())
        for (std::size_t p = 0; p < sample.items.size(); ++p) {
            std::size_t tokens = 0;
            for (std::size_t block = 0; block * width < columns; ++block) {
                const std::string name = block == 0
                                             ? fmt::format("vision.{}.{}", sample.id, p)
                                             : fmt::format("deepstack.{}.{}.{}", sample.id, p, block - 1);
                const auto expected = reference.read<double>(name);
                tokens = expected.size() / width;
                std::vector<double> found;
                for (std::size_t t = row; t < row + tokens; ++t)
                    for (std::size_t c = 0; c < width; ++c)
                        found.push_back(job.vision_rows.at(t * columns + block * width + c));
                EXPECT_LE(distance(found, expected), 1e-12) << name;
            }
            row += tokens;
        }
    EXPECT_EQ(row * columns, job.vision_rows.size());
}

TEST_P(Folder, GivesTheLossAndEveryGradientOfTransformers) {
    FamilyReference reference(GetParam());
    const FamilySamples samples(reference);
    ASSERT_EQ(samples.views().size(), 3u);
    FamilyJob job(GetParam());
    const double loss = reference.read<double>("loss").at(0);
    EXPECT_NEAR(job.run(samples.batch()), loss, 1e-12 * loss);
    if (job.models.size() > 1) expect_vision_rows(job, samples, reference);
    for (const testing_support::FamilyModel& model : job.models) expect_gradients(job, model, reference);
}

TEST(Folders, AreRefusedForTensorsThatTheModelDoesNotUse) {
    model::ModelSpec spec = testing_support::spec_of_folder("qwen3");
    spec.layers = 1;
    Pulse pulse;
    try {
        check_folder(folder_of("qwen3"), spec, pulse);
        FAIL() << "a layer is not part of a model of family qwen3 with one";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        EXPECT_THAT(error.what(), testing::HasSubstr("tensor \"model.layers.1."));
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Folder, testing::ValuesIn(testing_support::folder_families()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
