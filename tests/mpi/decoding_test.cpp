// Greedy decoding on all ranks as one tensor-parallel group: the answers are those of one rank.
#include <set>

#include "base/check.hpp"
#include "mpi/mpi_main.hpp"
#include "unit/model/answering_model.hpp"

namespace {

using namespace maestro;
using namespace maestro::model;
using model::test::AnsweringModel, model::test::Question, model::test::questions;

constexpr std::size_t kTokens = 12;

void compare(const comm::Communicator& world, DType type) {
    const auto backend = testing_support::make_device(1, world.rank());
    AnsweringModel whole(*backend, type);
    const parallel::MeshShape shape{
        .degrees = {.cp = 1, .tp = world.size()}, .kv_heads = 2, .trainable = false};
    AnsweringModel sharded(*backend, type, parallel::make_mesh(world, *backend, shape, "language"));
    std::set<std::int32_t> tokens;
    for (const Question& question : questions()) {
        const std::vector<std::int32_t> expected = whole.predict(question, kTokens);
        const std::vector<std::int32_t> answer = sharded.decode(question, kTokens);
        for (std::size_t i = 0; i < kTokens; ++i)
            MAESTRO_CHECK(answer[i] == expected[i], "a prompt of {} tokens: token {} is {}, on one rank {}",
                          question.tokens.size(), i, answer[i], expected[i]);
        tokens.insert(answer.begin(), answer.end());
    }
    MAESTRO_CHECK(tokens.size() >= 5, "the answers have {} different tokens", tokens.size());
    MAESTRO_CHECK(sharded.used() <= sharded.planned(), "{} bytes used, {} planned", sharded.used(),
                  sharded.planned());
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        compare(world, DType::f32);
        compare(world, DType::f64);
    });
}
