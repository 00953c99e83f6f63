// LoRA on models of Hugging Face folders, in double, against PEFT (tests/golden/families/make_lora.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "families/family.hpp"
#include "support/family_job.hpp"
#include "train/checkpoint/adapter_folder.hpp"

namespace maestro::train::test {
namespace {

using testing_support::FamilyJob;
using testing_support::FamilyModel;
using testing_support::FamilyReference;
using testing_support::FamilySamples;
using testing_support::folder_of;

/// The adapter of the reference, as lines of [section.lora].
std::string lora_of(const std::string& family) {
    const auto config = testing_support::config_of_folder(family + "_lora", "adapter_config.json");
    std::string lines =
        fmt::format("rank = {}\nalpha = {}\n", config.at("r").get<int>(), config.at("lora_alpha").get<int>());
    // Beside a tower, all layers of both models have adapters.
    if (testing_support::specs_of_folder(family).size() == 1)
        lines += fmt::format("targets = {}\n", config.at("target_modules").dump());
    return lines;
}

/// The deck's adapters of each model of the folder, the language model first.
std::vector<Lora> loras_of(const std::string& family) {
    const workload::Scenario scenario =
        testing_support::scenario_of_folder(family, "config.json", "[section.lora]\n" + lora_of(family));
    std::vector<Lora> loras;
    for (const workload::Tuning& tuning : scenario.tuning) loras.push_back(tuning.lora);
    return loras;
}

class Adapter : public testing::TestWithParam<std::string> {};

TEST_P(Adapter, GivesTheLossAndEveryGradientOfPeft) {
    const std::string folder = folder_of(GetParam() + "_lora");
    FamilyJob job(GetParam(), loras_of(GetParam()));
    Pulse pulse;
    for (const FamilyModel& model : job.models) {
        check_adapter_folder(folder, model.spec, model.lora, pulse);
        load_adapter_folder(folder, model.spec, model.lora, model.module->parameters(), pulse);
    }
    FamilyReference reference(GetParam() + "_lora"), of_family(GetParam());
    const double loss = reference.read<double>("loss").at(0);
    EXPECT_NEAR(job.run(FamilySamples(of_family).batch()), loss, 1e-12 * loss);
    int compared = 0;
    for (const FamilyModel& model : job.models)
        for (const parallel::Parameter& p : model.module->parameters().parameters()) {
            ASSERT_EQ(p.gradient.rank != 0, parallel::is_adapter(p.name)) << p.name;
            if (!p.trainable) continue;
            const std::vector<double> found = job.values(p.gradient);
            auto at = found.begin();
            for (const families::Piece& piece :
                 families::adapter_pieces(model.spec, model.lora, p.name, p.shape)) {
                const auto expected = reference.read<double>("gradient." + piece.tensor);
                ASSERT_LE(expected.size(), static_cast<std::size_t>(found.end() - at)) << piece.tensor;
                double norm = 0, difference = 0;
                for (const double value : expected) {
                    norm += value * value;
                    difference += (*at - value) * (*at - value);
                    ++at;
                }
                EXPECT_GT(norm, 1e-6) << piece.tensor;
                EXPECT_LE(std::sqrt(difference), 1e-10 * std::sqrt(norm)) << piece.tensor;
                ++compared;
            }
            EXPECT_EQ(at, found.end()) << p.name;
        }
    int tensors = 0;
    for (const safetensors::TensorInfo& tensor : reference.tensors())
        tensors += tensor.name.starts_with("gradient.") ? 1 : 0;
    EXPECT_EQ(compared, tensors);
}

TEST_P(Adapter, LeavesTheModelAsItIsUntilItIsTrained) {
    FamilyJob plain(GetParam()), adapted(GetParam(), loras_of(GetParam()));
    FamilyReference reference(GetParam());
    const FamilySamples samples(reference);
    EXPECT_EQ(adapted.run(samples.batch()), plain.run(samples.batch()));
    for (const FamilyModel& model : adapted.models)
        for (const parallel::Parameter& p : model.module->parameters().parameters()) {
            if (!parallel::is_adapter(p.name)) continue;
            const std::vector<double> values = adapted.values(p.weight);
            if (p.name.ends_with("lora_B.weight")) {
                EXPECT_THAT(values, testing::Each(0.0)) << p.name;
                continue;
            }
            // Uniform between -1 and 1 over the square root of the inputs: with variance 1 / (3 inputs).
            const auto inputs = static_cast<double>(p.shape[1]), count = static_cast<double>(values.size());
            double squares = 0;
            for (const double value : values) {
                EXPECT_LE(std::abs(value), 1 / std::sqrt(inputs)) << p.name;
                squares += value * value;
            }
            EXPECT_NEAR(squares / count * 3 * inputs, 1, 5 / std::sqrt(count)) << p.name;
        }
}

TEST(Adapters, OfAnotherModelOrDeckAreRefused) {
    const model::ModelSpec spec = testing_support::spec_of_folder("qwen3");
    const Lora lora = loras_of("qwen3").front();
    Pulse pulse;
    const auto refusal = [&](const std::string& folder, const model::ModelSpec& model,
                             const Lora& adapters) -> std::string {
        try {
            check_adapter_folder(folder_of(folder), model, adapters, pulse);
        } catch (const Error& error) {
            EXPECT_TRUE(error.code() == ExitCode::bad_data || error.code() == ExitCode::input_missing);
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal("qwen3_lora", spec, lora), "");
    Lora other = lora;
    other.rank = 8;
    EXPECT_THAT(refusal("qwen3_lora", spec, other), testing::HasSubstr("r is 3, but by the deck 8"));
    other = lora;
    other.alpha = 8;
    EXPECT_THAT(refusal("qwen3_lora", spec, other), testing::HasSubstr("lora_alpha is 4, but by the deck 8"));
    other = lora;
    other.targets.pop_back();
    EXPECT_THAT(refusal("qwen3_lora", spec, other), testing::HasSubstr("it adapts down_proj, q_proj"));
    EXPECT_THAT(refusal("qwen3", spec, lora), testing::HasSubstr("give the folder of a PEFT adapter"));
    model::ModelSpec smaller = spec;
    smaller.layers = 1;
    EXPECT_THAT(refusal("qwen3_lora", smaller, lora), testing::HasSubstr("model.layers.1."));
    smaller = spec;
    smaller.mlp = 32;
    EXPECT_THAT(refusal("qwen3_lora", smaller, lora), testing::HasSubstr("has the shape"));
    smaller = spec;
    smaller.layers = 3;
    EXPECT_THAT(refusal("qwen3_lora", smaller, lora), testing::HasSubstr("is missing"));
}

INSTANTIATE_TEST_SUITE_P(Families, Adapter, testing::ValuesIn(testing_support::folder_families()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
