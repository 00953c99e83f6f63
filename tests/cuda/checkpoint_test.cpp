// Checkpoints of GPU memory: copies overlap with computation, and the device finds weights that are not
// finite.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "comm/waiter.hpp"
#include "hosted/hosted.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "train/checkpoint/stage_shard.hpp"

namespace {

using namespace maestro;

constexpr double kTimeout_s = 5;  // s

/// Later work on the compute stream does not delay the copies.
void copies_overlap_with_computation(const comm::Communicator&) {
    const auto device = backend::make_cuda(0);
    comm::Waiter waiter(kTimeout_s);
    device->set_wait(
        [&](const auto& ready, const std::string& what) { waiter.wait_until(ready, [&] { return what; }); });
    backend::Arena arena(*device, 48 << 20);
    const Tensor tensor = arena.allocate(DType::f32, {10'000'000});
    std::vector<float> values(10'000'000, 2.5f);
    device->upload(values.data(), tensor);
    std::atomic<bool> go = false;
    const auto read = device->read_to_host({tensor});
    hosted::enqueue_until(
        device->stream(), [&] { return go.load(); }, "a task");
    std::int64_t count = 0;
    for (backend::DeviceToHostReader::Chunk chunk; read->next(chunk);)
        count += std::count(static_cast<const float*>(chunk.data),
                            static_cast<const float*>(chunk.data) + (chunk.end - chunk.begin), 2.5f);
    MAESTRO_CHECK(count == tensor.size(), "{} of {}", count, tensor.size());
    go = true;
}

/// A section with two parameters.
class Weights {
public:
    Weights() {
        store_.declare("first", {300, 7}, parallel::Init::normal, true);
        store_.declare("second", {5, 3}, parallel::Init::normal, true);
        store_.allocate(1);
        Pulse pulse;
        store_.initialize(pulse);
        optimizer_ = std::make_unique<train::Optimizer>(*device_, store_);
    }
    void set(std::size_t parameter, std::int64_t element, float value) {
        const Tensor& weights = store_.parameters()[parameter].weight;
        device_->upload(&value, Tensor(weights.as<float>() + element, DType::f32, {1}));
    }
    void check_finite() {
        train::check_finite({.section = 0,
                             .name = "section",
                             .store = store_,
                             .optimizer = optimizer_.get(),
                             .first = true,
                             .scratch = &scratch_},
                            7);
    }

private:
    std::unique_ptr<backend::Backend> device_ = backend::make_cuda(0);
    backend::Arena scratch_{*device_, 1 << 16};
    parallel::Mesh mesh_ = parallel::single_rank_mesh();
    parallel::ParameterStore store_{*device_, mesh_, "section", 1, DType::f32};
    std::unique_ptr<train::Optimizer> optimizer_;
};

void weights_that_are_not_finite_are_reported() {
    Weights weights;
    weights.check_finite();
    weights.set(0, 299, -3e38f);  // its square overflows fp32
    weights.check_finite();
    for (const float value : {INFINITY, -INFINITY, NAN}) {
        weights.set(1, 4, value);
        test::expect_error(ExitCode::not_finite, "section section: element 4 of second is ",
                           [&] { weights.check_finite(); });
    }
    weights.set(1, 4, 1);
    weights.check_finite();
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        copies_overlap_with_computation(world);
        weights_that_are_not_finite_are_reported();
    });
}
