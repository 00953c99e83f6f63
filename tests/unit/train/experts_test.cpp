// The block with experts, in double, against those of Qwen3-MoE and Qwen3-Next in transformers
// (tests/golden/experts/make_experts.py).
#include <gtest/gtest.h>

#include <cmath>

#include "model/expert_block.hpp"
#include "support/elements.hpp"
#include "support/family_folder.hpp"

namespace maestro::train::test {
namespace {

struct Case {
    const char* name;
    int shared_mlp;
    bool normalize;
};

class Experts : public testing::TestWithParam<Case> {
protected:
    Experts()
        : reference_(std::filesystem::path(MAESTRO_SOURCE_DIR) / "tests/golden/experts" /
                     (std::string(GetParam().name) + ".safetensors")) {}
    Tensor tensor(const std::string& name) {
        const std::vector<std::int64_t> shape = reference_.shape(name);
        const std::vector<double> values = reference_.read<double>(name);
        const Tensor t = arena_.allocate(DType::f64, {shape.at(0), shape.size() > 1 ? shape[1] : 1});
        backend_->upload(values.data(), t);
        return t;
    }
    void expect(const std::string& name, const Tensor& found) {
        const std::vector<double> expected = reference_.read<double>(name);
        ASSERT_EQ(found.size(), static_cast<std::int64_t>(expected.size())) << name;
        double squares = 0, norm = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            squares += std::pow(found.as<double>()[i] - expected[i], 2);
            norm += expected[i] * expected[i];
        }
        EXPECT_GT(norm, 1e-3) << name;
        EXPECT_LE(std::sqrt(squares), 1e-12 * std::sqrt(norm)) << name;
    }

    testing_support::FamilyReference reference_;
    std::unique_ptr<backend::Backend> backend_ = backend::make_cpu(1);
    backend::Arena arena_{*backend_, std::size_t{16} << 20};
};

TEST_P(Experts, EqualTransformersWithEveryGradient) {
    const auto [name, shared_mlp, normalize] = GetParam();
    model::ModelSpec spec{};
    spec.width = 8;
    spec.experts = {.count = 6, .per_token = 3, .mlp = 5, .shared_mlp = shared_mlp, .normalize = normalize};
    model::Role role{};
    role.compute = DType::f64;
    const parallel::Mesh mesh = parallel::single_rank_mesh();
    parallel::ParameterStore store(*backend_, mesh, "text", 1, DType::f64);
    const model::ExpertBlock block(*backend_, spec, role, mesh, store, "");
    store.allocate(1);
    for (const parallel::Parameter& p : store.parameters()) {
        const std::vector<double> values = reference_.read<double>(p.name);
        ASSERT_EQ(static_cast<std::int64_t>(values.size()), p.size()) << p.name;
        backend_->upload(values.data(), p.weight);
    }
    store.zero_gradients();
    const Tensor input = tensor("input"), output = arena_.allocate(DType::f64, {input.dim(0), 8}),
                 d_stream = tensor("d_output");
    const std::int64_t lengths[] = {input.dim(0)};
    const parallel::Sequences sequences(
        parallel::Partition(lengths, parallel::AttentionMask::causal, mesh.degrees()),
        parallel::AttentionMask::causal, mesh);
    const model::ExpertBlockActivations kept = block.allocate(input, sequences, arena_, arena_);
    block.forward(kept, output, sequences, arena_);
    expect("output", output);
    block.backward(kept, d_stream, sequences, arena_);
    expect("d_input", d_stream);
    for (const parallel::Parameter& p : store.parameters()) expect(p.name + ".gradient", p.gradient);
    EXPECT_EQ(store.parameters().size(), shared_mlp > 0 ? 7u : 4u);
}

INSTANTIATE_TEST_SUITE_P(Transformers, Experts,
                         testing::Values(Case{"qwen3_moe", 0, false}, Case{"qwen3_moe_normalized", 0, true},
                                         Case{"qwen3_next", 7, true}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace maestro::train::test
