#include "channel/manifest.hpp"

#include <map>
#include <optional>
#include <utility>

#include "base/check.hpp"

namespace maestro::channel {

namespace {

class Reader {
public:
    Reader(const ChannelSpec& spec, int rank)
        : spec_(spec), producer_(seat_on(spec.producers, rank)), consumer_(seat_on(spec.consumers, rank)) {}

    Manifest read(std::span<const Route> routes) {
        MAESTRO_CHECK(static_cast<std::int64_t>(routes.size()) <= spec_.max_samples,
                      "edge {}: {} routes, room for {}", spec_.name, routes.size(), spec_.max_samples);
        for (std::size_t i = 0; i < routes.size(); ++i) {
            const Route& route = routes[i];
            check(route);
            const bool sends = producer_ && route.producer_replica == producer_->replica;
            const bool gets = consumer_ && route.consumer_replica == consumer_->replica;
            if (!sends && !gets) continue;
            const std::vector<std::int64_t> rows = rows_of(route), first = place(route, rows);
            if (sends) send(i, route, rows, first);
            if (gets) get(i, route, rows, first);
        }
        return std::move(manifest_);
    }

private:
    void check(const Route& r) const {
        const auto replicas = static_cast<int>(spec_.consumers.size());
        const int fanout = replicas / static_cast<int>(spec_.producers.size());
        MAESTRO_CHECK(r.consumer_replica >= 0 && r.consumer_replica < replicas &&
                          r.consumer_replica / fanout == r.producer_replica,
                      "edge {}: sample {} from replica {} to {}", spec_.name, r.sample, r.producer_replica,
                      r.consumer_replica);
        MAESTRO_CHECK(!spec_.pointer || r.pieces.size() <= 1, "edge {}: sample {} is in pieces", spec_.name,
                      r.sample);
        for (const Piece& p : r.pieces) {
            MAESTRO_CHECK(
                p.producer >= 0 && p.producer < producers() && p.consumer >= 0 && p.consumer < consumers(),
                "edge {}: sample {} from rank {} to rank {} of the replicas", spec_.name, r.sample,
                p.producer, p.consumer);
            MAESTRO_CHECK(p.rows > 0 && p.producer_row >= 0 && p.producer_row + p.rows <= spec_.max_sent,
                          "edge {}: sample {} has rows {}..{}, a rank puts out {}", spec_.name, r.sample,
                          p.producer_row, p.producer_row + p.rows, spec_.max_sent);
        }
    }

    /// Rows of the sample by consumer rank.
    std::vector<std::int64_t> rows_of(const Route& r) const {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(consumers()), 0);
        for (const Piece& p : r.pieces) rows[p.consumer] += p.rows;
        for (const Piece& p : r.pieces)
            MAESTRO_CHECK(p.consumer_row >= 0 && p.consumer_row + p.rows <= rows[p.consumer],
                          "edge {}: rows {}..{} of the {} of sample {}", spec_.name, p.consumer_row,
                          p.consumer_row + p.rows, rows[p.consumer], r.sample);
        return rows;
    }

    /// Where they begin in the slots.
    std::vector<std::int64_t> place(const Route& r, const std::vector<std::int64_t>& rows) {
        std::vector<std::int64_t>& filled = filled_[{r.producer_micro_batch, r.consumer_replica}];
        filled.resize(rows.size(), 0);
        const std::vector<std::int64_t> first = filled;
        for (std::size_t q = 0; q < rows.size(); ++q) {
            filled[q] += rows[q];
            MAESTRO_CHECK(filled[q] <= spec_.max_received,
                          "edge {}: sample {} has rows {}..{} of a slot, which has {}", spec_.name, r.sample,
                          first[q], filled[q], spec_.max_received);
        }
        return first;
    }

    void send(std::size_t route, const Route& r, const std::vector<std::int64_t>& rows,
              const std::vector<std::int64_t>& first) {
        const std::vector<int>& ranks = spec_.consumers[r.consumer_replica];
        Outbound& out = manifest_.out[r.producer_micro_batch].emplace_back(Outbound{r.sample, {}, {}});
        for (const Piece& p : r.pieces) {
            if (p.producer != producer_->rank) continue;
            out.stretches.push_back(
                {ranks[p.consumer], p.producer_row, first[p.consumer] + p.consumer_row, p.rows});
        }
        for (int q = 0; q < consumers(); ++q)
            if (rows[q] > 0 || (producer_->rank == 0 && q == 0))
                out.pairs.push_back(pair(route, producer_->rank, q, ranks[q]));
    }

    void get(std::size_t route, const Route& r, const std::vector<std::int64_t>& rows,
             const std::vector<std::int64_t>& first) {
        const std::vector<int>& ranks = spec_.producers[r.producer_replica];
        const int own = consumer_->rank;
        const auto [at, fresh] = manifest_.in.try_emplace(r.sample);
        MAESTRO_CHECK(fresh, "edge {}: sample {} twice", spec_.name, r.sample);
        Inbound& in = at->second;
        in.producer_micro_batch = r.producer_micro_batch;
        in.first_row = first[own];
        in.rows = rows[own];
        for (const Piece& p : r.pieces) {
            if (p.consumer != own) continue;
            in.stretches.push_back({ranks[p.producer], p.consumer_row, p.producer_row, p.rows});
        }
        for (int p = 0; p < producers(); ++p)
            if (in.rows > 0 || (p == 0 && own == 0)) in.pairs.push_back(pair(route, p, own, ranks[p]));
    }

    Pair pair(std::size_t route, int producer, int consumer, int rank) const {
        const auto p = static_cast<std::size_t>(producers()), q = static_cast<std::size_t>(consumers());
        const std::size_t answers = static_cast<std::size_t>(spec_.max_samples) * p;
        const auto bytes = [](std::size_t word) { return word * sizeof(std::uint64_t); };
        return {rank, bytes(route * p + static_cast<std::size_t>(producer)),
                bytes(answers + route * q + static_cast<std::size_t>(consumer))};
    }

    int producers() const { return static_cast<int>(spec_.producers.front().size()); }
    int consumers() const { return static_cast<int>(spec_.consumers.front().size()); }

    const ChannelSpec& spec_;
    std::optional<Seat> producer_, consumer_;
    Manifest manifest_;
    /// By producer micro-batch and consumer replica, which tells the producer's: rows in each rank's slot.
    std::map<std::pair<int, int>, std::vector<std::int64_t>> filled_;
};

}  // namespace

Manifest manifest_of(const ChannelSpec& spec, int rank, std::span<const Route> routes) {
    return Reader(spec, rank).read(routes);
}

}  // namespace maestro::channel
