// Folders of models with experts: their config.json, and which tensors hold their parameters.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backend/backend.hpp"
#include "base/error.hpp"
#include "safetensors/safetensors_writer.hpp"
#include "support/family_folder.hpp"
#include "support/scratch_folder.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train::test {
namespace {

using families::Piece;
using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFamily = "qwen3_moe";

/// config.json of the reference folder with other values; null removes a key.
std::string config_with(const Json& changes, const std::string& file = "config_4.57.json") {
    Json config = testing_support::config_of_folder(kFamily, file);
    for (const auto& [key, value] : changes.items()) {
        config[key] = value;
        if (value.is_null()) config.erase(key);
    }
    return config.dump();
}
families::ModelKeys keys_with(const Json& changes) {
    return families::read_config(config_with(changes), "config.json", "language");
}
std::string refusal_of(const Json& changes) {
    try {
        keys_with(changes);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        return error.what();
    }
    return "none";
}

TEST(ExpertConfig, GivesTheKeysOfADeck) {
    const families::ModelKeys keys = keys_with({});
    for (const auto& [key, value] : {std::pair{"family", "qwen3_moe"},
                                     {"experts", "8"},
                                     {"experts_per_token", "2"},
                                     {"expert_mlp", "16"},
                                     {"shared_expert_mlp", "0"},
                                     {"dense_layers", "1"},
                                     {"mlp", "40"},
                                     {"router", "softmax"},
                                     {"router_normalize", "true"}})
        EXPECT_EQ(keys.at(key), value) << key;
    // The defaults of transformers.
    EXPECT_EQ(keys_with({{"norm_topk_prob", nullptr}}).at("router_normalize"), "false");
    EXPECT_EQ(keys_with({{"head_dim", nullptr}}).at("head_dim"), "6");
    const model::ExpertsSpec spec = testing_support::spec_of_folder(kFamily).experts;
    EXPECT_EQ(spec, (model::ExpertsSpec{.count = 8, .per_token = 2, .mlp = 16, .dense_layers = 1}));
}

TEST(ExpertConfig, CountsTheFirstLayersWithoutExperts) {
    const auto dense = [](const Json& listed, int step, int layers) {
        const auto keys = keys_with(
            {{"mlp_only_layers", listed}, {"decoder_sparse_step", step}, {"num_hidden_layers", layers}});
        return keys.at("dense_layers") + (keys.contains("mlp") ? ", mlp" : "");
    };
    EXPECT_EQ(dense(nullptr, 1, 3), "0");
    EXPECT_EQ(dense(Json::array(), 1, 3), "0");
    EXPECT_EQ(dense({1, 0}, 1, 3), "2, mlp");
    EXPECT_EQ(dense({0, 7}, 1, 3), "1, mlp");  // there is no layer 7
    EXPECT_EQ(dense(nullptr, 3, 3), "2, mlp");
    EXPECT_EQ(dense({0, 1, 2}, 2, 4), "3, mlp");
}

TEST(ExpertConfig, IsRefusedWhereTheModelIsNotBuilt) {
    const auto behind = [](int layer) {
        return fmt::format(
            "layer {} without experts, behind one that has them, is not built; allowed: the first layers",
            layer);
    };
    EXPECT_EQ(refusal_of({{"mlp_only_layers", {1}}}), "config.json: mlp_only_layers: " + behind(1));
    EXPECT_EQ(refusal_of({{"mlp_only_layers", {0, 2}}}), "config.json: mlp_only_layers: " + behind(2));
    EXPECT_EQ(refusal_of({{"decoder_sparse_step", 2}}), "config.json: decoder_sparse_step: " + behind(2));
    EXPECT_EQ(refusal_of({{"decoder_sparse_step", 4}}),
              "config.json: decoder_sparse_step: leaves no layer with experts");
    EXPECT_EQ(refusal_of({{"mlp_only_layers", {0, 1, 2}}}),
              "config.json: mlp_only_layers: leaves no layer with experts");
    EXPECT_EQ(refusal_of({{"mlp_only_layers", {-1}}}),
              "config.json: mlp_only_layers: has to be a list of whole numbers");
    EXPECT_THAT(refusal_of({{"num_experts", nullptr}}), HasSubstr("num_experts: is missing"));
    EXPECT_THAT(refusal_of({{"num_experts", 0}}), HasSubstr("num_experts: has to be a whole number from 1"));
    EXPECT_EQ(refusal_of({{"num_local_experts", 4}}),
              "config.json: num_experts: is unlike num_local_experts; remove one of the two");
    EXPECT_EQ(refusal_of({{"num_local_experts", 8}}), "none");
    EXPECT_THAT(refusal_of({{"num_experts_per_tok", nullptr}}), HasSubstr("num_experts_per_tok: is missing"));
    EXPECT_THAT(refusal_of({{"moe_intermediate_size", nullptr}}),
                HasSubstr("moe_intermediate_size: is missing"));
    EXPECT_THAT(refusal_of({{"norm_topk_prob", 1}}), HasSubstr("norm_topk_prob: has to be true or false"));
    EXPECT_THAT(refusal_of({{"router_jitter_noise", 0.1}}),
                HasSubstr("router_jitter_noise: noise is not built; allowed: 0"));
    EXPECT_THAT(refusal_of({{"output_router_logits", true}}),
                HasSubstr("output_router_logits: a loss of the router is not built; allowed: false"));
    EXPECT_THAT(refusal_of({{"use_sliding_window", true}}), HasSubstr("use_sliding_window: true"));
    EXPECT_THAT(refusal_of({{"model_type", "no-such-family"}}),
                HasSubstr("'no-such-family' is not built; allowed: llama, "));
}

const std::vector<std::int64_t> kRouter{8, 24}, kGateUp{8 * 2 * 16, 24}, kDown{8 * 24, 16};

TEST(ExpertTensors, AreThoseThatTransformersWrites) {
    Pulse pulse;
    const safetensors::SafetensorsFile file(testing_support::folder_of(kFamily) + "/model.safetensors",
                                            pulse);
    const model::ModelSpec spec = testing_support::spec_of_folder(kFamily);
    std::size_t found = 0;
    for (const char* layer : {"layers.1.", "layers.2."})
        for (const auto& [name, shape] : {std::pair{"mlp.router.weight", kRouter},
                                          {"mlp.experts.gate_up.weight", kGateUp},
                                          {"mlp.experts.down.weight", kDown}})
            for (const Piece& piece : families::pieces_of(spec, std::string(layer) + name, shape)) {
                ASSERT_NE(file.find(piece.tensor), nullptr) << piece.tensor;
                EXPECT_EQ(file.find(piece.tensor)->shape, piece.shape) << piece.tensor;
                ++found;
            }
    const auto is_of_experts = [](const safetensors::TensorInfo& tensor) {
        return tensor.name.find("mlp.experts.") != std::string::npos ||
               tensor.name.find("mlp.gate.") != std::string::npos;
    };
    EXPECT_EQ(std::count_if(file.tensors().begin(), file.tensors().end(), is_of_experts), found);
    const auto pieces = families::pieces_of(spec, "layers.2.mlp.experts.gate_up.weight", kGateUp);
    EXPECT_EQ(pieces[0].tensor, "model.layers.2.mlp.experts.0.gate_proj.weight");
    EXPECT_EQ(pieces[1].tensor, "model.layers.2.mlp.experts.0.up_proj.weight");
    EXPECT_EQ(pieces[15].tensor, "model.layers.2.mlp.experts.7.up_proj.weight");
}

TEST(ExpertTensors, HaveAFormOfOneTensorForAllExperts) {
    const model::ModelSpec spec = testing_support::spec_of_folder(kFamily);
    const auto gate_up = families::forms_of(spec, "layers.2.mlp.experts.gate_up.weight", kGateUp),
               down = families::forms_of(spec, "layers.2.mlp.experts.down.weight", kDown);
    ASSERT_EQ(gate_up.size(), 2u);
    ASSERT_EQ(down.size(), 2u);
    EXPECT_THAT(gate_up[1], ElementsAre(Piece{"model.layers.2.mlp.experts.gate_up_proj", {8, 32, 24}}));
    EXPECT_THAT(down[1], ElementsAre(Piece{"model.layers.2.mlp.experts.down_proj", {8, 24, 16}}));
    EXPECT_EQ(families::forms_of(spec, "layers.2.mlp.router.weight", kRouter).size(), 1u);
    EXPECT_EQ(families::forms_of(spec, "layers.0.mlp.gate_up.weight", {80, 24}).size(), 1u);
}

/// Compares the extents with elements that are looked up one by one.
TEST(ExpertTensors, ExtentsAreThoseOfEveryElement) {
    constexpr std::int64_t kMatrices = 2, kRows = 4, kColumns = 3;
    const std::vector<Piece> pieces{
        {"a", {2, 3}},
        {"b", {1, 3}},
        {"c", {2, 2, 3}},
        {"d", {3}},
        {"transposed", {kMatrices, kColumns, kRows}, families::transposed(kMatrices, kRows, kColumns)},
        // Rows of two halves by turns, and the columns backwards apart, as some fused matrices have them.
        {"by turns", {4, 3}, {{{2, 0, 6}, {2, 3, 6}}, kColumns}},
        {"columns apart", {2, 6}, {{{2, 1, 6}}, kColumns, 2}}};
    std::vector<std::pair<std::size_t, std::int64_t>> places;  // of the elements of the parameter
    for (std::size_t p = 0; p < 4; ++p)
        for (std::int64_t i = 0; i < pieces[p].elements(); ++i) places.emplace_back(p, i);
    for (std::int64_t m = 0; m < kMatrices; ++m)
        for (std::int64_t r = 0; r < kRows; ++r)
            for (std::int64_t c = 0; c < kColumns; ++c)
                places.emplace_back(4, (m * kColumns + c) * kRows + r);
    for (const std::int64_t row : {0, 2, 1, 3})
        for (std::int64_t c = 0; c < kColumns; ++c) places.emplace_back(5, row * kColumns + c);
    for (std::int64_t r = 0; r < 2; ++r)
        for (std::int64_t c = 0; c < kColumns; ++c) places.emplace_back(6, 1 + r * 6 + c * 2);
    const auto total = static_cast<std::int64_t>(places.size());
    ASSERT_EQ(total, 24 + 24 + 12 + 6);
    const std::vector<Extent> all{{0, 5, total}};
    const std::vector<Extent> parts{{2, 0, 2}, {5, 2, 1}, {6, 3, 9}, {20, 40, 9}, {31, 50, 30}, {62, 90, 3}};
    std::vector<Extent> columns;  // the last two columns of each row, as a rank holds them
    for (std::int64_t row = 0; row < total / kColumns; ++row)
        columns.push_back({row * kColumns + 1, 2 * row, 2});
    for (const std::vector<Extent>& extents : {all, parts, columns}) {
        const auto by_piece = families::extents_by_piece(pieces, extents);
        ASSERT_EQ(by_piece.size(), pieces.size());
        std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> expected, found;
        for (const Extent& e : extents)
            for (std::int64_t i = 0; i < e.count; ++i)
                expected[places[static_cast<std::size_t>(e.logical + i)]] = e.local + i;
        std::int64_t count = 0;
        for (std::size_t p = 0; p < pieces.size(); ++p)
            for (const Extent& e : by_piece[p])
                for (std::int64_t i = 0; i < e.count; ++i, ++count)
                    found[{p, e.logical + i}] = e.local + i * e.stride;
        EXPECT_EQ(found, expected);
        EXPECT_EQ(count, static_cast<std::int64_t>(expected.size()));
    }
}

/// Writes tensors whose elements count on in `values`, each tensor from its first element on.
void write_folder(const std::string& folder, const std::vector<Piece>& pieces,
                  const std::vector<float>& values) {
    Pulse pulse;
    std::vector<safetensors::TensorSpec> specs;
    for (const Piece& piece : pieces)
        specs.push_back({piece.tensor, safetensors::StoredType::f32, piece.shape});
    const safetensors::OutputLayout layout = safetensors::lay_out(specs);
    safetensors::SafetensorsWriter writer(folder, layout, pulse);
    writer.prepare();
    const float* at = values.data();
    for (std::size_t t = 0; t < specs.size(); ++t) {
        const Extent extent{0, 0, specs[t].elements()};
        writer.write(t, std::span(&extent, 1), at);
        at += extent.count;
    }
    writer.sync();
    writer.verify();
    writer.publish();
}

/// As many experts and layers as in Qwen3-30B-A3B, with tiny matrices: 18,432 tensors. Work that grows with
/// the product of two of these numbers would take minutes. Layers have one form or the other.
TEST(ExpertTensors, LoadInEitherFormInEveryPartOfTheExperts) {
    constexpr int kLayers = 48;
    model::ModelSpec spec = testing_support::spec_of_folder(kFamily);
    spec.layers = kLayers;
    spec.width = 4;
    spec.experts = {.count = 128, .per_token = 8, .mlp = 2};
    const std::vector<std::int64_t> gate_up{128 * 2 * 2, 4}, down{128 * 4, 2};
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameters;
    for (int n = 0; n < kLayers; ++n) {
        parameters.emplace_back(fmt::format("layers.{}.mlp.experts.gate_up.weight", n), gate_up);
        parameters.emplace_back(fmt::format("layers.{}.mlp.experts.down.weight", n), down);
    }
    std::map<std::string, std::vector<Piece>> forms;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, shape] = parameters[i];
        forms[name] = families::forms_of(spec, name, shape)[i % 3 == 0 ? 1 : 0];
        pieces.insert(pieces.end(), forms[name].begin(), forms[name].end());
    }
    std::vector<float> values(static_cast<std::size_t>(kLayers * (gate_up[0] * 4 + down[0] * 2)));
    std::iota(values.begin(), values.end(), 0.0f);
    const testing_support::ScratchFolder scratch;
    const std::string folder = (scratch.path() / "model").string();
    write_folder(folder, pieces, values);

    const auto device = backend::make_cpu(1);
    const parallel::Mesh mesh = parallel::single_rank_mesh();
    parallel::ParameterStore store(*device, mesh, "text", 1, DType::f32);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, shape] = parameters[i];
        // All experts; rows of the gate and of up of each expert; experts 32 to 63; columns.
        std::vector<parallel::ParameterRows> parts{{{0, shape[0]}}};
        if (i % 4 == 1) {
            parts.clear();
            for (std::int64_t row = 0; row < shape[0]; row += 2) parts.push_back({{row + 1, row + 2}});
        }
        if (i % 4 == 2) parts = {{{shape[0] / 4, shape[0] / 2}}};
        store.declare(name, shape, parallel::Init::zeros, false, parts,
                      i % 4 == 3 ? Range{1, 2} : Range{0, shape[1]});
    }
    store.allocate(1);
    Pulse pulse;
    load_folder(folder, spec, store, pulse);
    std::int64_t first = 0;  // the value of the parameter's first element
    for (const parallel::Parameter& p : store.parameters()) {
        const float* const held = p.weight.as<float>();
        for (const Extent& e : extents_of(p.shape, p.shard))
            for (std::int64_t i = 0; i < e.count; ++i)
                ASSERT_EQ(held[e.local + i], static_cast<float>(first + e.logical + i)) << p.name;
        first += p.shape[0] * p.shape[1];
    }
    safetensors::SafetensorsFolder opened(folder, pulse);
    for (const auto& [name, shape] : parameters) EXPECT_EQ(pieces_in(opened, spec, name, shape), forms[name]);
    EXPECT_EQ(pieces_in(opened, spec, "layers.48.mlp.experts.down.weight", down).size(), 128u);
}

/// A parameter of thousands of tensors, of which a rank holds some columns.
TEST(ExpertTensors, ManyTensorsWithManyExtentsTakeLinearTime) {
    constexpr std::int64_t kTensors = 8192, kRows = 512;
    const std::vector<Piece> pieces(kTensors, Piece{"tensor", {kRows, 2}});
    std::vector<Extent> extents;
    for (std::int64_t row = 0; row < kTensors * kRows; ++row) extents.push_back({2 * row + 1, row, 1});
    const auto by_piece = families::extents_by_piece(pieces, extents);
    for (std::int64_t p = 0; p < kTensors; ++p) {
        const std::vector<Extent>& of_piece = by_piece[static_cast<std::size_t>(p)];
        ASSERT_EQ(of_piece.size(), static_cast<std::size_t>(kRows));
        EXPECT_EQ(of_piece.back(), (Extent{2 * kRows - 1, p * kRows + kRows - 1, 1}));
    }
}

}  // namespace
}  // namespace maestro::train::test
