// Models of Hugging Face folders, in double, against transformers (tests/golden/families/make_families.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "support/family_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

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

/// Compares every gradient of the module with that of transformers.
void expect_gradients(const model::ModelSpec& spec, const parallel::ParameterStore& store,
                      FamilyReference& reference) {
    for (const parallel::Parameter& p : store.parameters()) {
        std::vector<double> found(static_cast<std::size_t>(p.size()));
        store.backend().download(p.gradient, found.data());
        std::size_t at = 0;
        for (const families::Piece& piece : families::pieces_of(spec, p.name, p.shape)) {
            const auto expected = reference.read<double>("gradient." + piece.tensor);
            ASSERT_LE(at + expected.size(), found.size()) << piece.tensor;
            EXPECT_GT(norm_of(expected), 1e-3) << piece.tensor;
            EXPECT_LE(distance(std::span(found).subspan(at, expected.size()), expected), 1e-10)
                << piece.tensor;
            at += expected.size();
        }
        EXPECT_EQ(at, found.size()) << p.name;
    }
}

class Folder : public testing::TestWithParam<std::string> {};

TEST_P(Folder, HasTheSameModelInBothFormsOfItsConfiguration) {
    EXPECT_EQ(specs_of_folder(GetParam()), specs_of_folder(GetParam(), "config_4.57.json"));
}

/// A model of the folder in double, with its weights.
std::unique_ptr<model::Module> load(backend::Backend& backend, const std::string& family,
                                    const model::ModelSpec& spec, model::Role role) {
    role.compute = DType::f64;
    Pulse pulse;
    check_folder(folder_of(family), spec, pulse);
    auto module = model::make_module(backend, spec, role);
    load_folder(folder_of(family), spec, module->parameters(), pulse);
    module->parameters().zero_gradients();
    return module;
}

TEST_P(Folder, GivesTheLossAndEveryGradientOfTransformers) {
    const std::vector<model::ModelSpec> specs = specs_of_folder(GetParam());
    const auto backend = backend::make_cpu(1);
    FamilyReference reference(GetParam());
    const FamilySamples samples(reference);
    ASSERT_EQ(samples.views().size(), 3u);
    const model::Batch batch = samples.batch();
    backend::Arena saved(*backend, std::size_t{16} << 20), scratch(*backend, std::size_t{16} << 20);
    model::Result result;

    model::Role role{};
    role.section = "language";
    role.loss = true;
    std::unique_ptr<model::Module> vision;
    std::unique_ptr<model::Saved> vision_state;
    std::vector<std::vector<Tensor>> inputs;
    std::vector<Tensor> d_inputs;
    if (specs.size() > 1) {
        role.inputs = {{EdgeTensor::embeddings, specs[1]}};
        role.marker = testing_support::kFamilyMarker;
        model::Role encoder{};
        encoder.section = "vision";
        encoder.emits = true;
        encoder.output_width = model::row_width(role.inputs[0], specs[0].width);
        vision = load(*backend, GetParam(), specs[1], encoder);
        Tensor rows;
        vision_state = vision->forward(batch, {}, saved, scratch, rows, result);
        inputs.emplace_back();
        std::int64_t row = 0;
        const int width = specs[0].width;
        for (const model::SampleView& sample : samples.views()) {
            const std::int64_t first = row;
            for (std::size_t p = 0; p < sample.pictures.size(); ++p) {
                std::vector<std::string> blocks{fmt::format("vision.{}.{}", sample.id, p)};
                for (std::size_t i = 0; i < specs[1].deepstack.size(); ++i)
                    blocks.push_back(fmt::format("deepstack.{}.{}.{}", sample.id, p, i));
                std::int64_t tokens = 0;
                for (std::size_t block = 0; block < blocks.size(); ++block) {
                    const auto expected = reference.read<double>(blocks[block]);
                    tokens = static_cast<std::int64_t>(expected.size()) / width;
                    std::vector<double> found;
                    for (std::int64_t t = row; t < row + tokens; ++t) {
                        const double* values =
                            rows.as<double>() + t * rows.columns() + static_cast<std::int64_t>(block) * width;
                        found.insert(found.end(), values, values + width);
                    }
                    EXPECT_LE(distance(found, expected), 1e-12) << blocks[block];
                }
                row += tokens;
            }
            inputs[0].push_back(rows.slice(first, row));
        }
        EXPECT_EQ(row, rows.dim(0));
        d_inputs.push_back(saved.allocate(DType::f64, {rows.dim(0), rows.columns()}));
    }
    const auto language = load(*backend, GetParam(), specs[0], role);
    Tensor output;
    const auto state = language->forward(batch, inputs, saved, scratch, output, result);
    language->collect(result);
    const double loss = reference.read<double>("loss").at(0);
    EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
    language->backward(*state, {}, d_inputs, scratch);
    expect_gradients(specs[0], language->parameters(), reference);
    if (!vision) return;
    vision->backward(*vision_state, d_inputs[0], {}, scratch);
    expect_gradients(specs[1], vision->parameters(), reference);
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

INSTANTIATE_TEST_SUITE_P(Families, Folder, testing::Values("llama", "qwen3", "qwen3_vl"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
