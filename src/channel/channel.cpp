#include "channel/channel.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace maestro::channel {

namespace {
// An arrival or answer word: the channel's step count above, the slot below. Never 0, so zeroed memory says
// "nothing yet".
constexpr int kSlotBits = 16;
constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
constexpr std::size_t kWord = sizeof(std::uint64_t);

void check_spec(const ChannelSpec& s) {
    MAESTRO_CHECK(
        !s.producers.empty() && !s.consumers.empty() && s.consumers.size() % s.producers.size() == 0,
        "edge {}: {} consumers of {} producers", s.name, s.consumers.size(), s.producers.size());
    MAESTRO_CHECK(s.window >= 1 && static_cast<std::uint64_t>(s.window) <= kSlotMask, "edge {}: window {}",
                  s.name, s.window);
    MAESTRO_CHECK(s.width > 0 && s.max_rows >= 0 && s.max_samples >= 0,
                  "edge {}: width {}, rows {}, samples {}", s.name, s.width, s.max_rows, s.max_samples);
    MAESTRO_CHECK(!s.colocated || s.producers == s.consumers, "edge {}: colocated on different ranks",
                  s.name);
    for (int rank : s.producers)
        MAESTRO_CHECK(s.colocated || replica_on(s.consumers, rank) < 0, "edge {}: rank {} is on both sides",
                      s.name, rank);
}
}  // namespace

Channel::Channel(ChannelSpec spec, int rank, comm::Waiter& waiter, std::unique_ptr<Transport> transport)
    : spec_(std::move(spec)), waiter_(&waiter), transport_(std::move(transport)) {
    check_spec(spec_);
    producer_ = replica_on(spec_.producers, rank);
    consumer_ = replica_on(spec_.consumers, rank);
    MAESTRO_CHECK(producer_ >= 0 || consumer_ >= 0, "edge {}: rank {} takes no part", spec_.name, rank);
    fanout_ = static_cast<int>(spec_.consumers.size() / spec_.producers.size());
    for (int slot = spec_.window - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Channel::~Channel() = default;

std::size_t Channel::arrival_offset(std::size_t word) const {
    return word * kWord;
}

std::size_t Channel::answer_offset(std::size_t word) const {
    return (static_cast<std::size_t>(spec_.max_samples) + word) * kWord;
}

std::size_t Channel::row_offset(int slot, std::int64_t row) const {
    return words_bytes(spec_) + bytes_of_rows(spec_, slot * spec_.max_rows + row);
}

int Channel::producer_peer(int replica) const {
    return spec_.colocated ? 0 : replica;
}

int Channel::consumer_peer(int replica) const {
    return spec_.colocated ? 0 : static_cast<int>(spec_.producers.size()) + replica;
}

Channel::Inbound& Channel::inbound(std::int64_t sample) {
    const auto at = inbound_.find(sample);
    MAESTRO_CHECK(at != inbound_.end(), "edge {}, step {}: sample {} is not for this rank", spec_.name, step_,
                  sample);
    return at->second;
}

const Channel::Inbound& Channel::inbound(std::int64_t sample) const {
    return const_cast<Channel*>(this)->inbound(sample);
}

Channel::Outbound& Channel::outbound(int micro_batch) {
    const auto at = outbound_.find(micro_batch);
    MAESTRO_CHECK(at != outbound_.end() && at->second.put, "edge {}, step {}: micro-batch {} was not put",
                  spec_.name, step_, micro_batch);
    return at->second;
}

void Channel::begin_step(std::int64_t step, std::span<const Route> routes) {
    MAESTRO_CHECK(!open_, "edge {}: step {} is still open", spec_.name, step_);
    MAESTRO_CHECK(static_cast<std::int64_t>(routes.size()) <= spec_.max_samples,
                  "edge {}: {} routes, room for {}", spec_.name, routes.size(), spec_.max_samples);
    step_ = step;
    open_ = true;
    ++epoch_;
    routes_.assign(routes.begin(), routes.end());
    for (std::size_t word = 0; word < routes_.size(); ++word) {
        const Route& r = routes_[word];
        MAESTRO_CHECK(r.consumer_replica >= 0 &&
                          r.consumer_replica < static_cast<int>(spec_.consumers.size()) &&
                          r.consumer_replica / fanout_ == r.producer_replica,
                      "edge {}: sample {} from replica {} to {}", spec_.name, r.sample, r.producer_replica,
                      r.consumer_replica);
        MAESTRO_CHECK(r.first_row >= 0 && r.rows >= 0 && r.first_row + r.rows <= spec_.max_rows,
                      "edge {}: sample {} has rows {}..{}, a slot {}", spec_.name, r.sample, r.first_row,
                      r.first_row + r.rows, spec_.max_rows);
        if (r.producer_replica == producer_) outbound_[r.producer_micro_batch].words.push_back(word);
        if (r.consumer_replica == consumer_) {
            Inbound in;
            in.route = r;
            in.word = word;
            MAESTRO_CHECK(inbound_.emplace(r.sample, in).second, "edge {}: sample {} twice", spec_.name,
                          r.sample);
        }
    }
}

void Channel::end_step() {
    MAESTRO_CHECK(open_, "edge {}: no step is open", spec_.name);
    for (auto& [micro_batch, out] : outbound_) {
        MAESTRO_CHECK(out.put, "edge {}, step {}: micro-batch {} was never put", spec_.name, step_,
                      micro_batch);
        if (!spec_.carries_gradient && !out.retired) {
            wait_drained(micro_batch);
            retire(micro_batch);
        }
        MAESTRO_CHECK(out.retired, "edge {}, step {}: micro-batch {} was never retired", spec_.name, step_,
                      micro_batch);
    }
    for (const auto& [sample, in] : inbound_)
        MAESTRO_CHECK(in.answered, "edge {}, step {}: sample {} was never {}", spec_.name, step_, sample,
                      spec_.carries_gradient ? "given a gradient" : "released");
    MAESTRO_CHECK(static_cast<int>(free_slots_.size()) == spec_.window,
                  "edge {}, step {}: {} of {} slots are free", spec_.name, step_, free_slots_.size(),
                  spec_.window);
    outbound_.clear();
    inbound_.clear();
    routes_.clear();
    open_ = false;
}

bool Channel::has_credit() {
    if (free_slots_.empty() && !spec_.carries_gradient)
        for (auto& [micro_batch, out] : outbound_)
            if (out.put && !out.retired && drained(micro_batch)) retire(micro_batch);
    return !free_slots_.empty();
}

void Channel::put(int micro_batch, const Tensor& output) {
    MAESTRO_CHECK(open_ && producer_ >= 0, "edge {}: put by a rank that is no producer or outside a step",
                  spec_.name);
    MAESTRO_CHECK(output.rank == 2 && output.dtype == spec_.dtype && output.columns() == spec_.width &&
                      output.dim(0) <= spec_.max_rows,
                  "edge {}: {} does not fit {}[<= {}, {}]", spec_.name, output.describe(),
                  name_of(spec_.dtype), spec_.max_rows, spec_.width);
    Outbound& out = outbound_[micro_batch];
    MAESTRO_CHECK(!out.put, "edge {}, step {}: micro-batch {} is put twice", spec_.name, step_, micro_batch);
    MAESTRO_CHECK(has_credit(), "edge {}, step {}: micro-batch {} has no credit", spec_.name, step_,
                  micro_batch);
    out.slot = free_slots_.back();
    free_slots_.pop_back();
    out.put = true;
    out.output = output;
    out.rows = output.dim(0);

    std::int64_t routed = 0;
    for (std::size_t word : out.words) {
        const Route& r = routes_[word];
        MAESTRO_CHECK(r.first_row + r.rows <= out.rows, "edge {}: sample {} ends at row {} of {}", spec_.name,
                      r.sample, r.first_row + r.rows, out.rows);
        routed += r.rows;
    }
    if (spec_.carries_gradient && routed != out.rows)  // rows that nobody answers; before anybody can answer
        std::memset(transport_->memory() + row_offset(out.slot, 0), 0, bytes_of_rows(spec_, out.rows));
    send(out);
}

void Channel::send(const Outbound& out) {
    std::vector<int> peers;
    for (const std::size_t index : out.words) {
        const Route& r = routes_[index];
        const int peer = consumer_peer(r.consumer_replica);
        if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
        if (!spec_.colocated && r.rows > 0) {
            const Tensor part = out.output.slice(r.first_row, r.first_row + r.rows);
            transport_->put(peer, row_offset(out.slot, r.first_row), part.data, part.bytes());
        }
        transport_->signal(peer, arrival_offset(index), tagged(out.slot));
    }
    for (const int peer : peers) transport_->push(peer);
}

bool Channel::drained(int micro_batch) {
    const Outbound& out = outbound(micro_batch);
    return out.retired || std::all_of(out.words.begin(), out.words.end(), [&](std::size_t word) {
               return transport_->load(answer_offset(word)) >> kSlotBits == epoch_;
           });
}

Tensor Channel::gradient(int micro_batch) {
    const Outbound& out = outbound(micro_batch);
    MAESTRO_CHECK(spec_.carries_gradient && !out.retired && drained(micro_batch),
                  "edge {}, step {}: no gradient of micro-batch {}", spec_.name, step_, micro_batch);
    return {transport_->memory() + row_offset(out.slot, 0), spec_.dtype, {out.rows, spec_.width}};
}

void Channel::retire(int micro_batch) {
    Outbound& out = outbound(micro_batch);
    if (out.retired && !spec_.carries_gradient) return;  // came back by itself
    MAESTRO_CHECK(!out.retired && drained(micro_batch), "edge {}, step {}: micro-batch {} cannot retire",
                  spec_.name, step_, micro_batch);
    out.retired = true;
    free_slots_.push_back(out.slot);
}

bool Channel::expects(std::int64_t sample) const {
    return inbound_.contains(sample);
}

std::int64_t Channel::rows_of(std::int64_t sample) const {
    return inbound(sample).route.rows;
}

bool Channel::arrived(std::int64_t sample) {
    Inbound& in = inbound(sample);
    if (in.slot >= 0) return true;
    const std::uint64_t word = transport_->load(arrival_offset(in.word));
    if (word >> kSlotBits != epoch_) return false;
    in.slot = static_cast<int>(word & kSlotMask);
    return true;
}

Tensor Channel::rows(std::int64_t sample) {
    const Inbound& in = inbound(sample);
    MAESTRO_CHECK(arrived(sample) && !in.released, "edge {}, step {}: sample {} is not here", spec_.name,
                  step_, sample);
    const Route& r = in.route;
    if (spec_.colocated)
        return outbound(r.producer_micro_batch).output.slice(r.first_row, r.first_row + r.rows);
    return {transport_->memory() + row_offset(in.slot, r.first_row), spec_.dtype, {r.rows, spec_.width}};
}

void Channel::release(std::span<const std::int64_t> samples) {
    for (const std::int64_t sample : samples) {
        Inbound& in = inbound(sample);
        MAESTRO_CHECK(arrived(sample) && !in.released,
                      "edge {}, step {}: sample {} is released twice or too early", spec_.name, step_,
                      sample);
        in.released = true;
        if (!spec_.carries_gradient) answer(in);
    }
    if (!spec_.carries_gradient) push_answers(samples);
}

void Channel::put_gradient(std::span<const std::int64_t> samples, const Tensor& gradient) {
    std::int64_t row = 0;
    for (const std::int64_t sample : samples) {
        Inbound& in = inbound(sample);
        const Route& r = in.route;
        MAESTRO_CHECK(spec_.carries_gradient && arrived(sample) && !in.answered,
                      "edge {}, step {}: no gradient of sample {} is due", spec_.name, step_, sample);
        MAESTRO_CHECK(r.rows == 0 || (gradient.rank == 2 && gradient.dtype == spec_.dtype &&
                                      gradient.dim(0) >= row + r.rows && gradient.columns() == spec_.width),
                      "edge {}: the gradient of sample {} is {}, not rows {}..{} of {}[., {}]", spec_.name,
                      sample, gradient.describe(), row, row + r.rows, name_of(spec_.dtype), spec_.width);
        in.released = true;
        if (r.rows > 0) {
            const Tensor part = gradient.slice(row, row + r.rows);
            transport_->put(producer_peer(r.producer_replica), row_offset(in.slot, r.first_row), part.data,
                            part.bytes());
        }
        answer(in);
        row += r.rows;
    }
    push_answers(samples);
}

void Channel::answer(Inbound& in) {
    transport_->signal(producer_peer(in.route.producer_replica), answer_offset(in.word), tagged(in.slot));
    in.answered = true;
}

void Channel::push_answers(std::span<const std::int64_t> samples) {
    // A consumer has one producer: replica r is served by r / fanout.
    if (!samples.empty()) transport_->push(producer_peer(inbound(samples.front()).route.producer_replica));
}

std::uint64_t Channel::tagged(int slot) const {
    return epoch_ << kSlotBits | static_cast<std::uint64_t>(slot);
}

void Channel::wait_credit() {
    waiter_->wait_until([this] { return has_credit(); },
                        [this] {
                            std::string held;
                            for (const auto& [micro_batch, out] : outbound_)
                                if (out.put && !out.retired) held += "; " + unanswered(micro_batch, out);
                            return fmt::format("edge {}, step {}: one of {} slots{}", spec_.name, step_,
                                               spec_.window, held);
                        });
}

void Channel::wait_drained(int micro_batch) {
    waiter_->wait_until([&] { return drained(micro_batch); },
                        [&] {
                            return fmt::format("edge {}, step {}: {}", spec_.name, step_,
                                               unanswered(micro_batch, outbound(micro_batch)));
                        });
}

void Channel::wait_arrived(std::int64_t sample) {
    waiter_->wait_until([&] { return arrived(sample); },
                        [&] {
                            const Route& r = inbound(sample).route;
                            return fmt::format("edge {}, step {}: sample {} in micro-batch {} of rank {}",
                                               spec_.name, step_, sample, r.producer_micro_batch,
                                               spec_.producers[r.producer_replica]);
                        });
}

std::string Channel::unanswered(int micro_batch, const Outbound& out) {
    std::string left;
    for (std::size_t word : out.words) {
        if (transport_->load(answer_offset(word)) >> kSlotBits == epoch_) continue;
        const Route& r = routes_[word];
        left += fmt::format("{}sample {} at rank {}", left.empty() ? "" : ", ", r.sample,
                            spec_.consumers[r.consumer_replica]);
    }
    return fmt::format("{} of micro-batch {}: {}", spec_.carries_gradient ? "gradients" : "release",
                       micro_batch, left);
}

}  // namespace maestro::channel
