// Replicas on both ends of an edge between ranks: rank 0 sends to all others. By shared memory and by
// messages.
#include <chrono>
#include <cmath>
#include <thread>

#include "mpi/local_stage_rig.hpp"
#include "mpi/mpi_main.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;
using channel::TransportRequest;

std::vector<int> others(const comm::Communicator& world) {
    std::vector<int> ranks;
    for (int r = 1; r < world.size(); ++r) ranks.push_back(r);
    return ranks;
}

/// An edge from rank 0 and this rank's replica on its end.
struct Pair {
    Pair(const comm::Communicator& world, const ChannelSpec& spec, TransportRequest request, int up_window,
         int down_window)
        : rig(world),
          open(channel::open_channels(world, std::span(&spec, 1), request)),
          edge(*open.channels[0]) {
        const bool gradient = spec.carries_gradient, sends = world.rank() == 0;
        auto up = rig.replica({.name = "up", .window = up_window, .backward = gradient}, {}, {&edge},
                              {.trained = gradient}, sends ? 0 : -1);
        auto down = rig.replica({.name = "down", .replica = world.rank() - 1, .window = down_window}, {&edge},
                                {}, {}, sends ? -1 : 0);
        replica = sends ? std::move(up) : std::move(down);
    }
    void end_step() {
        replica->end_step();
        edge.end_step();
    }
    Rig rig;
    channel::OpenChannels open;
    Channel& edge;
    std::unique_ptr<LocalStage> replica;
};

void nap() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// What arrives takes its time, what was not sent is never there.
void each_side_knows_what_is_due(const comm::Communicator& world, TransportRequest request) {
    Pair pair(world, edge("up-down", {0}, {1}, 1), request, 2, 1);
    LocalStage& replica = *pair.replica;
    const auto eventually = [&](auto&& condition) {
        world.waiter().wait_until(condition, [] { return std::string("what is due"); });
    };
    pair.edge.begin_step(1, routes_of({{1, 2}, {3}}));
    if (world.rank() == 1) MAESTRO_CHECK(!replica.can_forward(Ids{1}), "nothing is sent");
    world.barrier();
    if (world.rank() == 0) {
        pair.rig.forward(replica, 0, {1, 2});
        MAESTRO_CHECK(!replica.can_forward(Ids{3}) && !replica.can_backward(0), "nothing is answered");
    } else {
        eventually([&] { return replica.can_forward(Ids{1}); });
        MAESTRO_CHECK(!replica.can_forward(Ids{1, 3}), "sample 3 is not sent");
        pair.rig.forward(replica, 0, {1});
        pair.rig.backward(replica, 0);
    }
    world.barrier();
    if (world.rank() == 0) {
        nap();
        MAESTRO_CHECK(!replica.can_backward(0) && !replica.can_forward(Ids{3}), "sample 2 is not answered");
    }
    world.barrier();
    if (world.rank() == 0) {
        eventually([&] { return replica.can_backward(0); });
        MAESTRO_CHECK(!replica.can_forward(Ids{3}), "the credit comes with the backward");
        pair.rig.backward(replica, 0);
        MAESTRO_CHECK(replica.can_forward(Ids{3}), "a credit");
        pair.rig.forward(replica, 1, {3});
        pair.rig.backward(replica, 1);
        const double g = g_over_edge(1, 2) + g_over_edge(2, 3) + g_over_edge(3, 4);
        MAESTRO_CHECK(Rig::gradient(replica, 0) == g, "{} of {}", Rig::gradient(replica, 0), g);
    } else {
        pair.rig.forward(replica, 1, {2});
        pair.rig.backward(replica, 1);
        pair.rig.forward(replica, 2, {3});
        pair.rig.backward(replica, 2);
        const double loss = 6 + sum_of_rows(1, 1) + sum_of_rows(2, 2) + sum_of_rows(3, 3);
        MAESTRO_CHECK(pair.rig.result.loss == loss, "{} of {}", pair.rig.result.loss, loss);
    }
    pair.end_step();
}

/// A task does not begin before what it waits for was sent, and its wait is as long as that.
void waits_are_measured(const comm::Communicator& world, TransportRequest request) {
    Pair pair(world, edge("up-down", {0}, {1}, 1), request, 1, 1);
    pair.edge.begin_step(1, routes_of({{2}}));
    std::vector<double> sent(2);  // rows, gradient: of one machine's clock
    TaskTimes waited;
    double asked = 0;
    if (world.rank() == 0) {
        world.barrier();
        nap();
        sent[0] = comm::now_s();
        pair.rig.forward(*pair.replica, 0, {2});
        asked = comm::now_s();
        world.barrier();
        waited = pair.rig.backward(*pair.replica, 0, asked);
    } else {
        asked = comm::now_s();
        world.barrier();
        waited = pair.rig.forward(*pair.replica, 0, {2}, asked);
        world.barrier();
        nap();
        sent[1] = comm::now_s();
        pair.rig.backward(*pair.replica, 0);
    }
    pair.end_step();
    world.allreduce_sum(std::span(sent));
    const double due = sent[world.rank() == 0 ? 1 : 0];
    MAESTRO_CHECK(waited.start_s >= due, "begun {} s before it was sent", due - waited.start_s);
    MAESTRO_CHECK(std::abs(waited.wait_s - (waited.start_s - asked)) < 1e-9 && waited.wait_s >= 0.02, "{}",
                  waited.wait_s);
    MAESTRO_CHECK(pair.replica->times().waiting >= waited.wait_s, "{}", pair.replica->times().waiting);
}

/// Many steps at full speed with 12 samples each: micro-batches of two upstream and of one downstream, on all
/// ranks but 0.
void steps_follow_each_other(const comm::Communicator& world, TransportRequest request, bool gradient,
                             int window) {
    // Without gradients slots are waited for, too: there are more credits.
    Pair pair(world, edge("up-down", {0}, others(world), gradient ? window : window + 1, gradient), request,
              window, 1);
    const int consumers = world.size() - 1;
    for (std::int64_t step = 1; step <= 15; ++step) {
        std::vector<Ids> batches;
        for (std::int64_t i = 0; i < 12; i += 2) batches.push_back({12 * step + i + 1, 12 * step + i});
        std::vector<Route> routes = routes_of(batches);
        for (Route& r : routes) r.consumer_group = static_cast<int>(r.sample) % consumers;
        pair.edge.begin_step(step, routes);
        pair.replica->module().parameters().zero_gradients();
        pair.rig.result = {};
        double g = 0, loss = 0;
        if (world.rank() == 0) {
            const int last = static_cast<int>(batches.size());
            for (int k = 0; k < last + window; ++k) {
                if (k >= window && gradient) pair.rig.backward(*pair.replica, k - window);
                if (k < last) pair.rig.forward(*pair.replica, k, batches[static_cast<std::size_t>(k)]);
            }
            for (const Route& r : routes) g += g_over_edge(r.sample, 1 + static_cast<double>(r.sample));
        } else {
            int k = 0;
            for (const Route& r : routes) {
                if (r.consumer_group != world.rank() - 1) continue;
                pair.rig.forward(*pair.replica, k, {r.sample});
                pair.rig.backward(*pair.replica, k++);
                const auto x = static_cast<double>(r.sample);
                g += 1 + x;
                loss += x + sum_of_rows(r.sample, x);
            }
        }
        pair.end_step();
        MAESTRO_CHECK(pair.rig.result.loss == loss, "step {}: {} of {}", step, pair.rig.result.loss, loss);
        MAESTRO_CHECK(pair.rig.diary.saved == 0, "{} micro-batches are kept", pair.rig.diary.saved);
        if (world.rank() > 0 || gradient)
            MAESTRO_CHECK(Rig::gradient(*pair.replica, 0) == g, "step {}: {} of {}", step,
                          Rig::gradient(*pair.replica, 0), g);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        for (const TransportRequest request : {TransportRequest::automatic, TransportRequest::messages}) {
            if (world.size() == 2) {
                each_side_knows_what_is_due(world, request);
                waits_are_measured(world, request);
            }
            for (const int window : {1, 2, 3})
                for (const bool gradient : {true, false})
                    steps_follow_each_other(world, request, gradient, window);
        }
    });
}
