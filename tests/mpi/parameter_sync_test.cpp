// Sums of gradients within the last backward and gathers of weights within the next forward, with three
// layers in separate groups.
#include "train/step/parameter_sync.hpp"

#include <cmath>

#include "backend/backend.hpp"
#include "base/check.hpp"
#include "comm/environment.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "mpi/shard_grid.hpp"

using namespace maestro;

namespace {

constexpr std::int64_t kSize = 100;

class Rig {
public:
    explicit Rig(const comm::Communicator& world, train::EmulatedSync emulated = {})
        : world_(world), mesh_(test::mesh_of(world, test::Grid{.data = world.size()})) {
        for (int layer = 0; layer < 3; ++layer) {
            if (layer > 0) store.begin_layer();
            parameters[layer] =
                &store.declare("layer" + std::to_string(layer), {kSize}, parallel::Init::zeros, true);
        }
        store.allocate(1, 1);
        MAESTRO_CHECK(store.groups().size() == 3, "{} groups", store.groups().size());
        optimizer = std::make_unique<train::Optimizer>(*backend_, store);
        sync = std::make_unique<train::ParameterSync>(store, *optimizer, world.waiter(), "language",
                                                      std::move(emulated));
    }
    void add(int layer, double value) {
        for (std::int64_t i = 0; i < kSize; ++i)
            parameters[layer]->gradient.as<float>()[i] += static_cast<float>(value);
    }
    /// The gradient at the first element of this rank's shard, where it has one.
    bool shard_is(int layer, double value) const {
        const Range shard = store.group_of(*parameters[layer]).shard_of(*parameters[layer]);
        return shard.size() <= 0 ||
               parameters[layer]->gradient.as<float>()[shard.begin] == static_cast<float>(value);
    }
    void expect_weights(int layer, float value) const {
        for (std::int64_t i = 0; i < kSize; ++i)
            MAESTRO_CHECK(std::abs(parameters[layer]->weight.as<float>()[i] - value) < 1e-4f,
                          "weight {} of layer {} is {}, not {}", i, layer,
                          parameters[layer]->weight.as<float>()[i], value);
    }

private:
    const comm::Communicator& world_;
    std::unique_ptr<backend::Backend> backend_ = backend::make_cpu(1);
    parallel::Mesh mesh_;

public:
    parallel::ParameterStore store{*backend_, mesh_, "language", 1, DType::f32};
    std::array<const parallel::Parameter*, 3> parameters{};
    std::unique_ptr<train::Optimizer> optimizer;
    std::unique_ptr<train::ParameterSync> sync;
};

/// Two sums that overlap and one apart from them, and one gather.
void check_totals() {
    const std::vector<train::SyncSpan> spans{{true, 1, 3}, {true, 2, 5}, {false, 5, 6}, {true, 7, 8}};
    const train::SyncTotal sums = train::total_of(spans, true), weights = train::total_of(spans, false);
    MAESTRO_CHECK(sums.operations == 3 && sums.begin_s == 1 && sums.end_s == 8 && sums.busy_s == 5,
                  "{} sums from {} to {}, {} s", sums.operations, sums.begin_s, sums.end_s, sums.busy_s);
    MAESTRO_CHECK(
        weights.operations == 1 && weights.begin_s == 5 && weights.end_s == 6 && weights.busy_s == 1,
        "{} gathered from {} to {}, {} s", weights.operations, weights.begin_s, weights.end_s,
        weights.busy_s);
}

/// A forward pass needs the second layer's weights. Tells rank 0 that it waits for them.
void need_weights(const comm::Communicator& world, Rig& rig) {
    bool notified = false;
    const auto tell = world.waiter().add_poll([&] {
        if (!notified) world.notify(0);
        notified = true;
        return false;
    });
    rig.store.layer_needed(1);
    world.waiter().remove_poll(tell);
}

/// Rank 0, which so updates its share of the weights when all others wait for them.
void await_waiting(const comm::Communicator& world) {
    int waiting = 0;
    world.waiter().wait_until(
        [&] {
            while (world.next_notice()) ++waiting;
            return waiting == world.size() - 1;
        },
        [] { return std::string("the others' need of weights"); });
}

/// The waits of the pass, at most one for each layer; surely one of need_weights().
void check_waits(const comm::Communicator& world, Rig& rig) {
    const auto waits = rig.sync->take_waits();
    MAESTRO_CHECK(waits.size() <= 2 && (world.rank() == 0 || !waits.empty()), "{} waits", waits.size());
    MAESTRO_CHECK(rig.sync->take_waits().empty(), "waits are returned once");
    for (const auto& [before, after] : waits)
        MAESTRO_CHECK(after.host_s > before.host_s, "a wait of {} s", after.host_s - before.host_s);
}

/// Rank 0 has no backward in this step. The others add rank + 1 to the gradients of each layer, and to the
/// first layer's once more after the others are summed.
void step(const comm::Communicator& world, Rig& rig, std::int64_t number) {
    double ranks = 0;
    for (int r = 1; r < world.size(); ++r) ranks += r + 1;
    if (world.rank() == 0) {
        rig.sync->gradients_final();
    } else {
        for (int layer = 0; layer < 3; ++layer) rig.add(layer, world.rank() + 1);
        rig.sync->begin_last_backward();
        for (const int layer : {2, 1}) {
            rig.store.layer_final(layer);
            world.waiter().wait_until(
                [&] {
                    world.waiter().poll();
                    return rig.shard_is(layer, ranks);
                },
                [] { return std::string("the sum of a layer, within the backward"); });
        }
        rig.add(0, world.rank() + 1);
        rig.sync->gradients_final();
    }
    const double squares = world.sum(rig.sync->finish_sums());
    const double expected = kSize * (2 * ranks * ranks + 4 * ranks * ranks);
    MAESTRO_CHECK(std::abs(squares - expected) <= 1e-9 * expected, "squares {} of {}", squares, expected);
    for (int layer = 0; layer < 3; ++layer)
        MAESTRO_CHECK(rig.shard_is(layer, (layer == 0 ? 2 : 1) * ranks), "the sum of layer {}", layer);

    if (world.rank() == 0) await_waiting(world);
    rig.sync->update({.learning_rate = 0.5}, number, 1);
    if (world.rank() > 0) need_weights(world, rig);
    rig.sync->begin_forward();
    for (int layer = 0; layer < 3; ++layer) {
        if (layer > 0) rig.store.layer_needed(layer);
        // Adam's steps are those of the gradient's sign where it does not change.
        rig.expect_weights(layer, world.size() > 1 ? -0.5f * static_cast<float>(number) : 0);
        for (std::int64_t i = 0; i < kSize; ++i)
            MAESTRO_CHECK(rig.parameters[layer]->gradient.as<float>()[i] == 0, "a gradient is left");
    }
    rig.sync->await_weights();
    const std::vector<train::SyncSpan> spans = rig.sync->take_spans();
    MAESTRO_CHECK(spans.size() == 6, "{} operations", spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i)
        MAESTRO_CHECK(spans[i].sum == (i < 3) && spans[i].begin_s <= spans[i].end_s, "operation {}", i);
    check_waits(world, rig);
}

/// The last rank is late for the gathers: the others say so, and go on when it is there.
void a_late_rank_is_named(const comm::Communicator& world, Rig& rig) {
    const int late = world.size() - 1;
    rig.sync->finish_sums();
    if (world.rank() == late) comm::sleep_until(comm::now_s() + 1.5);
    rig.sync->update({.learning_rate = 0}, 4, 1);
    if (world.rank() != late) {
        world.waiter().set_timeout(0.5);
        test::expect_error(
            ExitCode::peer_lost,
            "rank " + std::to_string(late) + " of language, for the weights of section language",
            [&] { rig.sync->await_weights(); });
        world.waiter().set_timeout(test::kHangS);
    }
    rig.sync->await_weights();
}

/// A module that forgets to ask for a layer's weights would compute with old ones.
void weights_that_nobody_asks_for_are_found(const comm::Communicator& world) {
    Rig rig(world, {.groups = {{}, {.gather_s = 1.5}, {}}, .network_free_s = std::make_shared<double>(0)});
    rig.sync->finish_sums();
    rig.sync->update({.learning_rate = 0}, 1, 1);
    rig.sync->begin_forward();
    test::expect_error(ExitCode::broken_invariant, "did not ask for the weights of layer1",
                       [&] { rig.sync->end_forward(); });
    for (const int layer : {1, 2}) rig.store.layer_needed(layer);
    rig.sync->end_forward();
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        check_totals();
        Rig rig(world);
        for (std::int64_t number = 1; number <= 3; ++number) step(world, rig, number);
        weights_that_nobody_asks_for_are_found(world);
        if (world.size() > 1) a_late_rank_is_named(world, rig);
    });
}
