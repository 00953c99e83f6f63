#include "channel/channel.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace maestro::channel {

namespace {
// The value of a flag: the number of begin_step() calls in the upper bits, the number of the micro-batch in
// the lower ones. Flags are never reset: a flag that still has the numbers of another micro-batch counts as
// not set. Resetting them would need a barrier per step, since a peer that is ahead may already be setting
// them for the next one. The number of a step is never 0, the value of fresh memory, and does not overflow in
// four billion steps.
constexpr int kMicroBatchBits = 32;

void check_side(const ChannelSpec& s, const Side& side) {
    std::vector<int> ranks;
    for (const auto& group : side) {
        MAESTRO_CHECK(!group.empty() && group.size() == side.front().size(),
                      "edge {}: replica groups of {} and {} ranks", s.name, side.front().size(),
                      group.size());
        ranks.insert(ranks.end(), group.begin(), group.end());
    }
    std::sort(ranks.begin(), ranks.end());
    MAESTRO_CHECK(std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(),
                  "edge {}: a rank is in two replica groups", s.name);
}

void check_spec(const ChannelSpec& s) {
    MAESTRO_CHECK(
        !s.producers.empty() && !s.consumers.empty() &&
            (s.consumers.size() % s.producers.size() == 0 || s.producers.size() % s.consumers.size() == 0),
        "edge {}: {} consumers of {} producers", s.name, s.consumers.size(), s.producers.size());
    check_side(s, s.producers);
    check_side(s, s.consumers);
    MAESTRO_CHECK(s.window >= 1, "edge {}: window {}", s.name, s.window);
    MAESTRO_CHECK(s.width > 0 && s.max_sent >= 0 && s.max_received >= 0 && s.max_samples >= 0,
                  "edge {}: width {}, rows {} and {}, samples {}", s.name, s.width, s.max_sent,
                  s.max_received, s.max_samples);
    MAESTRO_CHECK(!s.pointer || (s.producers == s.consumers && s.producers.front().size() == 1),
                  "edge {}: a pointer between different ranks", s.name);
}

/// Returns whether the rank is a new one.
bool add_once(std::vector<int>& ranks, int rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return false;
    ranks.push_back(rank);
    return true;
}
}  // namespace

Channel::Channel(ChannelSpec spec, int rank, comm::Waiter& waiter,
                 std::unique_ptr<transport::Transport> transport)
    : spec_(std::move(spec)), waiter_(&waiter), transport_(std::move(transport)), rank_(rank) {
    check_spec(spec_);
    producer_ = find_rank(spec_.producers, rank);
    consumer_ = find_rank(spec_.consumers, rank);
    MAESTRO_CHECK(producer_ || consumer_, "edge {}: rank {} is at neither end", spec_.name, rank);
    free_.assign(static_cast<std::size_t>(spec_.window), true);
    if (spec_.pointer) {  // a transport within one rank has the one peer 0
        peers_[rank] = {0, gradients_offset(spec_, rank)};
        return;
    }
    // The communicator of the edge was made of this list, so a rank's place in it is its number there. Where
    // the gradients of a peer begin depends on whether that peer is a consumer too.
    const std::vector<int> ranks = ranks_of(spec_);
    for (std::size_t i = 0; i < ranks.size(); ++i)
        peers_[ranks[i]] = {static_cast<int>(i), gradients_offset(spec_, ranks[i])};
}

Channel::~Channel() = default;

std::size_t Channel::row_offset(int source, int slot, std::int64_t row) const {
    const std::int64_t slots_before = std::int64_t{source} * spec_.window + slot;
    return flag_bytes(spec_) + bytes_of_rows(spec_, slots_before * spec_.max_received + row);
}

std::size_t Channel::gradient_offset(const Peer& peer, int slot, std::int64_t row) const {
    return peer.gradients + bytes_of_rows(spec_, slot * spec_.max_sent + row);
}

Channel::Received& Channel::received(std::int64_t sample) {
    const auto at = received_.find(sample);
    MAESTRO_CHECK(at != received_.end(), "edge {}, step {}: sample {} is not for this rank", spec_.name,
                  step_, sample);
    return at->second;
}

const Channel::Received& Channel::received(std::int64_t sample) const {
    return const_cast<Channel*>(this)->received(sample);
}

Channel::InFlight& Channel::in_flight(int micro_batch) {
    const auto at = in_flight_.find(micro_batch);
    MAESTRO_CHECK(at != in_flight_.end() && at->second.put, "edge {}, step {}: micro-batch {} was not put",
                  spec_.name, step_, micro_batch);
    return at->second;
}

// Peers may be in the next step already and put into this rank's slots before it begins the step. That does
// no harm:
// - Slots: a producer fills a slot again only after this rank has acknowledged the rows that were in it.
// - Flags: no peer overwrites one that this rank has yet to read. They belong to a slot: a producer sets the
//   arrivals of a slot again after it has seen all acknowledgements of the micro-batch that was in it, and a
//   consumer acknowledges a sample after its producer has put it there.
// - Numbers: every rank of the edge begins every step, so all count the same steps without a message.
void Channel::begin_step(std::int64_t step, std::span<const Route> routes) {
    MAESTRO_CHECK(!open_, "edge {}: step {} is still open", spec_.name, step_);
    Manifest manifest = manifest_of(spec_, rank_, routes);
    step_ = step;
    open_ = true;
    ++epoch_;
    for (auto& [micro_batch, samples] : manifest.sends) in_flight_[micro_batch].samples = std::move(samples);
    for (auto& [sample, plan] : manifest.receives) received_[sample].plan = std::move(plan);
}

void Channel::end_step() {
    MAESTRO_CHECK(open_, "edge {}: no step is open", spec_.name);
    for (auto& [micro_batch, batch] : in_flight_) {
        MAESTRO_CHECK(batch.put, "edge {}, step {}: micro-batch {} was never put", spec_.name, step_,
                      micro_batch);
        // An acknowledgement that came after the next begin_step() would carry an old number and never count,
        // and its slot would stay occupied. This rank has put and released everything by now, so no two ranks
        // wait here for each other.
        if (!spec_.carries_gradient && !batch.retired) {
            wait_drained(micro_batch);
            retire(micro_batch);
        }
        MAESTRO_CHECK(batch.retired, "edge {}, step {}: micro-batch {} was never retired", spec_.name, step_,
                      micro_batch);
    }
    for (const auto& [sample, in] : received_)
        MAESTRO_CHECK(in.acked, "edge {}, step {}: sample {} was never {}", spec_.name, step_, sample,
                      spec_.carries_gradient ? "answered with a gradient" : "released");
    const auto free = std::count(free_.begin(), free_.end(), true);
    MAESTRO_CHECK(free == spec_.window, "edge {}, step {}: {} of {} slots are free", spec_.name, step_, free,
                  spec_.window);
    in_flight_.clear();
    received_.clear();
    open_ = false;
}

/// On an edge without gradients nobody calls retire(): slots become free here, when a producer asks for one.
/// With gradients the caller still reads them from the slot until it retires it.
void Channel::retire_drained() {
    if (spec_.carries_gradient) return;
    for (auto& [micro_batch, batch] : in_flight_)
        if (batch.put && !batch.retired && drained(micro_batch)) retire(micro_batch);
}

bool Channel::has_credit() {
    const auto any = [this] { return std::find(free_.begin(), free_.end(), true) != free_.end(); };
    if (!any()) retire_drained();
    return any();
}

bool Channel::slot_free(int slot) {
    MAESTRO_CHECK(slot >= 0 && slot < spec_.window, "edge {}: slot {} of {}", spec_.name, slot, spec_.window);
    if (!free_[slot]) retire_drained();
    return free_[slot];
}

int Channel::free_slot() {
    MAESTRO_CHECK(has_credit(), "edge {}, step {}: no credit", spec_.name, step_);
    return static_cast<int>(std::find(free_.begin(), free_.end(), true) - free_.begin());
}

void Channel::put(int micro_batch, const Tensor& output, int slot) {
    MAESTRO_CHECK(open_ && producer_, "edge {}: put by a rank that is no producer or outside a step",
                  spec_.name);
    MAESTRO_CHECK(output.rank == 2 && output.dtype == spec_.dtype && output.columns() == spec_.width &&
                      output.dim(0) <= spec_.max_sent,
                  "edge {}: {} does not fit {}[<= {}, {}]", spec_.name, output.describe(),
                  name_of(spec_.dtype), spec_.max_sent, spec_.width);
    InFlight& batch = in_flight_[micro_batch];
    MAESTRO_CHECK(!batch.put, "edge {}, step {}: micro-batch {} is put twice", spec_.name, step_,
                  micro_batch);
    if (slot < 0) slot = free_slot();
    MAESTRO_CHECK(slot_free(slot), "edge {}, step {}: slot {} for micro-batch {} is not free", spec_.name,
                  step_, slot, micro_batch);
    // The slot is free in the memory of all consumers at once: every rank that received rows of the last
    // micro-batch in it, from whichever rank of this group, has acknowledged them to this rank.
    free_[slot] = false;
    batch.slot = slot;
    batch.flag = flag_value(micro_batch);
    batch.put = true;
    batch.output = output;
    batch.rows = output.dim(0);

    transport_->set_end(transport::End::producer);
    std::int64_t routed = 0;
    for (const SampleSend& sample : batch.samples)
        for (const CopySegment& s : sample.segments) {
            MAESTRO_CHECK(s.local + s.rows <= batch.rows, "edge {}: sample {} ends at row {} of {}",
                          spec_.name, sample.sample, s.local + s.rows, batch.rows);
            routed += s.rows;
        }
    // No consumer returns a gradient for rows without a route, and the slot still holds an older one, so it
    // is zeroed. This has to precede send(): afterwards a fast consumer may already be putting gradients
    // there.
    if (spec_.carries_gradient && routed != batch.rows)
        transport_->zero(gradient_offset(peers_.at(rank_), slot, 0), bytes_of_rows(spec_, batch.rows));
    send(batch);
}

void Channel::send(const InFlight& batch) {
    const int source = source_of(spec_, producer_->group);
    std::vector<int> peers;
    for (const SampleSend& sample : batch.samples)
        for (const CopySegment& s : sample.segments) {
            if (spec_.pointer) continue;  // the consumer reads `output` itself, and needs the flags alone
            const Tensor part = batch.output.slice(s.local, s.local + s.rows);
            transport_->put(peers_.at(s.peer).number, row_offset(source, batch.slot, s.remote), part.data,
                            part.bytes());
        }
    // One flag for all samples that a peer receives, and one flush per peer, which makes one message of the
    // whole micro-batch.
    for (const SampleSend& sample : batch.samples)
        for (const FlagPair& flag : sample.flags)
            if (add_once(peers, flag.peer))
                transport_->signal(peers_.at(flag.peer).number, arrival_of(flag, batch.slot), batch.flag);
    // On an edge with gradients, the caller keeps the output valid until drained(), that is, until consumers
    // have received its rows. So nobody overwrites them before they are sent, and a GPU need neither copy
    // them nor make later operations wait.
    flush(peers, !spec_.carries_gradient);
}

void Channel::flush(const std::vector<int>& peers, bool reuse) {
    for (const int rank : peers) transport_->flush(peers_.at(rank).number);
    transport_->submit(reuse);
}

bool Channel::acked(const InFlight& batch, const FlagPair& flag) {
    return transport_->load(ack_of(flag, batch.slot)) == batch.flag;
}

// An acknowledgement also means that the gradient has arrived, because a transport shows a flag only after
// everything that was put before it.
bool Channel::drained(int micro_batch) {
    InFlight& batch = in_flight(micro_batch);
    if (batch.drained) return true;
    for (const SampleSend& sample : batch.samples)
        for (const FlagPair& flag : sample.flags)
            if (!acked(batch, flag)) return false;
    batch.drained = true;
    // Where a pointer was passed, operations of the consumer may still be reading the output on the GPU.
    // Those that the producer issues from now on, which may overwrite it, have to wait for them.
    if (spec_.carries_gradient)
        copy_gradient_to_device(batch);
    else
        wait_for_acks_on_device(batch);
    return true;
}

void Channel::wait_for_acks_on_device(const InFlight& batch) {
    transport_->set_end(transport::End::producer);
    for (const SampleSend& sample : batch.samples)
        for (const FlagPair& flag : sample.flags) transport_->wait_on_device(ack_of(flag, batch.slot));
}

/// Segment by segment and not as one block: rows without a route were zeroed on the device, and the host's
/// memory does not have those zeros.
void Channel::copy_gradient_to_device(const InFlight& batch) {
    const Peer& self = peers_.at(rank_);
    for (const SampleSend& sample : batch.samples)
        for (const CopySegment& s : sample.segments)
            transport_->copy_to_device(gradient_offset(self, batch.slot, s.local),
                                       bytes_of_rows(spec_, s.rows));
}

Tensor Channel::gradient(int micro_batch) {
    const InFlight& batch = in_flight(micro_batch);
    MAESTRO_CHECK(spec_.carries_gradient && !batch.retired && drained(micro_batch),
                  "edge {}, step {}: no gradient of micro-batch {}", spec_.name, step_, micro_batch);
    // The host has seen the acknowledgements, but a device may not have written the gradient yet.
    wait_for_acks_on_device(batch);
    return {transport_->rows_at(gradient_offset(peers_.at(rank_), batch.slot, 0)),
            spec_.dtype,
            {batch.rows, spec_.width}};
}

void Channel::retire(int micro_batch) {
    InFlight& batch = in_flight(micro_batch);
    if (batch.retired && !spec_.carries_gradient) return;  // retire_drained() has done so
    MAESTRO_CHECK(!batch.retired && drained(micro_batch), "edge {}, step {}: micro-batch {} cannot retire",
                  spec_.name, step_, micro_batch);
    batch.retired = true;
    free_[batch.slot] = true;
}

bool Channel::expects(std::int64_t sample) const {
    return received_.contains(sample);
}

std::int64_t Channel::rows_of(std::int64_t sample) const {
    return received(sample).plan.rows;
}

/// The first flag that is not set; null if all producer ranks have announced the micro-batch. All are needed,
/// even those of ranks that send no rows: see FlagPair.
const FlagPair* Channel::missing_arrival(Received& in) {
    const std::uint64_t value = flag_value(in.plan.producer_micro_batch);
    for (const FlagPair& flag : in.plan.flags) {
        const int slot = transport_->find(flag.arrival, spec_.window, value);
        if (slot < 0) return &flag;
        // All ranks of the producer's group write into one slot. If they had chosen different ones, this
        // rank would read old rows where another rank's belong.
        MAESTRO_CHECK(in.slot < 0 || in.slot == slot, "edge {}, step {}: micro-batch {} in slots {} and {}",
                      spec_.name, step_, in.plan.producer_micro_batch, in.slot, slot);
        in.slot = slot;
    }
    return nullptr;
}

bool Channel::arrived(std::int64_t sample) {
    Received& in = received(sample);
    if (in.arrived) return true;
    if (missing_arrival(in)) return false;
    in.arrived = true;
    // Here and not in rows(): the copy then runs beside the operations that are issued before the rows are
    // needed, and it is issued only once.
    if (!spec_.pointer && in.plan.rows > 0)
        transport_->copy_to_device(row_offset(in.plan.source, in.slot, in.plan.first_row),
                                   bytes_of_rows(spec_, in.plan.rows));
    return true;
}

Tensor Channel::rows(std::int64_t sample) {
    const Received& in = received(sample);
    MAESTRO_CHECK(arrived(sample) && !in.released, "edge {}, step {}: sample {} has not arrived", spec_.name,
                  step_, sample);
    const SampleReceive& plan = in.plan;
    transport_->set_end(transport::End::consumer);
    for (const FlagPair& flag : plan.flags) transport_->wait_on_device(arrival_of(flag, in.slot));
    if (plan.rows == 0) return {nullptr, spec_.dtype, {0, spec_.width}};
    if (spec_.pointer) {  // the producer's tensor itself, which stays valid until drained(), in one segment
        const std::int64_t first = plan.segments.front().remote;
        return in_flight(plan.producer_micro_batch).output.slice(first, first + plan.rows);
    }
    return {transport_->rows_at(row_offset(plan.source, in.slot, plan.first_row)),
            spec_.dtype,
            {plan.rows, spec_.width}};
}

void Channel::release(std::span<const std::int64_t> samples) {
    transport_->set_end(transport::End::consumer);
    std::vector<int> peers;
    for (const std::int64_t sample : samples) {
        Received& in = received(sample);
        MAESTRO_CHECK(arrived(sample) && !in.released,
                      "edge {}, step {}: sample {} is released twice or too early", spec_.name, step_,
                      sample);
        in.released = true;
        if (!spec_.carries_gradient) ack(in, peers);
    }
    flush(peers, true);
}

// Gradients go to the slot that the rows came from, which the producer holds until it retires the
// micro-batch. So returning them needs no credit, and a consumer can always finish what it has received:
// credits cannot deadlock. Every row has one route, so no two consumers write to the same place of a slot.
void Channel::put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient) {
    transport_->set_end(transport::End::consumer);
    std::vector<int> peers;
    std::int64_t row = 0;
    for (const std::int64_t sample : samples) {
        Received& in = received(sample);
        const std::int64_t rows = in.plan.rows;
        MAESTRO_CHECK(spec_.carries_gradient && arrived(sample) && !in.acked,
                      "edge {}, step {}: no gradient of sample {} is expected", spec_.name, step_, sample);
        MAESTRO_CHECK(rows == 0 || (gradient.rank == 2 && gradient.dtype == spec_.dtype &&
                                    gradient.dim(0) >= row + rows && gradient.columns() == spec_.width),
                      "edge {}: the gradient of sample {} is {}, not rows {}..{} of {}[., {}]", spec_.name,
                      sample, gradient.describe(), row, row + rows, name_of(spec_.dtype), spec_.width);
        in.released = true;  // once this is acknowledged, the producer may fill the slot again
        for (const CopySegment& s : in.plan.segments) {
            const Tensor part = gradient.slice(row + s.local, row + s.local + s.rows);
            const Peer& peer = peers_.at(s.peer);
            transport_->put(peer.number, gradient_offset(peer, in.slot, s.remote), part.data, part.bytes());
        }
        ack(in, peers);
        row += rows;
    }
    flush(peers, true);
}

/// Acknowledges to every rank of the producer's group, also to those that sent no rows: see FlagPair. The
/// caller flushes, after all samples, so that a peer gets one message.
void Channel::ack(Received& in, std::vector<int>& peers) {
    for (const FlagPair& flag : in.plan.flags) {
        transport_->signal(peers_.at(flag.peer).number, ack_of(flag, in.slot),
                           flag_value(in.plan.producer_micro_batch));
        add_once(peers, flag.peer);
    }
    in.acked = true;
}

std::uint64_t Channel::flag_value(int micro_batch) const {
    return epoch_ << kMicroBatchBits | static_cast<std::uint64_t>(micro_batch);
}

std::size_t Channel::arrival_of(const FlagPair& flag, int slot) {
    return flag.arrival + sizeof(std::uint64_t) * static_cast<std::size_t>(slot);
}

std::size_t Channel::ack_of(const FlagPair& flag, int slot) const {
    return flag.ack + sizeof(std::uint64_t) * slot_ack_count(spec_) * static_cast<std::size_t>(slot);
}

void Channel::wait_credit(int slot) {
    waiter_->wait_until([&] { return slot < 0 ? has_credit() : slot_free(slot); },
                        [&] {
                            std::string held;
                            for (const auto& [micro_batch, batch] : in_flight_)
                                if (batch.put && !batch.retired && (slot < 0 || batch.slot == slot))
                                    held += "; " + describe_missing_acks(micro_batch, batch);
                            return slot < 0 ? fmt::format("edge {}, step {}: one of {} slots{}", spec_.name,
                                                          step_, spec_.window, held)
                                            : fmt::format("edge {}, step {}: slot {}{}", spec_.name, step_,
                                                          slot, held);
                        });
}

void Channel::wait_drained(int micro_batch) {
    waiter_->wait_until([&] { return drained(micro_batch); },
                        [&] {
                            return fmt::format("edge {}, step {}: {}", spec_.name, step_,
                                               describe_missing_acks(micro_batch, in_flight(micro_batch)));
                        });
}

void Channel::wait_arrived(std::int64_t sample) {
    waiter_->wait_until([&] { return arrived(sample); },
                        [&] {
                            Received& in = received(sample);
                            const FlagPair* flag = missing_arrival(in);
                            return fmt::format("edge {}, step {}: sample {} in micro-batch {} of rank {}",
                                               spec_.name, step_, sample, in.plan.producer_micro_batch,
                                               flag ? flag->peer : -1);
                        });
}

std::string Channel::describe_missing_acks(int micro_batch, const InFlight& batch) {
    std::string left;
    for (const SampleSend& sample : batch.samples)
        for (const FlagPair& flag : sample.flags)
            if (!acked(batch, flag))
                left +=
                    fmt::format("{}sample {} at rank {}", left.empty() ? "" : ", ", sample.sample, flag.peer);
    return fmt::format("{} of micro-batch {}: {}", spec_.carries_gradient ? "gradients" : "release",
                       micro_batch, left);
}

}  // namespace maestro::channel
