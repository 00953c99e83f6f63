#include "channel/manifest.hpp"

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.hpp"

namespace maestro::channel {

namespace {

class ManifestBuilder {
public:
    ManifestBuilder(const ChannelSpec& spec, int rank)
        : spec_(spec),
          producer_(find_rank(spec.producers, rank)),
          consumer_(find_rank(spec.consumers, rank)) {}

    Manifest build(std::span<const Route> routes) {
        // More routes would need more flags than there are, and theirs would lie in the first slot's rows.
        MAESTRO_CHECK(static_cast<std::int64_t>(routes.size()) <= spec_.max_samples,
                      "edge {}: {} routes in a step, at most {} allowed", spec_.name, routes.size(),
                      spec_.max_samples);
        for (std::size_t i = 0; i < routes.size(); ++i) {
            const Route& route = routes[i];
            check(route);
            // A rank may skip the routes between other replicas: only its replica and the one at the other
            // end fill the slots and set the flags that it uses.
            const bool sends = producer_ && route.producer_replica == producer_->replica;
            const bool receives = consumer_ && route.consumer_replica == consumer_->replica;
            if (!sends && !receives) continue;
            const std::vector<std::int64_t> rows = rows_of(route), first = place(route, rows);
            if (sends) add_send(i, route, rows, first);
            if (receives) add_receive(i, route, rows, first);
        }
        return std::move(manifest_);
    }

private:
    void check(const Route& r) const {
        const auto within = [](int replica, const Side& side) {
            return replica >= 0 && replica < static_cast<int>(side.size());
        };
        MAESTRO_CHECK(within(r.producer_replica, spec_.producers) &&
                          within(r.consumer_replica, spec_.consumers) &&
                          serves(spec_, r.producer_replica, r.consumer_replica),
                      "edge {}: sample {} from replica {}, which does not serve replica {}", spec_.name,
                      r.sample, r.producer_replica, r.consumer_replica);
        // A pointer stands for consecutive rows only.
        MAESTRO_CHECK(!spec_.pointer || r.segments.size() <= 1,
                      "edge {}: the rows of sample {} are in {} segments, but a pointer is passed",
                      spec_.name, r.sample, r.segments.size());
        for (const RowSegment& p : r.segments) {
            MAESTRO_CHECK(
                p.producer >= 0 && p.producer < producers() && p.consumer >= 0 && p.consumer < consumers(),
                "edge {}: sample {} from rank {} of its replica to rank {} of the other", spec_.name,
                r.sample, p.producer, p.consumer);
            MAESTRO_CHECK(p.rows > 0 && p.producer_row >= 0 && p.producer_row + p.rows <= spec_.max_sent,
                          "edge {}: sample {} has rows {}..{} of an output of at most {}", spec_.name,
                          r.sample, p.producer_row, p.producer_row + p.rows, spec_.max_sent);
        }
    }

    /// Rows of the sample that each consumer rank receives.
    std::vector<std::int64_t> rows_of(const Route& r) const {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(consumers()), 0);
        for (const RowSegment& p : r.segments) rows[p.consumer] += p.rows;
        for (const RowSegment& p : r.segments)
            MAESTRO_CHECK(p.consumer_row >= 0 && p.consumer_row + p.rows <= rows[p.consumer],
                          "edge {}: rows {}..{} of sample {}, of which the rank receives {}", spec_.name,
                          p.consumer_row, p.consumer_row + p.rows, r.sample, rows[p.consumer]);
        return rows;
    }

    /// First row of the sample in the slot of each consumer rank. Every rank of both replicas computes this
    /// for all consumer ranks, in the same order of routes, and so comes to the same places. Samples do not
    /// depend on each other's arrival: each has its place even if earlier ones arrive later.
    std::vector<std::int64_t> place(const Route& r, const std::vector<std::int64_t>& rows) {
        std::vector<std::int64_t>& filled =
            filled_[{r.producer_replica, r.producer_micro_batch, r.consumer_replica}];
        filled.resize(rows.size(), 0);
        const std::vector<std::int64_t> first = filled;
        for (std::size_t q = 0; q < rows.size(); ++q) {
            filled[q] += rows[q];
            MAESTRO_CHECK(filled[q] <= spec_.max_received,
                          "edge {}: sample {} needs rows {}..{} of a slot of {}", spec_.name, r.sample,
                          first[q], filled[q], spec_.max_received);
        }
        return first;
    }

    void add_send(std::size_t route, const Route& r, const std::vector<std::int64_t>& rows,
                  const std::vector<std::int64_t>& first) {
        const std::vector<int>& ranks = spec_.consumers[r.consumer_replica];
        SampleSend& send = manifest_.sends[r.producer_micro_batch].emplace_back(SampleSend{r.sample, {}, {}});
        for (const RowSegment& p : r.segments) {
            if (p.producer != producer_->rank) continue;
            send.segments.push_back(
                {ranks[p.consumer], p.producer_row, first[p.consumer] + p.consumer_row, p.rows});
        }
        // The condition is the one of add_receive(), seen from the other end: a flag that one end waits for
        // and the other never sets would end the run at its deadline.
        for (int q = 0; q < consumers(); ++q)
            if (rows[q] > 0 || (producer_->rank == 0 && q == 0))
                send.flags.push_back(flag_pair(route, r, producer_->rank, q, ranks[q]));
    }

    void add_receive(std::size_t route, const Route& r, const std::vector<std::int64_t>& rows,
                     const std::vector<std::int64_t>& first) {
        const std::vector<int>& ranks = spec_.producers[r.producer_replica];
        const int self = consumer_->rank;
        const auto [at, fresh] = manifest_.receives.try_emplace(r.sample);
        MAESTRO_CHECK(fresh, "edge {}: sample {} has two routes to a consumer", spec_.name, r.sample);
        SampleReceive& receive = at->second;
        receive.producer_micro_batch = r.producer_micro_batch;
        receive.source = source_of(spec_, r.producer_replica);
        receive.first_row = first[self];
        receive.rows = rows[self];
        for (const RowSegment& p : r.segments) {
            if (p.consumer != self) continue;
            receive.segments.push_back({ranks[p.producer], p.consumer_row, p.producer_row, p.rows});
        }
        for (int p = 0; p < producers(); ++p)
            if (receive.rows > 0 || (p == 0 && self == 0))
                receive.flags.push_back(flag_pair(route, r, p, self, ranks[p]));
    }

    /// A rank's flags are in two arrays, which both ends can compute: the arrivals [source, route, producer
    /// rank], and the acknowledgements [route, consumer rank]. Each flag has one writer, because no transport
    /// counts atomically. A producer that is a step ahead must not overwrite what another one has announced,
    /// so each source has flags of every route. The second array begins at the same place in every step,
    /// however few routes there are: a peer that is a step ahead must not set an acknowledgement where this
    /// rank still waits for an arrival.
    FlagPair flag_pair(std::size_t route, const Route& r, int producer, int consumer, int peer) const {
        const auto p = static_cast<std::size_t>(producers()), q = static_cast<std::size_t>(consumers());
        const auto source = static_cast<std::size_t>(source_of(spec_, r.producer_replica));
        const std::size_t of_source = static_cast<std::size_t>(spec_.max_samples) * source;
        const auto bytes = [](std::size_t flag) { return flag * sizeof(std::uint64_t); };
        return {peer, bytes((of_source + route) * p + static_cast<std::size_t>(producer)),
                bytes(arrival_count(spec_) + route * q + static_cast<std::size_t>(consumer))};
    }

    int producers() const { return static_cast<int>(spec_.producers.front().size()); }
    int consumers() const { return static_cast<int>(spec_.consumers.front().size()); }

    const ChannelSpec& spec_;
    std::optional<ReplicaRank> producer_, consumer_;
    Manifest manifest_;
    /// Rows in each consumer rank's slot so far, by producer replica, its micro-batch and consumer replica.
    std::map<std::tuple<int, int, int>, std::vector<std::int64_t>> filled_;
};

}  // namespace

Manifest manifest_of(const ChannelSpec& spec, int rank, std::span<const Route> routes) {
    return ManifestBuilder(spec, rank).build(routes);
}

}  // namespace maestro::channel
