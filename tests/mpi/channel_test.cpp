// Random routes over channels between groups of many shapes: every row and every gradient must arrive in
// its place, within the credits. Rows are the device's; with GPUs also those of CPU ranks beside them.
#include "channel/open.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "backend/arena.hpp"
#include "base/check.hpp"
#include "base/random.hpp"
#include "comm/check.hpp"
#include "comm/environment.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/device.hpp"
#include "support/edges.hpp"

namespace {

using namespace maestro;
using channel::Channel;
using channel::ChannelSpec;
using channel::Route;
using channel::RowSegment;
using test::expect_error;

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

/// Where a row of a sample goes: rank of the producer's group and row there, and the consumer's.
struct RowCopy {
    int from = 0;
    std::int64_t from_row = 0;
    int to = 0;
    std::int64_t to_row = 0;
};

struct StepPlan {
    std::vector<Route> routes;
    std::map<std::int64_t, std::vector<RowCopy>> copies;       // by sample and row
    std::vector<std::vector<std::vector<std::int64_t>>> rows;  // [producer][micro-batch][rank]

    const std::vector<std::int64_t>& rows_of(const Route& r) const {
        return rows[static_cast<std::size_t>(r.producer_group)]
                   [static_cast<std::size_t>(r.producer_micro_batch)];
    }
};

/// Deals the sample's rows out to ranks on both sides, in runs of up to 3.
void deal(const ChannelSpec& spec, Dice& dice, std::int64_t rows, std::vector<std::int64_t>& filled,
          Route& route, std::vector<RowCopy>& copies) {
    const auto ranks = [](const channel::Side& side) {
        return static_cast<std::int64_t>(side.front().size()) - 1;
    };
    std::vector<std::int64_t> got(spec.consumers.front().size(), 0);
    while (rows > 0) {
        const std::int64_t run = spec.pointer ? rows : 1 + dice.up_to(std::min<std::int64_t>(rows, 3) - 1);
        const auto from = static_cast<std::size_t>(dice.up_to(ranks(spec.producers))),
                   to = static_cast<std::size_t>(dice.up_to(ranks(spec.consumers)));
        route.segments.push_back({static_cast<int>(from), static_cast<int>(to), filled[from], got[to], run});
        for (std::int64_t i = 0; i < run; ++i)
            copies.push_back({static_cast<int>(from), filled[from]++, static_cast<int>(to), got[to]++});
        rows -= run;
    }
}

/// The same on every rank: samples spread over the consumers, packed into micro-batches with gaps between
/// some.
StepPlan plan_step(const ChannelSpec& spec, Dice& dice) {
    const auto producers = static_cast<std::int64_t>(spec.producers.size()),
               consumers = static_cast<std::int64_t>(spec.consumers.size());
    StepPlan plan;
    plan.rows.resize(spec.producers.size());
    const std::int64_t samples = dice.up_to(4) == 0 ? 0 : dice.up_to(24);
    std::map<std::int64_t, std::vector<Route>> open;  // by producer
    const auto close = [&](std::int64_t producer) {
        auto& batches = plan.rows[static_cast<std::size_t>(producer)];
        std::vector<std::int64_t> filled(spec.producers.front().size(), 0);
        for (Route& r : open[producer]) {
            r.producer_micro_batch = static_cast<int>(batches.size());
            deal(spec, dice, dice.up_to(9), filled, r, plan.copies[r.sample]);
            for (auto& rows : filled)
                if (rows < spec.max_sent - 12) rows += dice.up_to(2);
            plan.routes.push_back(r);
        }
        batches.push_back(filled);
        open[producer].clear();
    };
    for (std::int64_t i = 0; i < samples; ++i) {
        // With fan-in any of a consumer's producers may have the sample.
        const std::int64_t to = dice.up_to(consumers - 1),
                           from = producers > consumers
                                      ? to * (producers / consumers) + dice.up_to(producers / consumers - 1)
                                      : to / (consumers / producers);
        open[from].push_back({1000 + 3 * i, static_cast<int>(from), 0, static_cast<int>(to), {}});
        if (std::ssize(open[from]) == spec.max_samples || dice.up_to(2) == 0) close(from);
    }
    for (auto& [producer, batch] : open)
        if (!batch.empty()) close(producer);
    return plan;
}

/// Plays this rank's part of a step, as producer, consumer or both, in a random order that the credits allow.
/// Slots are chosen by the leaders of groups, or, in order, by each rank for itself.
class Player {
public:
    struct Style {
        bool slow = false;     ///< takes its time over some samples
        bool ordered = false;  ///< puts and retires in one order
        std::uint64_t seed = 0;
    };
    Player(const comm::Communicator& world, const transport::Backends& devices, Channel& channel,
           const StepPlan& plan, std::int64_t step, Style style)
        : world_(world),
          above_(*devices.producer),
          below_(*devices.consumer),
          channel_(channel),
          spec_(channel.spec()),
          plan_(plan),
          step_(step),
          style_(style),
          dice_{Random(style.seed, "play")} {
        for (const Route& r : plan.routes)
            if (channel.expects(r.sample)) todo_.push_back(r);
        if (const auto seat = channel.producer())
            batches_ = static_cast<int>(plan.rows[static_cast<std::size_t>(seat->group)].size());
    }

    void play() {
        while (!finished())
            world_.waiter().wait_until([&] { return turn(); }, [] { return std::string("a turn"); });
        for (const auto& [sample, used] : used_) verify(sample, used.second);
    }

private:
    static constexpr int kTag = 77;
    static constexpr double kPoison = 250, kGone = -1;

    bool finished() const {
        return next_ == batches_ && in_flight_.empty() && todo_.empty() && held_.empty();
    }

    bool turn() {
        bool moved = next_ < batches_ && put();
        std::erase_if(in_flight_, [&](int micro_batch) {
            if (style_.ordered && (micro_batch != in_flight_.front() || may_put())) return false;
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

    std::vector<double> fresh(std::int64_t rows) const {
        return std::vector<double>(static_cast<std::size_t>(rows * spec_.width), kPoison);
    }
    /// On the device, in memory that the next one takes again.
    Tensor on_device(backend::Backend& device, backend::Arena& arena, const std::vector<double>& values) {
        arena.reset();
        const Tensor t = arena.allocate(
            spec_.dtype, {static_cast<std::int64_t>(values.size()) / spec_.width, spec_.width});
        testing_support::write_elements(device, t, values);
        return t;
    }
    static void fill(backend::Backend& device, const Tensor& t, double value) {
        testing_support::write_elements(device, t,
                                        std::vector<double>(static_cast<std::size_t>(t.size()), value));
    }
    /// What an operation of the consumer makes of a sample's rows, whenever the device runs it: a copy.
    void use(std::int64_t sample, const Tensor& rows) {
        std::vector<double> ones(static_cast<std::size_t>(spec_.width * spec_.width), 0.0);
        for (std::int64_t i = 0; i < spec_.width; ++i)
            ones[static_cast<std::size_t>(i * spec_.width + i)] = 1;
        const Tensor identity = on_device(below_, ones_, ones);
        auto& [arena, copy] = used_[sample];
        arena = backend::Arena(below_, kOutput);
        copy = on_device(below_, arena, fresh(rows.dim(0)));
        if (rows.dim(0) > 0)
            below_.gemm({.a = rows.data,
                         .b = identity.data,
                         .y = copy.data,
                         .m = rows.dim(0),
                         .n = spec_.width,
                         .k = spec_.width,
                         .lda = spec_.width,
                         .ldb = spec_.width,
                         .ldy = spec_.width,
                         .transpose_a = false,
                         .transpose_b = false,
                         .accumulate = false,
                         .in = spec_.dtype,
                         .out = spec_.dtype});
    }

    /// Calls visit(element of this rank's output, sample, element of it) for what is routed of a micro-batch.
    template <class Visit>
    void each_sent(int micro_batch, Visit visit) const {
        const channel::GroupRank self = *channel_.producer();
        for (const Route& r : plan_.routes) {
            if (r.producer_group != self.group || r.producer_micro_batch != micro_batch) continue;
            const std::vector<RowCopy>& copies = plan_.copies.at(r.sample);
            for (std::size_t row = 0; row < copies.size(); ++row)
                if (copies[row].from == self.rank)
                    for (std::int64_t i = 0; i < spec_.width; ++i)
                        visit(copies[row].from_row * spec_.width + i, r.sample,
                              static_cast<std::int64_t>(row) * spec_.width + i);
        }
    }
    /// The same for the rows of a sample that this rank gets.
    template <class Visit>
    std::int64_t each_received(std::int64_t sample, Visit visit) const {
        const std::vector<RowCopy>& copies = plan_.copies.at(sample);
        std::int64_t rows = 0;
        for (std::size_t row = 0; row < copies.size(); ++row) {
            if (copies[row].to != channel_.consumer()->rank) continue;
            ++rows;
            for (std::int64_t i = 0; i < spec_.width; ++i)
                visit(copies[row].to_row * spec_.width + i, static_cast<std::int64_t>(row) * spec_.width + i);
        }
        return rows;
    }

    bool may_put() const {
        return next_ < batches_ && in_flight_.size() < static_cast<std::size_t>(spec_.window);
    }

    /// The slot of the next put: -2 while there is none.
    int choose_slot() {
        const channel::GroupRank self = *channel_.producer();
        const std::vector<int>& lane = spec_.producers[static_cast<std::size_t>(self.group)];
        if (style_.ordered) return may_put() && channel_.has_credit() ? -1 : -2;
        if (self.rank == 0) {
            if (!channel_.has_credit()) return -2;
            const int slot = channel_.free_slot();
            for (std::size_t r = 1; r < lane.size(); ++r)
                MAESTRO_MPI(MPI_Send(&slot, 1, MPI_INT, lane[r], kTag, world_.handle()));
            return slot;
        }
        if (told_ < 0) {
            int found = 0;
            MAESTRO_MPI(MPI_Iprobe(lane[0], kTag, world_.handle(), &found, MPI_STATUS_IGNORE));
            if (found == 0) return -2;
            MAESTRO_MPI(MPI_Recv(&told_, 1, MPI_INT, lane[0], kTag, world_.handle(), MPI_STATUS_IGNORE));
        }
        return channel_.slot_free(told_) ? std::exchange(told_, -1) : -2;
    }

    bool put() {
        const int slot = choose_slot();
        if (slot == -2) return false;
        const channel::GroupRank self = *channel_.producer();
        std::vector<double> values =
            fresh(plan_.rows[static_cast<std::size_t>(self.group)][static_cast<std::size_t>(next_)]
                            [static_cast<std::size_t>(self.rank)]);
        each_sent(next_, [&](std::int64_t at, std::int64_t sample, std::int64_t element) {
            values[static_cast<std::size_t>(at)] = value_of(step_, sample, element, false);
        });
        auto& [memory, output] = outputs_[next_];
        memory = backend::Arena(above_, kOutput);
        output = on_device(above_, memory, values);
        channel_.put(next_, output, slot);
        if (!stays()) fill(above_, output, kGone);  // the caller may reuse it at once
        in_flight_.push_back(next_++);
        std::size_t occupied = 0;
        for (int micro_batch : in_flight_) occupied += channel_.drained(micro_batch) ? 0 : 1;
        MAESTRO_CHECK(occupied <= static_cast<std::size_t>(spec_.window), "{} micro-batches in flight",
                      occupied);
        return true;
    }

    /// Until it is drained.
    bool stays() const { return spec_.pointer || (spec_.carries_gradient && !above_.shares_memory()); }

    bool take_gradient(int micro_batch) {
        if (spec_.carries_gradient) {
            const Tensor gradient = channel_.gradient(micro_batch);
            std::vector<double> expected(static_cast<std::size_t>(gradient.size()), 0.0);
            each_sent(micro_batch, [&](std::int64_t at, std::int64_t sample, std::int64_t element) {
                expected[static_cast<std::size_t>(at)] = value_of(step_, sample, element, true);
            });
            MAESTRO_CHECK(testing_support::read_elements(above_, gradient) == expected,
                          "the gradient of micro-batch {}", micro_batch);
            fill(above_, gradient, kPoison);
        }
        if (stays()) fill(above_, outputs_.at(micro_batch).second, kGone);
        channel_.retire(micro_batch);
        return true;
    }

    void receive(const Route& r) {
        if (style_.slow && dice_.up_to(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        verify(r.sample, channel_.rows(r.sample));
    }

    void verify(std::int64_t sample, const Tensor& rows) {
        const std::vector<double> found = testing_support::read_elements(below_, rows);
        const std::int64_t due = each_received(sample, [&](std::int64_t at, std::int64_t element) {
            const double value = found.at(static_cast<std::size_t>(at));
            MAESTRO_CHECK(value == value_of(step_, sample, element, false),
                          "step {}, sample {}, element {}: {}", step_, sample, element, value);
        });
        MAESTRO_CHECK(rows.dim(0) == due && rows.dim(1) == spec_.width, "{}", rows.describe());
        MAESTRO_CHECK(channel_.rows_of(sample) == due, "rows of sample {}", sample);
    }

    void answer(const Route& r) {
        const Tensor rows = channel_.rows(r.sample);
        if (dice_.up_to(1) == 0) verify(r.sample, rows);  // still whole after others came and went
        use(r.sample, rows);
        if (!spec_.pointer) fill(below_, rows, kPoison);
        if (!spec_.carries_gradient) return channel_.release(std::span(&r.sample, 1));
        if (dice_.up_to(1) == 0) channel_.release(std::span(&r.sample, 1));
        std::vector<double> values = fresh(channel_.rows_of(r.sample));
        each_received(r.sample, [&](std::int64_t at, std::int64_t element) {
            values[static_cast<std::size_t>(at)] = value_of(step_, r.sample, element, true);
        });
        const Tensor gradient = on_device(below_, gradients_, values);
        channel_.put_gradient(std::span(&r.sample, 1), gradient);
        fill(below_, gradient, kGone);
    }

    static constexpr std::size_t kOutput = 4096;  // bytes: 40 rows of 8 doubles

    const comm::Communicator& world_;
    backend::Backend& above_;  ///< of the producer
    backend::Backend& below_;
    Channel& channel_;
    const ChannelSpec& spec_;
    const StepPlan& plan_;
    std::int64_t step_;
    Style style_;
    Dice dice_;
    int batches_ = 0;
    int next_ = 0;
    int told_ = -1;  // slot by the leader
    std::vector<int> in_flight_;
    std::vector<Route> todo_;
    std::vector<Route> held_;
    std::map<int, std::pair<backend::Arena, Tensor>> outputs_;        // by micro-batch
    std::map<std::int64_t, std::pair<backend::Arena, Tensor>> used_;  // by sample
    backend::Arena gradients_{below_, kOutput}, ones_{below_, kOutput};
};

/// Returns the rows that were routed, over all steps.
std::int64_t play_steps(const comm::Communicator& world, const transport::Backends& devices, Channel& channel,
                        std::uint64_t seed) {
    Dice dice{Random(seed, "plan")};
    std::int64_t rows = 0;
    const auto& consumer = channel.consumer();
    for (std::int64_t step = 0; step < 8; ++step) {
        const StepPlan plan = plan_step(channel.spec(), dice);
        for (const auto& [sample, copies] : plan.copies) rows += static_cast<std::int64_t>(copies.size());
        channel.begin_step(step, plan.routes);
        Player(world, devices, channel, plan, step,
               {.slow = consumer && consumer->group == 0 && seed % 3 == 0,
                .ordered = channel.spec().carries_gradient && seed % 5 == 0,
                .seed = seed * 100 + static_cast<std::uint64_t>(world.rank())})
            .play();
        channel.end_step();
    }
    return rows;
}

void play_case(const comm::Communicator& world, const transport::Backends& devices, const ChannelSpec& spec,
               std::uint64_t seed, channel::TransportRequest request = channel::TransportRequest::automatic) {
    transport::Backends ends;
    if (channel::find_rank(spec.producers, world.rank())) ends.producer = devices.producer;
    if (channel::find_rank(spec.consumers, world.rank())) ends.consumer = devices.consumer;
    const auto [channels, description] =
        channel::open_channels(world, std::span(&spec, 1), request, std::span(&ends, 1));
    if (channels[0]) play_steps(world, devices, *channels[0], seed);
}

/// Some of `ranks` as groups, one after another.
channel::Side side_of(const std::vector<int>& ranks, int first, int groups, int lane) {
    channel::Side side;
    for (int r = 0; r < groups; ++r) {
        const auto begin = ranks.begin() + first + r * lane;
        side.emplace_back(begin, begin + lane);
    }
    return side;
}

std::vector<int> shuffled(const comm::Communicator& world, std::uint64_t seed) {
    std::vector<int> ranks;
    for (auto r : Random(seed, "ranks").permutation(world.size())) ranks.push_back(static_cast<int>(r));
    return ranks;
}

ChannelSpec small_spec(const std::string& name) {
    ChannelSpec spec;
    spec.name = name;
    spec.width = 3;
    spec.max_sent = 40;
    spec.max_received = 27;
    spec.max_samples = 3;
    return spec;
}

/// Groups of one rank, in every number.
void random_cases(const comm::Communicator& world, const transport::Backends& devices,
                  channel::TransportRequest request) {
    Dice dice{Random(11, "cases")};
    std::uint64_t seed = 1;
    const std::vector<DType> types = {DType::f32, DType::bf16, DType::f64};
    for (int producers = 1; producers < world.size(); ++producers)
        for (int consumers = 1; producers + consumers <= world.size(); ++consumers)
            for (int window = 1; window <= 4; ++window)
                for (bool gradient : {true, false}) {
                    if (consumers % producers != 0 && producers % consumers != 0) continue;
                    const std::vector<int> ranks = shuffled(world, seed);
                    ChannelSpec spec = small_spec("up-down");
                    spec.producers = side_of(ranks, 0, producers, 1);
                    spec.consumers = side_of(ranks, producers, consumers, 1);
                    spec.width = 1 + dice.up_to(7);
                    spec.dtype = types[seed % types.size()];
                    spec.window = window;
                    spec.carries_gradient = gradient;
                    if (seed % 4 == 0) spec.latency_s = 5e-4;
                    if (seed % 8 == 0) spec.row_s = 5e-5;
                    play_case(world, devices, spec, seed++, request);
                }
}

/// Groups of several ranks, apart or sharing some or all of their ranks with the other side.
void lane_cases(const comm::Communicator& world, const transport::Backends& devices,
                channel::TransportRequest request) {
    Dice dice{Random(12, "lanes")};
    const auto below = [&](int n) { return static_cast<int>(dice.up_to(n - 1)); };
    int shared = 0, played = 0;
    for (std::uint64_t seed = 1000; played < 24; ++seed) {
        const int up = 1 + below(4), down = 1 + below(4), fewer = 1 + below(2), more = fewer * (1 + below(3));
        const bool fans_in = below(3) == 0;  // fan-in
        const int producers = fans_in ? more : fewer, consumers = fans_in ? fewer : more;
        const int above = producers * up, under = consumers * down;
        if (std::max(above, under) > world.size() || up + down == 2) continue;
        ++played;
        const std::vector<int> ranks = shuffled(world, seed), others = shuffled(world, seed + 1);
        const bool apart = above + under <= world.size() && dice.up_to(2) > 0;
        shared += apart ? 0 : 1;
        ChannelSpec spec = small_spec("lanes");
        spec.producers = side_of(ranks, 0, producers, up);
        spec.consumers = side_of(apart ? ranks : others, apart ? above : 0, consumers, down);
        spec.dtype = seed % 2 == 0 ? DType::f32 : DType::bf16;
        spec.window = 1 + below(4);
        spec.carries_gradient = dice.up_to(2) > 0;
        if (seed % 6 == 0) spec.latency_s = 3e-4;
        play_case(world, devices, spec, seed, request);
    }
    MAESTRO_CHECK(shared > 0, "no rank was on both sides");
}

/// Tells what is put, apart from words.
class Counting final : public transport::Transport {
public:
    Counting(std::unique_ptr<transport::Transport> inner, std::int64_t& bytes)
        : inner_(std::move(inner)), bytes_(bytes) {}
    std::byte* memory() override { return inner_->memory(); }
    void put(int peer, std::size_t offset, const void* source, std::size_t bytes) override {
        bytes_ += static_cast<std::int64_t>(bytes);
        inner_->put(peer, offset, source, bytes);
    }
    void signal(int peer, std::size_t offset, std::uint64_t word) override {
        inner_->signal(peer, offset, word);
    }
    void flush(int peer) override { inner_->flush(peer); }
    std::uint64_t load(std::size_t offset) override { return inner_->load(offset); }

private:
    std::unique_ptr<transport::Transport> inner_;
    std::int64_t& bytes_;
};

/// From the first half of the ranks, which are one group, to the others.
ChannelSpec halves_of(const comm::Communicator& world, const std::string& name) {
    const int half = world.size() / 2;
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    ChannelSpec spec = small_spec(name);
    spec.producers = side_of(ranks, 0, 1, half);
    spec.consumers = side_of(ranks, half, 1, world.size() - half);
    spec.window = 2;
    return spec;
}

/// Each row crosses once, and its gradient once, whatever the layouts.
void no_row_is_put_twice(const comm::Communicator& world) {
    const ChannelSpec spec = halves_of(world, "counted");
    const std::vector<int> ranks = ranks_of(spec);
    std::int64_t bytes = 0;
    Channel channel(
        spec, world.rank(), world.waiter(),
        std::make_unique<Counting>(transport::make_messages(world.group(ranks, 5, "counted"),
                                                            rank_bytes(spec, world.rank()), 1 << 20),
                                   bytes));
    const auto device = backend::make_cpu(1);
    const std::int64_t rows = play_steps(world, {device.get(), device.get()}, channel, 77),
                       put = world.sum(bytes);
    MAESTRO_CHECK(rows > 100 && put == static_cast<std::int64_t>(2 * bytes_of_rows(spec, rows)),
                  "{} bytes for {} rows each way", put, rows);
}

/// Pinned memory that holds less than a message: what was put leaves in parts, and the host waits for room.
void little_pinned_memory_is_enough(const comm::Communicator& world, const transport::Backends& devices) {
    const ChannelSpec spec = halves_of(world, "narrow");
    const std::vector<int> ranks = ranks_of(spec);
    transport::GpuEnd end{.backends = devices,
                          .waiter = world.waiter(),
                          .edge = spec.name,
                          .flag_bytes = flag_bytes(spec),
                          .bytes = rank_bytes(spec, world.rank()),
                          .peers = std::vector<std::size_t>(ranks.size(), 0),
                          .staging = 64};
    std::string refused;
    Channel channel(
        spec, world.rank(), world.waiter(),
        transport::make_gpu_transport(
            transport::make_messages(world.group(ranks, 6, spec.name), end.bytes, 1 << 20), end, refused));
    MAESTRO_CHECK(refused.empty(), "{}", refused);
    for (std::uint64_t seed = 200; seed < 204; ++seed) play_steps(world, devices, channel, seed);
}

/// The same of the device's memory where GPUs send straight from it.
void little_device_memory_is_enough(const comm::Communicator& world, const transport::Backends& devices) {
    const ChannelSpec spec = halves_of(world, "narrow");
    const std::vector<int> ranks = ranks_of(spec);
    transport::DirectEnd end{.backends = devices,
                             .edge = spec.name,
                             .flag_bytes = flag_bytes(spec),
                             .bytes = rank_bytes(spec, world.rank()),
                             .staging = 64};
    for (const int rank : ranks) {
        end.sends.push_back(carries(spec, world.rank(), rank));
        end.receives.push_back(carries(spec, rank, world.rank()));
    }
    Channel channel(spec, world.rank(), world.waiter(),
                    transport::make_direct_transport(world.group(ranks, 7, spec.name), std::move(end)));
    for (std::uint64_t seed = 200; seed < 204; ++seed) play_steps(world, devices, channel, seed);
}

/// An exception may fly while copies are queued: they end before their memory goes.
void copies_end_before_their_memory(const comm::Communicator& world, const transport::Backends& devices) {
    const backend::Buffer rows(*devices.any(), 4096);
    for (int i = 0; i < 20; ++i)
        expect_error(ExitCode::io_error, "alone", [&] {
            const transport::GpuEnd end{.backends = devices,
                                        .waiter = world.waiter(),
                                        .edge = "left",
                                        .flag_bytes = 64,
                                        .bytes = 64 + rows.bytes(),
                                        .peers = {0},
                                        .staging = 2 * rows.bytes()};
            std::string refused;
            const auto edge = transport::make_gpu_transport(transport::make_local(end.bytes), end, refused);
            edge->set_end(transport::End::producer);
            edge->put(0, end.flag_bytes, rows.data(), rows.bytes());
            edge->flush(0);
            edge->submit(true);
            throw Error(ExitCode::io_error, "alone");
        });
}

/// An MPI that reaches GPUs is used unless another transport is requested; the log says which and why.
void gpus_use_the_right_transport(const comm::Communicator& world, const transport::Backends& devices) {
    ChannelSpec spec = small_spec("up-down");
    spec.producers = {{0}};
    spec.consumers = {{world.size() - 1}};
    const auto says = [&](channel::TransportRequest request, const std::string& words) {
        const auto open = channel::open_channels(world, std::span(&spec, 1), request, std::span(&devices, 1));
        MAESTRO_CHECK(open.description[0].find(words) != std::string::npos, "{}: not {}", open.description[0],
                      words);
    };
    if (comm::reaches_gpus())
        says(channel::TransportRequest::automatic,
             "edge up-down: by messages, because MPI reaches the GPUs of all its ranks; GPUs send straight");
    else
        says(channel::TransportRequest::automatic,
             "edge up-down: by shared memory, because MPI reaches no GPUs and all its ranks are on ");
    says(channel::TransportRequest::shared_memory, "by shared memory, because all its ranks are on ");
    says(channel::TransportRequest::messages, "by messages, because run.transport asks for it");
    spec.latency_s = 1e-4;
    says(channel::TransportRequest::automatic,
         "by shared memory, because its link is emulated and all its ranks are on");
}

void pointer_cases(const comm::Communicator& world, const transport::Backends& devices) {
    for (int window = 1; window <= 3; ++window)
        for (bool gradient : {true, false}) {
            std::vector<int> ranks(static_cast<std::size_t>(world.size()));
            std::iota(ranks.begin(), ranks.end(), 0);
            ChannelSpec spec = small_spec("pointer");
            spec.producers = spec.consumers = side_of(ranks, 0, world.size(), 1);
            spec.window = window;
            spec.carries_gradient = gradient;
            spec.pointer = true;
            play_case(world, devices, spec, 500 + static_cast<std::uint64_t>(2 * window + gradient));
        }
}

/// Ranks of one machine share a clock: nothing is seen before its time.
void emulated_links_delay(const comm::Communicator& world, channel::TransportRequest request) {
    ChannelSpec spec;
    spec.name = "slow";
    spec.producers = {{0}};
    spec.consumers = {{1}};
    spec.width = 2;
    spec.max_sent = spec.max_received = 4;
    spec.max_samples = 1;
    spec.latency_s = 0.02;
    spec.row_s = 0.01;
    const auto [channels, description] = channel::open_channels(world, std::span(&spec, 1), request);
    std::vector<float> memory(8, 1.0f);
    const Tensor rows(memory.data(), DType::f32, {4, 2});
    const Route route = testing_support::route(7, 0, 0, 0, 0, 4);
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
    spec.producers = spec.consumers = {{world.rank()}};
    spec.width = 2;
    spec.max_sent = spec.max_received = 2;
    spec.max_samples = 2;
    spec.pointer = true;
    Channel channel(spec, world.rank(), world.waiter(),
                    transport::make_local(rank_bytes(spec, world.rank())));
    const std::int64_t one = 1, two = 2;
    std::vector<float> memory(8, 1.0f);
    const Tensor output(memory.data(), DType::f32, {2, 2});
    const std::vector<Route> routes = {testing_support::route(1, 0, 0, 0, 0, 1),
                                       testing_support::route(2, 0, 1, 0, 0, 2)};
    for (const RowSegment& wrong :
         {RowSegment{1, 0, 0, 0, 1}, RowSegment{0, 0, 2, 0, 1}, RowSegment{0, 0, 0, 1, 1}}) {
        const Route route{3, 0, 0, 0, {wrong}};  // no such rank, no such row there, nor here
        expect_error(ExitCode::broken_invariant, "", [&] { channel.begin_step(0, std::span(&route, 1)); });
    }
    channel.begin_step(0, routes);
    const auto broken = ExitCode::broken_invariant;
    expect_error(broken, "", [&] { channel.put(0, output, 1); });  // no such slot
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

void edges_of(const comm::Communicator& world, const transport::Backends& devices) {
    for (const channel::TransportRequest request :
         {channel::TransportRequest::automatic, channel::TransportRequest::messages}) {
        random_cases(world, devices, request);
        if (world.size() > 1) lane_cases(world, devices, request);
    }
    pointer_cases(world, devices);
}

void opening_checks_memory(const comm::Communicator& world) {
    ChannelSpec spec;
    spec.name = "first-last";
    spec.producers = {{0}};
    spec.consumers = {{world.size() - 1}};
    spec.width = 16;
    spec.max_sent = spec.max_received = 8;
    spec.max_samples = 4;
    std::vector<ChannelSpec> specs = {spec, spec};
    const auto [channels, description] = channel::open_channels(world, specs);
    const bool member = world.rank() == 0 || world.rank() == world.size() - 1;
    MAESTRO_CHECK((channels[0] != nullptr) == member && (channels[1] != nullptr) == member, "members");
    if (world.size() >= 4) {  // edges without a common rank, each with separate memory
        specs[0].producers = {{0}};
        specs[0].consumers = {{1}};
        specs[1].producers = {{2}};
        specs[1].consumers = {{3}};
        for (int i = 0; i < 20; ++i) channel::open_channels(world, specs);
    }
    specs[1].max_received = std::int64_t{1} << 40;
    expect_error(ExitCode::bad_deck, "", [&] { channel::open_channels(world, specs); });
}

}  // namespace

int main(int argc, char** argv) {
    return maestro::test::run(argc, argv, [](const maestro::comm::Communicator& world) {
        // On a GPU, the two ends of an edge have separate streams.
        const auto above = testing_support::make_device(1, world.rank()),
                   below = testing_support::make_device(1, world.rank());
        const maestro::transport::Backends devices{above.get(), below.get()};
        edges_of(world, devices);
        if (testing_support::kOnGpu && world.size() > 1) {
            const auto cpu = backend::make_cpu(1);
            edges_of(world,
                     world.rank() % 2 == 0 ? devices : maestro::transport::Backends{cpu.get(), cpu.get()});
            copies_end_before_their_memory(world, devices);
            little_pinned_memory_is_enough(world, devices);
            gpus_use_the_right_transport(world, devices);
            if (comm::reaches_gpus()) little_device_memory_is_enough(world, devices);
        }
        misuse_is_refused(world);
        if (world.size() > 1) {
            no_row_is_put_twice(world);
            opening_checks_memory(world);
            emulated_links_delay(world, channel::TransportRequest::automatic);
            emulated_links_delay(world, channel::TransportRequest::messages);
        }
    });
}
