// LoRA on models of Hugging Face folders, in double, against PEFT (tests/golden/families/make_lora.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "parallel/low_rank_adapter.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/adapter_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

using testing_support::FamilyReference;
using testing_support::FamilySamples;
using testing_support::folder_of;

/// The adapters of the reference.
std::string lora_of(const std::string& family) {
    return family == "llama"
               ? "rank = 4\nalpha = 6\n"
               : "rank = 3\nalpha = 4\ntargets = [\"down_proj\", \"q_proj\", \"v_proj\", \"up_proj\"]\n";
}

workload::Scenario scenario_of(const std::string& family) {
    return testing_support::scenario_of_folder(family, "config.json", "[section.lora]\n" + lora_of(family));
}

/// A model in double.
struct Model {
    Model(const std::string& family, const Lora& lora_)
        : spec(scenario_of(family).models.at(0)), lora(lora_) {
        model::Role role{};
        role.section = "text";
        role.loss = true;
        role.compute = DType::f64;
        role.lora = lora;
        role.frozen = parallel::frozen_with(lora);
        module = model::make_module(*backend, spec, role);
        load_folder(folder_of(family), spec, module->parameters(), pulse);
        module->parameters().zero_gradients();
    }
    double run(const model::Batch& batch) {
        backend::Arena saved(*backend, std::size_t{16} << 20), scratch(*backend, std::size_t{16} << 20);
        Tensor output;
        model::Result result;
        const auto state = module->forward(batch, {}, saved, scratch, output, result);
        module->collect(result);
        module->backward(*state, {}, {}, scratch);
        return result.loss;
    }
    std::vector<double> values(const Tensor& tensor) const {
        std::vector<double> found(static_cast<std::size_t>(tensor.size()));
        backend->download(tensor, found.data());
        return found;
    }
    Pulse pulse;
    std::unique_ptr<backend::Backend> backend = backend::make_cpu(1);
    model::ModelSpec spec;
    Lora lora;
    std::unique_ptr<model::Module> module;
};

class Adapter : public testing::TestWithParam<std::string> {};

TEST_P(Adapter, GivesTheLossAndEveryGradientOfPeft) {
    const std::string folder = folder_of(GetParam() + "_lora");
    Model model(GetParam(), scenario_of(GetParam()).tuning.at(0).lora);
    check_adapter_folder(folder, model.spec, model.lora, model.pulse);
    load_adapter_folder(folder, model.spec, model.lora, model.module->parameters(), model.pulse);
    FamilyReference reference(GetParam() + "_lora"), of_family(GetParam());
    const double loss = reference.read<double>("loss").at(0);
    EXPECT_NEAR(model.run(FamilySamples(of_family).batch()), loss, 1e-12 * loss);
    int compared = 0;
    for (const parallel::Parameter& p : model.module->parameters().parameters()) {
        ASSERT_EQ(p.gradient.rank != 0, parallel::is_adapter(p.name)) << p.name;
        if (!p.trainable) continue;
        const std::vector<double> found = model.values(p.gradient);
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
    EXPECT_EQ(compared, GetParam() == "llama" ? 28 : 16);
}

TEST_P(Adapter, LeavesTheModelAsItIsUntilItIsTrained) {
    Model plain(GetParam(), {}), adapted(GetParam(), scenario_of(GetParam()).tuning.at(0).lora);
    FamilyReference reference(GetParam());
    const FamilySamples samples(reference);
    EXPECT_EQ(adapted.run(samples.batch()), plain.run(samples.batch()));
    for (const parallel::Parameter& p : adapted.module->parameters().parameters()) {
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
    const workload::Scenario scenario = scenario_of("qwen3");
    Pulse pulse;
    const auto refusal = [&](const std::string& folder, const model::ModelSpec& spec,
                             const Lora& lora) -> std::string {
        try {
            check_adapter_folder(folder_of(folder), spec, lora, pulse);
        } catch (const Error& error) {
            EXPECT_TRUE(error.code() == ExitCode::bad_data || error.code() == ExitCode::input_missing);
            return error.what();
        }
        return "";
    };
    const model::ModelSpec& spec = scenario.models.at(0);
    const Lora& lora = scenario.tuning.at(0).lora;
    EXPECT_EQ(refusal("qwen3_lora", spec, lora), "");
    Lora other = lora;
    other.rank = 8;
    EXPECT_THAT(refusal("qwen3_lora", spec, other), testing::HasSubstr("r is 3, but by the deck 8"));
    other = lora;
    other.alpha = 8;
    EXPECT_THAT(refusal("qwen3_lora", spec, other), testing::HasSubstr("lora_alpha is 4, but by the deck 8"));
    other = lora;
    other.targets.pop_back();
    EXPECT_THAT(refusal("qwen3_lora", spec, other),
                testing::HasSubstr("target_modules is down_proj, q_proj"));
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

INSTANTIATE_TEST_SUITE_P(Families, Adapter, testing::Values("llama", "qwen3"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
