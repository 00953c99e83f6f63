// Models of Hugging Face folders, in double, against transformers (tests/golden/families/make_families.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "base/error.hpp"
#include "base/text_file.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "safetensors/safetensors_file.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "workload/scenario.hpp"

namespace maestro::train::test {
namespace {

std::string folder_of(const std::string& family) {
    return std::string(MAESTRO_SOURCE_DIR "/tests/golden/families/") + family;
}

/// What transformers computed. Values are read as they are stored, because the reader of weights rounds f64.
class Reference {
public:
    explicit Reference(const std::string& family)
        : file_(folder_of(family) + "/reference.safetensors", pulse_),
          bytes_(file_.path(), std::ios::binary) {}
    template <class T>
    std::vector<T> read(const std::string& name) {
        const safetensors::TensorInfo* const info = file_.find(name);
        EXPECT_TRUE(info) << name;
        std::vector<T> values(info ? static_cast<std::size_t>(info->elements) : 0);
        if (!info) return values;
        bytes_.seekg(static_cast<std::streamoff>(info->offset));
        bytes_.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(info->bytes));
        return values;
    }
    bool has(const std::string& name) const { return file_.find(name) != nullptr; }

private:
    Pulse pulse_;
    safetensors::SafetensorsFile file_;
    std::ifstream bytes_;
};

/// The model of a deck whose section starts from the folder.
model::ModelSpec spec_of_folder(const std::string& family, const std::string& config = "config.json") {
    const std::string deck = fmt::format(
        "[run]\noutput = \"run\"\n[data]\ntrain = \"x\"\nglobal_batch = 1\nsequence_length = "
        "64\n[train]\nsteps = 1\n[optimizer]\n"
        "learning_rate = 1e-3\n[model.llm]\n[[section]]\nname = \"text\"\nmodel = \"llm\"\nweights = "
        "\"{}\"\n",
        family);
    const auto keys = [&](const std::string& folder) {
        const std::string path = folder_of(folder) + "/" + config;
        return families::read_config(*read_text_file(path), path);
    };
    const config::Deck read =
        config::parse_deck(deck, "deck.toml", {}, config::Command::train, config::Times::model, {}, keys);
    return workload::make_scenario(read).models.at(0);
}

class Folder : public testing::TestWithParam<std::string> {};

TEST_P(Folder, HasTheSameModelInBothFormsOfItsConfiguration) {
    EXPECT_EQ(spec_of_folder(GetParam()), spec_of_folder(GetParam(), "config_4.57.json"));
}

TEST_P(Folder, GivesTheLossAndEveryGradientOfTransformers) {
    const model::ModelSpec spec = spec_of_folder(GetParam());
    Pulse pulse;
    check_folder(folder_of(GetParam()), spec, pulse);
    const auto backend = backend::make_cpu(1);
    model::Role role{};
    role.section = "text";
    role.loss = true;
    role.compute = DType::f64;
    const auto module = model::make_module(*backend, spec, role);
    load_folder(folder_of(GetParam()), spec, module->parameters(), pulse);
    module->parameters().zero_gradients();

    Reference reference(GetParam());
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::vector<float>> weights;
    double sum = 0;
    for (int s = 0; reference.has(fmt::format("tokens.{}", s)); ++s) {
        const auto ids = reference.read<std::int64_t>(fmt::format("tokens.{}", s));
        const auto each = reference.read<double>(fmt::format("weights.{}", s));
        tokens.emplace_back(ids.begin(), ids.end());
        weights.emplace_back(each.begin(), each.end());
        sum = std::accumulate(each.begin(), each.end(), sum);
    }
    ASSERT_EQ(tokens.size(), 3u);
    std::vector<std::vector<std::uint8_t>> flags;
    std::vector<model::SampleView> views;
    for (const auto& ids : tokens) flags.emplace_back(ids.size(), 0);
    for (std::size_t s = 0; s < tokens.size(); ++s)
        views.push_back({static_cast<std::int64_t>(s), tokens[s], weights[s], flags[s], {}});
    const model::Batch batch{.samples = views, .loss_scale = 1 / sum};

    backend::Arena saved(*backend, std::size_t{16} << 20), scratch(*backend, std::size_t{16} << 20);
    Tensor output;
    model::Result result;
    const auto state = module->forward(batch, {}, saved, scratch, output, result);
    module->collect(result);
    module->backward(*state, {}, {}, scratch);
    const double loss = reference.read<double>("loss").at(0);
    EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
    for (const parallel::Parameter& p : module->parameters().parameters()) {
        std::vector<double> found(static_cast<std::size_t>(p.size()));
        backend->download(p.gradient, found.data());
        auto at = found.begin();
        for (const families::Piece& piece : families::pieces_of(spec, p.name, p.shape[0])) {
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
        }
        EXPECT_EQ(at, found.end()) << p.name;
    }
}

TEST(Folders, AreRefusedForTensorsThatTheModelDoesNotUse) {
    model::ModelSpec spec = spec_of_folder("qwen3");
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

INSTANTIATE_TEST_SUITE_P(Families, Folder, testing::Values("llama", "qwen3"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
