// Parameters are loaded in blocks, so that no rank holds a whole f32 copy of its shard beside the weights.
#include "train/checkpoint/block_walk.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <utility>

#include "base/error.hpp"
#include "support/tensors.hpp"

namespace maestro::train::test {
namespace {

float value_of(std::int64_t element) {
    return static_cast<float>(element % 200) / 4;  // a bf16
}

TEST(BlockWalk, LoadsShardsInSmallBlocks) {
    constexpr std::int64_t kRows = 70, kColumns = 9, kMost = 16;
    for (const auto& [type, precise] :
         {std::pair{DType::f32, false}, std::pair{DType::bf16, false}, std::pair{DType::bf16, true}})
        for (const int threads : {1, 3}) {
            const auto device = backend::make_cpu(1);
            const parallel::Mesh mesh = parallel::single_rank_mesh();
            parallel::ParameterStore store(*device, mesh, "text", 1, type);
            parallel::Parameter& p = store.declare("weight", {kRows, kColumns}, parallel::Init::zeros, true);
            if (precise) store.keep_precise(p);
            store.allocate(1);
            std::atomic<std::int64_t> largest = 0, elements = 0;
            const auto read = [&](Range block, float* values, Pulse&) {
                if (block.size() > largest) largest = block.size();
                elements += block.size();
                for (std::int64_t i = block.begin; i < block.end; ++i) values[i - block.begin] = value_of(i);
            };
            Pulse pulse;
            load_parameter(p, store, threads, kMost, read, pulse);
            EXPECT_LE(largest, kMost);
            EXPECT_EQ(elements, kRows * kColumns);
            const std::vector<double> found = testing_support::read_elements(*device, p.weight);
            for (std::size_t i = 0; i < found.size(); ++i)
                ASSERT_EQ(found[i], value_of(static_cast<std::int64_t>(i))) << i;
        }
}

TEST(BlockWalk, ReportsWhatAThreadThrows) {
    const auto device = backend::make_cpu(1);
    const parallel::Mesh mesh = parallel::single_rank_mesh();
    parallel::ParameterStore store(*device, mesh, "text", 1, DType::f32);
    const parallel::Parameter& p = store.declare("weight", {100}, parallel::Init::zeros, true);
    store.allocate(1);
    const auto read = [](Range block, float*, Pulse&) {
        if (block.begin >= 60) throw Error(ExitCode::bad_data, "element 60 is damaged");
    };
    Pulse pulse;
    EXPECT_THROW(load_parameter(p, store, 4, 20, read, pulse), Error);
}

}  // namespace
}  // namespace maestro::train::test
