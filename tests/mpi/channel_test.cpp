// Random routes over channels of many shapes: every row and every gradient must arrive in its place, within
// the credits.
#include "channel/open.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "base/check.hpp"
#include "base/random.hpp"
#include "comm/environment.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/elements.hpp"

namespace {

using namespace maestro;
using channel::Channel;
using channel::ChannelSpec;
using channel::Route;
using test::expect_error;
using testing_support::element_of;
using testing_support::set_element;

/// Small integers, exact in every type.
double value_of(std::int64_t step, std::int64_t sample, std::int64_t element, bool gradient) {
    return static_cast<double>((step * 31 + sample * 17 + element * 7 + (gradient ? 101 : 0)) % 251);
}

struct Dice {
    Random random;
    std::uint64_t next = 0;
    std::int64_t up_to(std::int64_t most) {  // 0..most
        return static_cast<std::int64_t>(random.bits(next++) % static_cast<std::uint64_t>(most + 1));
    }
};

struct StepPlan {
    std::vector<Route> routes;
    std::vector<std::vector<std::int64_t>> rows;  // [producer][micro-batch], of the whole output
};

/// The same on every rank: samples spread over the consumers, packed into micro-batches with gaps between
/// some.
StepPlan plan_step(const ChannelSpec& spec, Dice& dice) {
    const auto fanout = static_cast<std::int64_t>(spec.consumers.size() / spec.producers.size());
    StepPlan plan;
    plan.rows.resize(spec.producers.size());
    const std::int64_t samples = dice.up_to(4) == 0 ? 0 : dice.up_to(spec.max_samples);
    std::map<std::int64_t, std::vector<Route>> open;  // by producer
    const auto close = [&](std::int64_t producer) {
        auto& batch = open[producer];
        auto& rows = plan.rows[static_cast<std::size_t>(producer)];
        std::int64_t row = 0;
        for (Route& r : batch) {
            r.producer_micro_batch = static_cast<int>(rows.size());
            r.first_row = row;
            row += r.rows + (row + r.rows < spec.max_rows - 20 ? dice.up_to(2) : 0);
            plan.routes.push_back(r);
        }
        rows.push_back(row);
        batch.clear();
    };
    for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t to = dice.up_to(static_cast<std::int64_t>(spec.consumers.size()) - 1);
        const std::int64_t from = to / fanout;
        open[from].push_back(
            {1000 + 3 * i, static_cast<int>(from), 0, static_cast<int>(to), 0, dice.up_to(9)});
        if (open[from].size() == 3 || dice.up_to(2) == 0) close(from);
    }
    for (auto& [producer, batch] : open)
        if (!batch.empty()) close(producer);
    return plan;
}

/// Plays this rank's part of a step, as producer, consumer or both, in a random order that the credits allow.
class Player {
public:
    Player(Channel& channel, const StepPlan& plan, std::int64_t step, bool slow, std::uint64_t seed)
        : channel_(channel),
          spec_(channel.spec()),
          plan_(plan),
          step_(step),
          slow_(slow),
          dice_{Random(seed, "play")} {
        for (const Route& r : plan.routes)
            if (channel.expects(r.sample)) todo_.push_back(r);
        if (channel.producer_replica() >= 0)
            batches_ =
                static_cast<int>(plan.rows[static_cast<std::size_t>(channel.producer_replica())].size());
    }

    void play(comm::Waiter& waiter) {
        while (!finished()) waiter.wait_until([&] { return turn(); }, [] { return std::string("a turn"); });
    }

private:
    bool finished() const {
        return next_ == batches_ && in_flight_.empty() && todo_.empty() && held_.empty();
    }

    bool turn() {
        bool moved = false;
        if (next_ < batches_ && channel_.has_credit()) moved = put();
        std::erase_if(in_flight_, [&](int micro_batch) {
            const bool done = channel_.drained(micro_batch) && take_gradient(micro_batch);
            moved = moved || done;
            return done;
        });
        for (auto r = todo_.begin(); r != todo_.end(); ++r) {
            if (!channel_.arrived(r->sample) || dice_.up_to(2) == 0) continue;
            receive(*r);
            held_.push_back(*r);
            todo_.erase(r);
            moved = true;
            break;
        }
        if (!held_.empty() && (!moved || dice_.up_to(1) == 0)) {
            answer(held_.back());
            held_.pop_back();
            moved = true;
        }
        return moved || finished();
    }

    Tensor fresh(std::vector<double>& memory, std::int64_t rows) const {
        memory.assign(static_cast<std::size_t>(rows * spec_.width), 250.0);
        return {memory.data(), spec_.dtype, {rows, spec_.width}};
    }

    bool put() {
        const auto replica = static_cast<std::size_t>(channel_.producer_replica());
        auto& memory = outputs_[next_];
        const Tensor output = fresh(memory, plan_.rows[replica][static_cast<std::size_t>(next_)]);
        for (const Route& r : plan_.routes)
            if (r.producer_replica == channel_.producer_replica() && r.producer_micro_batch == next_)
                for (std::int64_t i = 0; i < r.rows * spec_.width; ++i)
                    set_element(output, r.first_row * spec_.width + i, value_of(step_, r.sample, i, false));
        channel_.put(next_, output);
        if (!spec_.colocated)
            std::fill(memory.begin(), memory.end(), -1.0);  // the caller may reuse it at once
        in_flight_.push_back(next_++);
        std::size_t occupied = 0;
        for (int micro_batch : in_flight_) occupied += channel_.drained(micro_batch) ? 0 : 1;
        MAESTRO_CHECK(occupied <= static_cast<std::size_t>(spec_.window), "{} micro-batches in flight",
                      occupied);
        return true;
    }

    bool take_gradient(int micro_batch) {
        if (spec_.carries_gradient) {
            const Tensor gradient = channel_.gradient(micro_batch);
            std::vector<double> expected(static_cast<std::size_t>(gradient.size()), 0.0);
            for (const Route& r : plan_.routes)
                if (r.producer_replica == channel_.producer_replica() &&
                    r.producer_micro_batch == micro_batch)
                    for (std::int64_t i = 0; i < r.rows * spec_.width; ++i)
                        expected[static_cast<std::size_t>(r.first_row * spec_.width + i)] =
                            value_of(step_, r.sample, i, true);
            for (std::int64_t i = 0; i < gradient.size(); ++i)
                MAESTRO_CHECK(element_of(gradient, i) == expected[static_cast<std::size_t>(i)],
                              "gradient {} of micro-batch {}", i, micro_batch);
        }
        channel_.retire(micro_batch);
        return true;
    }

    void receive(const Route& r) {
        if (slow_ && dice_.up_to(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        MAESTRO_CHECK(channel_.rows_of(r.sample) == r.rows, "rows of sample {}", r.sample);
        verify(r);
    }

    void verify(const Route& r) {
        const Tensor rows = channel_.rows(r.sample);
        MAESTRO_CHECK(rows.dim(0) == r.rows && rows.dim(1) == spec_.width, "{}", rows.describe());
        for (std::int64_t i = 0; i < r.rows * spec_.width; ++i)
            MAESTRO_CHECK(element_of(rows, i) == value_of(step_, r.sample, i, false),
                          "step {}, sample {}, element {}: {}", step_, r.sample, i, element_of(rows, i));
    }

    void answer(const Route& r) {
        verify(r);  // still whole after others came and went
        if (!spec_.carries_gradient) return channel_.release(std::span(&r.sample, 1));
        if (dice_.up_to(1) == 0) channel_.release(std::span(&r.sample, 1));
        std::vector<double> memory;
        const Tensor gradient = fresh(memory, r.rows);
        for (std::int64_t i = 0; i < gradient.size(); ++i)
            set_element(gradient, i, value_of(step_, r.sample, i, true));
        channel_.put_gradient(std::span(&r.sample, 1), gradient);
    }

    Channel& channel_;
    const ChannelSpec& spec_;
    const StepPlan& plan_;
    std::int64_t step_;
    bool slow_;
    Dice dice_;
    int batches_ = 0;
    int next_ = 0;
    std::vector<int> in_flight_;
    std::vector<Route> todo_;
    std::vector<Route> held_;
    std::map<int, std::vector<double>> outputs_;
};

void play_case(const comm::Communicator& world, const ChannelSpec& spec, std::uint64_t seed,
               channel::Wanted wanted = channel::Wanted::automatic) {
    const auto [channels, description] = channel::open_channels(world, std::span(&spec, 1), wanted);
    if (!channels[0]) return;
    Channel& channel = *channels[0];
    Dice dice{Random(seed, "plan")};
    for (std::int64_t step = 0; step < 12; ++step) {
        const StepPlan plan = plan_step(spec, dice);
        channel.begin_step(step, plan.routes);
        Player player(channel, plan, step, channel.consumer_replica() == 0 && seed % 3 == 0,
                      seed * 100 + static_cast<std::uint64_t>(world.rank()));
        player.play(world.waiter());
        channel.end_step();
    }
}

void random_cases(const comm::Communicator& world, channel::Wanted wanted) {
    Dice dice{Random(11, "cases")};
    std::uint64_t seed = 1;
    const std::vector<DType> types = {DType::f32, DType::bf16, DType::f64};
    for (int producers = 1; producers < world.size(); ++producers)
        for (int fanout = 1; producers * (1 + fanout) <= world.size(); ++fanout)
            for (int window = 1; window <= 4; ++window)
                for (bool gradient : {true, false}) {
                    std::vector<int> ranks;
                    for (auto r : Random(seed, "ranks").permutation(world.size()))
                        ranks.push_back(static_cast<int>(r));
                    ChannelSpec spec;
                    spec.name = "up-down";
                    spec.producers.assign(ranks.begin(), ranks.begin() + producers);
                    spec.consumers.assign(ranks.begin() + producers,
                                          ranks.begin() + producers * (1 + fanout));
                    spec.width = 1 + dice.up_to(7);
                    spec.dtype = types[seed % types.size()];
                    spec.window = window;
                    spec.max_rows = 40;
                    spec.max_samples = 24;
                    spec.carries_gradient = gradient;
                    if (seed % 4 == 0) spec.latency_s = 5e-4;
                    if (seed % 8 == 0) spec.row_s = 5e-5;
                    play_case(world, spec, seed++, wanted);
                }
}

void colocated_cases(const comm::Communicator& world) {
    for (int window = 1; window <= 3; ++window)
        for (bool gradient : {true, false}) {
            ChannelSpec spec;
            spec.name = "colocated";
            spec.producers.resize(static_cast<std::size_t>(world.size()));
            std::iota(spec.producers.begin(), spec.producers.end(), 0);
            spec.consumers = spec.producers;
            spec.width = 3;
            spec.window = window;
            spec.max_rows = 40;
            spec.max_samples = 24;
            spec.carries_gradient = gradient;
            spec.colocated = true;
            play_case(world, spec, 500 + static_cast<std::uint64_t>(2 * window + gradient));
        }
}

/// Ranks of one machine share a clock: nothing is seen before its time.
void emulated_links_delay(const comm::Communicator& world, channel::Wanted wanted) {
    ChannelSpec spec;
    spec.name = "slow";
    spec.producers = {0};
    spec.consumers = {1};
    spec.width = 2;
    spec.max_rows = 4;
    spec.max_samples = 1;
    spec.latency_s = 0.02;
    spec.row_s = 0.01;
    const auto [channels, description] = channel::open_channels(world, std::span(&spec, 1), wanted);
    std::vector<float> memory(8, 1.0f);
    const Tensor rows(memory.data(), DType::f32, {4, 2});
    const Route route{7, 0, 0, 0, 0, 4};
    std::vector<double> times(4, 0.0);  // sent, arrived, answered, drained
    if (Channel* channel = channels[0].get()) {
        channel->begin_step(1, std::span(&route, 1));
        if (world.rank() == 0) {
            times[0] = comm::now_s();
            channel->put(0, rows);
            channel->wait_drained(0);
            times[3] = comm::now_s();
            channel->retire(0);
        } else {
            channel->wait_arrived(7);
            times[1] = comm::now_s();
            times[2] = comm::now_s();
            channel->put_gradient(std::span(&route.sample, 1), rows);
        }
        channel->end_step();
    }
    world.allreduce_sum(std::span(times));
    const double least = spec.latency_s + 4 * spec.row_s;
    MAESTRO_CHECK(times[1] - times[0] >= least, "rows seen after {} s", times[1] - times[0]);
    MAESTRO_CHECK(times[3] - times[2] >= least, "gradients seen after {} s", times[3] - times[2]);
}

/// One rank is enough to show what a misuse does: it must be noticed before anything is overwritten.
void misuse_is_refused(const comm::Communicator& world) {
    ChannelSpec spec;
    spec.name = "misuse";
    spec.producers = spec.consumers = {world.rank()};
    spec.width = 2;
    spec.max_rows = 2;
    spec.max_samples = 2;
    spec.colocated = true;
    Channel channel(spec, world.rank(), world.waiter(), channel::make_local(rank_bytes(spec, world.rank())));
    const std::int64_t one = 1, two = 2;
    std::vector<float> memory(8, 1.0f);
    const Tensor output(memory.data(), DType::f32, {2, 2});
    const std::vector<Route> routes = {{1, 0, 0, 0, 0, 1}, {2, 0, 1, 0, 0, 2}};
    channel.begin_step(0, routes);
    const auto broken = ExitCode::broken_invariant;
    expect_error(broken, "", [&] { channel.put(0, Tensor(memory.data(), DType::f32, {4, 2})); });
    channel.put(0, output);
    expect_error(broken, "", [&] { channel.put(1, output); });  // no credit
    expect_error(broken, "", [&] { channel.rows(2); });
    expect_error(broken, "", [&] { channel.rows(3); });
    expect_error(broken, "", [&] { channel.retire(0); });
    expect_error(broken, "", [&] { channel.end_step(); });
    channel.put_gradient(std::span(&one, 1), output.slice(0, 1));
    expect_error(broken, "", [&] { channel.put_gradient(std::span(&one, 1), output.slice(0, 1)); });
    MAESTRO_CHECK(channel.gradient(0).as<float>()[3] == 0.0f, "a row without a route has no gradient");
    channel.retire(0);
    channel.put(1, output);
    channel.put_gradient(std::span(&two, 1), output);
    channel.retire(1);
    channel.end_step();
}

void opening_checks_memory(const comm::Communicator& world) {
    ChannelSpec spec;
    spec.name = "first-last";
    spec.producers = {0};
    spec.consumers = {world.size() - 1};
    spec.width = 16;
    spec.max_rows = 8;
    spec.max_samples = 4;
    std::vector<ChannelSpec> specs = {spec, spec};
    const auto [channels, description] = channel::open_channels(world, specs);
    const bool member = world.rank() == 0 || world.rank() == world.size() - 1;
    MAESTRO_CHECK((channels[0] != nullptr) == member && (channels[1] != nullptr) == member, "members");
    if (world.size() >= 4) {  // edges without a common rank, each with memory of its own
        specs[0].producers = {0};
        specs[0].consumers = {1};
        specs[1].producers = {2};
        specs[1].consumers = {3};
        for (int i = 0; i < 20; ++i) channel::open_channels(world, specs);
    }
    specs[1].max_rows = std::int64_t{1} << 40;
    expect_error(ExitCode::bad_deck, "", [&] { channel::open_channels(world, specs); });
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        random_cases(world, channel::Wanted::automatic);
        random_cases(world, channel::Wanted::messages);
        colocated_cases(world);
        misuse_is_refused(world);
        if (world.size() > 1) {
            opening_checks_memory(world);
            emulated_links_delay(world, channel::Wanted::automatic);
            emulated_links_delay(world, channel::Wanted::messages);
        }
    });
}
