#include "channel/channel.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace maestro::channel {

namespace {
// An arrival or answer word: the channel's step count above, the slot below. Never 0, so zeroed memory says
// "nothing yet".
constexpr int kSlotBits = 16;
constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;

void check_side(const ChannelSpec& s, const Side& side) {
    std::vector<int> ranks;
    for (const auto& replica : side) {
        MAESTRO_CHECK(!replica.empty() && replica.size() == side.front().size(),
                      "edge {}: replicas of {} and {} ranks", s.name, side.front().size(), replica.size());
        ranks.insert(ranks.end(), replica.begin(), replica.end());
    }
    std::sort(ranks.begin(), ranks.end());
    MAESTRO_CHECK(std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(), "edge {}: a rank is twice",
                  s.name);
}

void check_spec(const ChannelSpec& s) {
    MAESTRO_CHECK(
        !s.producers.empty() && !s.consumers.empty() && s.consumers.size() % s.producers.size() == 0,
        "edge {}: {} consumers of {} producers", s.name, s.consumers.size(), s.producers.size());
    check_side(s, s.producers);
    check_side(s, s.consumers);
    MAESTRO_CHECK(s.window >= 1 && static_cast<std::uint64_t>(s.window) <= kSlotMask, "edge {}: window {}",
                  s.name, s.window);
    MAESTRO_CHECK(s.width > 0 && s.max_sent >= 0 && s.max_received >= 0 && s.max_samples >= 0,
                  "edge {}: width {}, rows {} and {}, samples {}", s.name, s.width, s.max_sent,
                  s.max_received, s.max_samples);
    MAESTRO_CHECK(!s.pointer || (s.producers == s.consumers && s.producers.front().size() == 1),
                  "edge {}: a pointer between different ranks", s.name);
}

void add_once(std::vector<int>& ranks, int rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
}
}  // namespace

Channel::Channel(ChannelSpec spec, int rank, comm::Waiter& waiter,
                 std::unique_ptr<transport::Transport> transport)
    : spec_(std::move(spec)), waiter_(&waiter), transport_(std::move(transport)), rank_(rank) {
    check_spec(spec_);
    producer_ = seat_on(spec_.producers, rank);
    consumer_ = seat_on(spec_.consumers, rank);
    MAESTRO_CHECK(producer_ || consumer_, "edge {}: rank {} takes no part", spec_.name, rank);
    free_.assign(static_cast<std::size_t>(spec_.window), true);
    if (spec_.pointer) {
        peers_[rank] = {0, gradients_offset(spec_, rank)};
        return;
    }
    const std::vector<int> ranks = ranks_of(spec_);
    for (std::size_t i = 0; i < ranks.size(); ++i)
        peers_[ranks[i]] = {static_cast<int>(i), gradients_offset(spec_, ranks[i])};
}

Channel::~Channel() = default;

std::size_t Channel::row_in_slot(int slot, std::int64_t row) const {
    return words_bytes(spec_) + bytes_of_rows(spec_, slot * spec_.max_received + row);
}

std::size_t Channel::row_in_gradient(const Peer& peer, int slot, std::int64_t row) const {
    return peer.gradients + bytes_of_rows(spec_, slot * spec_.max_sent + row);
}

Channel::Receipt& Channel::receipt(std::int64_t sample) {
    const auto at = receipts_.find(sample);
    MAESTRO_CHECK(at != receipts_.end(), "edge {}, step {}: sample {} is not for this rank", spec_.name,
                  step_, sample);
    return at->second;
}

const Channel::Receipt& Channel::receipt(std::int64_t sample) const {
    return const_cast<Channel*>(this)->receipt(sample);
}

Channel::Flight& Channel::flight(int micro_batch) {
    const auto at = flights_.find(micro_batch);
    MAESTRO_CHECK(at != flights_.end() && at->second.put, "edge {}, step {}: micro-batch {} was not put",
                  spec_.name, step_, micro_batch);
    return at->second;
}

void Channel::begin_step(std::int64_t step, std::span<const Route> routes) {
    MAESTRO_CHECK(!open_, "edge {}: step {} is still open", spec_.name, step_);
    Manifest manifest = manifest_of(spec_, rank_, routes);
    step_ = step;
    open_ = true;
    ++epoch_;
    for (auto& [micro_batch, samples] : manifest.out) flights_[micro_batch].samples = std::move(samples);
    for (auto& [sample, due] : manifest.in) receipts_[sample].due = std::move(due);
}

void Channel::end_step() {
    MAESTRO_CHECK(open_, "edge {}: no step is open", spec_.name);
    for (auto& [micro_batch, flight] : flights_) {
        MAESTRO_CHECK(flight.put, "edge {}, step {}: micro-batch {} was never put", spec_.name, step_,
                      micro_batch);
        if (!spec_.carries_gradient && !flight.retired) {
            wait_drained(micro_batch);
            retire(micro_batch);
        }
        MAESTRO_CHECK(flight.retired, "edge {}, step {}: micro-batch {} was never retired", spec_.name, step_,
                      micro_batch);
    }
    for (const auto& [sample, receipt] : receipts_)
        MAESTRO_CHECK(receipt.answered, "edge {}, step {}: sample {} was never {}", spec_.name, step_, sample,
                      spec_.carries_gradient ? "given a gradient" : "released");
    const auto free = std::count(free_.begin(), free_.end(), true);
    MAESTRO_CHECK(free == spec_.window, "edge {}, step {}: {} of {} slots are free", spec_.name, step_, free,
                  spec_.window);
    flights_.clear();
    receipts_.clear();
    open_ = false;
}

void Channel::collect_drained() {
    if (spec_.carries_gradient) return;
    for (auto& [micro_batch, flight] : flights_)
        if (flight.put && !flight.retired && drained(micro_batch)) retire(micro_batch);
}

bool Channel::has_credit() {
    const auto any = [this] { return std::find(free_.begin(), free_.end(), true) != free_.end(); };
    if (!any()) collect_drained();
    return any();
}

bool Channel::slot_free(int slot) {
    MAESTRO_CHECK(slot >= 0 && slot < spec_.window, "edge {}: slot {} of {}", spec_.name, slot, spec_.window);
    if (!free_[slot]) collect_drained();
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
    Flight& flight = flights_[micro_batch];
    MAESTRO_CHECK(!flight.put, "edge {}, step {}: micro-batch {} is put twice", spec_.name, step_,
                  micro_batch);
    if (slot < 0) slot = free_slot();
    MAESTRO_CHECK(slot_free(slot), "edge {}, step {}: slot {} for micro-batch {} is not free", spec_.name,
                  step_, slot, micro_batch);
    free_[slot] = false;
    flight.slot = slot;
    flight.put = true;
    flight.output = output;
    flight.rows = output.dim(0);

    transport_->serve(transport::End::producer);
    std::int64_t routed = 0;
    for (const Outbound& sample : flight.samples)
        for (const Stretch& s : sample.stretches) {
            MAESTRO_CHECK(s.own + s.rows <= flight.rows, "edge {}: sample {} ends at row {} of {}",
                          spec_.name, sample.sample, s.own + s.rows, flight.rows);
            routed += s.rows;
        }
    if (spec_.carries_gradient && routed != flight.rows)  // rows that nobody answers; before anybody can
        transport_->clear(row_in_gradient(peers_.at(rank_), slot, 0), bytes_of_rows(spec_, flight.rows));
    send(flight);
}

void Channel::send(const Flight& flight) {
    std::vector<int> told;
    for (const Outbound& sample : flight.samples) {
        for (const Stretch& s : sample.stretches) {
            if (spec_.pointer) continue;
            const Tensor part = flight.output.slice(s.own, s.own + s.rows);
            transport_->put(peers_.at(s.rank).number, row_in_slot(flight.slot, s.other), part.data,
                            part.bytes());
        }
        for (const Pair& pair : sample.pairs) {
            transport_->signal(peers_.at(pair.rank).number, pair.arrival, tagged(flight.slot));
            add_once(told, pair.rank);
        }
    }
    // What gradients answer stays as it is until they are here.
    push(told, !spec_.carries_gradient);
}

void Channel::push(const std::vector<int>& told, bool reuse) {
    for (const int rank : told) transport_->push(peers_.at(rank).number);
    transport_->depart(reuse);
}

bool Channel::answered(const Pair& pair) {
    return transport_->load(pair.answer) >> kSlotBits == epoch_;
}

bool Channel::drained(int micro_batch) {
    Flight& found = flight(micro_batch);
    if (found.drained) return true;
    for (const Outbound& sample : found.samples)
        for (const Pair& pair : sample.pairs)
            if (!answered(pair)) return false;
    found.drained = true;
    if (spec_.carries_gradient)
        fetch_gradient(found);
    else
        follow_answers(found);
    return true;
}

void Channel::follow_answers(const Flight& flight) {
    transport_->serve(transport::End::producer);
    for (const Outbound& sample : flight.samples)
        for (const Pair& pair : sample.pairs) transport_->follow(pair.answer);
}

/// Rows without a route are zero already.
void Channel::fetch_gradient(const Flight& flight) {
    const Peer& own = peers_.at(rank_);
    for (const Outbound& sample : flight.samples)
        for (const Stretch& s : sample.stretches)
            transport_->fetch(row_in_gradient(own, flight.slot, s.own), bytes_of_rows(spec_, s.rows));
}

Tensor Channel::gradient(int micro_batch) {
    const Flight& found = flight(micro_batch);
    MAESTRO_CHECK(spec_.carries_gradient && !found.retired && drained(micro_batch),
                  "edge {}, step {}: no gradient of micro-batch {}", spec_.name, step_, micro_batch);
    follow_answers(found);
    return {transport_->fetched(row_in_gradient(peers_.at(rank_), found.slot, 0)),
            spec_.dtype,
            {found.rows, spec_.width}};
}

void Channel::retire(int micro_batch) {
    Flight& found = flight(micro_batch);
    if (found.retired && !spec_.carries_gradient) return;  // came back by itself
    MAESTRO_CHECK(!found.retired && drained(micro_batch), "edge {}, step {}: micro-batch {} cannot retire",
                  spec_.name, step_, micro_batch);
    found.retired = true;
    free_[found.slot] = true;
}

bool Channel::expects(std::int64_t sample) const {
    return receipts_.contains(sample);
}

std::int64_t Channel::rows_of(std::int64_t sample) const {
    return receipt(sample).due.rows;
}

/// The first that has not come; null: all have, and `slot` is theirs.
const Pair* Channel::missing_arrival(const Receipt& receipt) {
    for (const Pair& pair : receipt.due.pairs)
        if (transport_->load(pair.arrival) >> kSlotBits != epoch_) return &pair;
    return nullptr;
}

bool Channel::arrived(std::int64_t sample) {
    Receipt& in = receipt(sample);
    if (in.arrived) return true;
    if (missing_arrival(in)) return false;
    for (const Pair& pair : in.due.pairs) {
        const int slot = static_cast<int>(transport_->load(pair.arrival) & kSlotMask);
        MAESTRO_CHECK(in.slot < 0 || in.slot == slot, "edge {}, step {}: sample {} in slots {} and {}",
                      spec_.name, step_, sample, in.slot, slot);
        in.slot = slot;
    }
    in.arrived = true;
    if (!spec_.pointer && in.due.rows > 0)
        transport_->fetch(row_in_slot(in.slot, in.due.first_row), bytes_of_rows(spec_, in.due.rows));
    return true;
}

Tensor Channel::rows(std::int64_t sample) {
    const Receipt& in = receipt(sample);
    MAESTRO_CHECK(arrived(sample) && !in.released, "edge {}, step {}: sample {} is not here", spec_.name,
                  step_, sample);
    const Inbound& due = in.due;
    transport_->serve(transport::End::consumer);
    for (const Pair& pair : due.pairs) transport_->follow(pair.arrival);
    if (due.rows == 0) return {nullptr, spec_.dtype, {0, spec_.width}};
    if (spec_.pointer) {
        const std::int64_t first = due.stretches.front().other;
        return flight(due.producer_micro_batch).output.slice(first, first + due.rows);
    }
    return {transport_->fetched(row_in_slot(in.slot, due.first_row)), spec_.dtype, {due.rows, spec_.width}};
}

void Channel::release(std::span<const std::int64_t> samples) {
    transport_->serve(transport::End::consumer);
    std::vector<int> told;
    for (const std::int64_t sample : samples) {
        Receipt& in = receipt(sample);
        MAESTRO_CHECK(arrived(sample) && !in.released,
                      "edge {}, step {}: sample {} is released twice or too early", spec_.name, step_,
                      sample);
        in.released = true;
        if (!spec_.carries_gradient) answer(in, told);
    }
    push(told, true);
}

void Channel::put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient) {
    transport_->serve(transport::End::consumer);
    std::vector<int> told;
    std::int64_t row = 0;
    for (const std::int64_t sample : samples) {
        Receipt& in = receipt(sample);
        const std::int64_t rows = in.due.rows;
        MAESTRO_CHECK(spec_.carries_gradient && arrived(sample) && !in.answered,
                      "edge {}, step {}: no gradient of sample {} is due", spec_.name, step_, sample);
        MAESTRO_CHECK(rows == 0 || (gradient.rank == 2 && gradient.dtype == spec_.dtype &&
                                    gradient.dim(0) >= row + rows && gradient.columns() == spec_.width),
                      "edge {}: the gradient of sample {} is {}, not rows {}..{} of {}[., {}]", spec_.name,
                      sample, gradient.describe(), row, row + rows, name_of(spec_.dtype), spec_.width);
        in.released = true;
        for (const Stretch& s : in.due.stretches) {
            const Tensor part = gradient.slice(row + s.own, row + s.own + s.rows);
            const Peer& peer = peers_.at(s.rank);
            transport_->put(peer.number, row_in_gradient(peer, in.slot, s.other), part.data, part.bytes());
        }
        answer(in, told);
        row += rows;
    }
    push(told, true);
}

void Channel::answer(Receipt& receipt, std::vector<int>& told) {
    for (const Pair& pair : receipt.due.pairs) {
        transport_->signal(peers_.at(pair.rank).number, pair.answer, tagged(receipt.slot));
        add_once(told, pair.rank);
    }
    receipt.answered = true;
}

std::uint64_t Channel::tagged(int slot) const {
    return epoch_ << kSlotBits | static_cast<std::uint64_t>(slot);
}

void Channel::wait_credit(int slot) {
    waiter_->wait_until([&] { return slot < 0 ? has_credit() : slot_free(slot); },
                        [&] {
                            std::string held;
                            for (const auto& [micro_batch, flight] : flights_)
                                if (flight.put && !flight.retired && (slot < 0 || flight.slot == slot))
                                    held += "; " + unanswered(micro_batch, flight);
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
                                               unanswered(micro_batch, flight(micro_batch)));
                        });
}

void Channel::wait_arrived(std::int64_t sample) {
    waiter_->wait_until([&] { return arrived(sample); },
                        [&] {
                            const Receipt& in = receipt(sample);
                            const Pair* pair = missing_arrival(in);
                            return fmt::format("edge {}, step {}: sample {} in micro-batch {} of rank {}",
                                               spec_.name, step_, sample, in.due.producer_micro_batch,
                                               pair ? pair->rank : -1);
                        });
}

std::string Channel::unanswered(int micro_batch, const Flight& flight) {
    std::string left;
    for (const Outbound& sample : flight.samples)
        for (const Pair& pair : sample.pairs)
            if (!answered(pair))
                left +=
                    fmt::format("{}sample {} at rank {}", left.empty() ? "" : ", ", sample.sample, pair.rank);
    return fmt::format("{} of micro-batch {}: {}", spec_.carries_gradient ? "gradients" : "release",
                       micro_batch, left);
}

}  // namespace maestro::channel
