// Models of Hugging Face folders, in double, against transformers (tests/golden/families/make_families.py).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <deque>
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
    std::vector<std::int64_t> shape(const std::string& name) const { return file_.find(name)->shape; }

private:
    Pulse pulse_;
    safetensors::SafetensorsFile file_;
    std::ifstream bytes_;
};

/// The models of a deck whose sections start from the folder: the language model, and the vision model where
/// it has one.
std::vector<model::ModelSpec> specs_of_folder(const std::string& family,
                                              const std::string& config = "config.json") {
    const std::string path = folder_of(family) + "/" + config;
    const std::string text = *read_text_file(path);
    std::string deck =
        "[run]\noutput = \"run\"\n[data]\ntrain = \"x\"\nglobal_batch = 1\nsequence_length = "
        "64\n[train]\nsteps = 1\n[optimizer]\nlearning_rate = 1e-3\n";
    std::vector<std::string> kinds{"language"};
    if (families::read_config(text, path, "vision").at("kind") == "vision") kinds.emplace_back("vision");
    for (const std::string& kind : kinds)
        deck += fmt::format(
            "[model.{0}]\nkind = \"{0}\"\n[[section]]\nname = \"{0}\"\nmodel = \"{0}\"\nweights = \"{1}\"\n",
            kind, family);
    if (kinds.size() > 1) deck += "[[edge]]\nfrom = \"vision\"\nto = \"language\"\n";
    const auto keys = [&](const std::string&, const std::string& kind) {
        return families::read_config(text, path, kind);
    };
    const config::Deck read =
        config::parse_deck(deck, "deck.toml", {}, config::Command::train, config::Times::model, {}, keys);
    return workload::make_scenario(read).models;
}
model::ModelSpec spec_of_folder(const std::string& family) {
    return specs_of_folder(family).front();
}

/// The samples of a reference.
class Samples {
public:
    explicit Samples(Reference& reference) {
        for (int s = 0; reference.has(fmt::format("tokens.{}", s)); ++s) {
            const auto ids = reference.read<std::int64_t>(fmt::format("tokens.{}", s));
            const auto each = reference.read<double>(fmt::format("weights.{}", s));
            tokens_.emplace_back(ids.begin(), ids.end());
            weights_.emplace_back(each.begin(), each.end());
            flags_.emplace_back(ids.size(), 0);
            sum_ = std::accumulate(each.begin(), each.end(), sum_);
            pictures_.emplace_back();
            for (int p = 0; reference.has(fmt::format("picture.{}.{}", s, p)); ++p) {
                const std::string name = fmt::format("picture.{}.{}", s, p);
                pixels_.push_back(reference.read<std::uint8_t>(name));
                const auto shape = reference.shape(name);
                pictures_.back().push_back(
                    {pixels_.back().data(), static_cast<int>(shape[0]), static_cast<int>(shape[1])});
            }
        }
        for (std::size_t s = 0; s < tokens_.size(); ++s)
            views_.push_back(
                {static_cast<std::int64_t>(s), tokens_[s], weights_[s], flags_[s], pictures_[s]});
    }
    model::Batch batch() const { return {.samples = views_, .loss_scale = 1 / sum_}; }
    std::size_t size() const { return views_.size(); }
    std::int64_t pictures(std::size_t s) const { return static_cast<std::int64_t>(pictures_[s].size()); }

private:
    std::vector<std::vector<std::int32_t>> tokens_;
    std::vector<std::vector<float>> weights_;
    std::vector<std::vector<std::uint8_t>> flags_;
    std::deque<std::vector<std::uint8_t>> pixels_;
    std::vector<std::vector<model::Picture>> pictures_;
    std::vector<model::SampleView> views_;
    double sum_ = 0;
};

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
                      Reference& reference) {
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
    Reference reference(GetParam());
    const Samples samples(reference);
    ASSERT_EQ(samples.size(), 3u);
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
        role.marker = 45;  // image_token_id
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
        for (std::size_t s = 0; s < samples.size(); ++s) {
            const std::int64_t first = row;
            for (std::int64_t p = 0; p < samples.pictures(s); ++p) {
                std::vector<std::string> blocks{fmt::format("vision.{}.{}", s, p)};
                for (std::size_t i = 0; i < specs[1].deepstack.size(); ++i)
                    blocks.push_back(fmt::format("deepstack.{}.{}.{}", s, p, i));
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

INSTANTIATE_TEST_SUITE_P(Families, Folder, testing::Values("llama", "qwen3", "qwen3_vl"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace maestro::train::test
