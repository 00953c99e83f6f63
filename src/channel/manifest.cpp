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
        for (const Route& route : routes) {
            check(route);
            // A rank may skip the routes between other groups: only its group and the one at the other
            // end fill the slots and set the flags that it uses.
            const bool sends = producer_ && route.producer_group == producer_->group;
            const bool receives = consumer_ && route.consumer_group == consumer_->group;
            if (!sends && !receives) continue;
            const std::vector<std::int64_t> rows = rows_of(route);
            const Place first = place(route, rows);
            if (sends) add_send(route, rows, first);
            if (receives) add_receive(route, rows, first);
        }
        return std::move(manifest_);
    }

private:
    void check(const Route& r) const {
        const auto within = [](int group, const Side& side) {
            return group >= 0 && group < static_cast<int>(side.size());
        };
        MAESTRO_CHECK(within(r.producer_group, spec_.producers) &&
                          within(r.consumer_group, spec_.consumers) &&
                          serves(spec_, r.producer_group, r.consumer_group),
                      "edge {}: sample {} from replica group {}, which does not serve group {}", spec_.name,
                      r.sample, r.producer_group, r.consumer_group);
        // A pointer stands for consecutive rows only.
        MAESTRO_CHECK(!spec_.pointer || r.segments.size() <= 1,
                      "edge {}: the rows of sample {} are in {} segments, but a pointer is passed",
                      spec_.name, r.sample, r.segments.size());
        for (const RowSegment& p : r.segments) {
            MAESTRO_CHECK(
                p.producer >= 0 && p.producer < producers() && p.consumer >= 0 && p.consumer < consumers(),
                "edge {}: sample {} from rank {} of its replica group to rank {} of the other", spec_.name,
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

    /// What comes before a sample in the slots of its micro-batch at one group of the consumer.
    struct Place {
        std::int64_t samples = 0;
        std::vector<std::int64_t> rows;  ///< by consumer rank
    };
    /// Every rank of both groups computes this for all consumer ranks, in the same order of routes, and so
    /// comes to the same places. Samples do not depend on each other's arrival: each has its place even if
    /// earlier ones arrive later.
    Place place(const Route& r, const std::vector<std::int64_t>& rows) {
        Place& filled = filled_[{r.producer_group, r.producer_micro_batch, r.consumer_group}];
        filled.rows.resize(rows.size(), 0);
        const Place first = filled;
        for (std::size_t q = 0; q < rows.size(); ++q) {
            filled.rows[q] += rows[q];
            MAESTRO_CHECK(filled.rows[q] <= spec_.max_received,
                          "edge {}: sample {} needs rows {}..{} of a slot of {}", spec_.name, r.sample,
                          first.rows[q], filled.rows[q], spec_.max_received);
        }
        // More samples would need more flags than there are, and theirs would be those of other ranks.
        ++filled.samples;
        MAESTRO_CHECK(
            filled.samples <= spec_.max_samples,
            "edge {}: with sample {}, {} of a micro-batch go to one replica group, at most {} are allowed",
            spec_.name, r.sample, filled.samples, spec_.max_samples);
        return first;
    }

    void add_send(const Route& r, const std::vector<std::int64_t>& rows, const Place& first) {
        const std::vector<int>& ranks = spec_.consumers[r.consumer_group];
        SampleSend& send = manifest_.sends[r.producer_micro_batch].emplace_back(SampleSend{r.sample, {}, {}});
        for (const RowSegment& p : r.segments) {
            if (p.producer != producer_->rank) continue;
            send.segments.push_back(
                {ranks[p.consumer], p.producer_row, first.rows[p.consumer] + p.consumer_row, p.rows});
        }
        // The condition is the one of add_receive(), seen from the other end: a flag that one end waits for
        // and the other never sets would end the run at its deadline.
        for (int q = 0; q < consumers(); ++q)
            if (rows[q] > 0 || (producer_->rank == 0 && q == 0))
                send.flags.push_back(flag_pair(r, first, producer_->rank, q, ranks[q]));
    }

    void add_receive(const Route& r, const std::vector<std::int64_t>& rows, const Place& first) {
        const std::vector<int>& ranks = spec_.producers[r.producer_group];
        const int self = consumer_->rank;
        const auto [at, fresh] = manifest_.receives.try_emplace(r.sample);
        MAESTRO_CHECK(fresh, "edge {}: sample {} has two routes to a consumer", spec_.name, r.sample);
        SampleReceive& receive = at->second;
        receive.producer_micro_batch = r.producer_micro_batch;
        receive.source = source_of(spec_, r.producer_group);
        receive.first_row = first.rows[self];
        receive.rows = rows[self];
        for (const RowSegment& p : r.segments) {
            if (p.consumer != self) continue;
            receive.segments.push_back({ranks[p.producer], p.consumer_row, p.producer_row, p.rows});
        }
        for (int p = 0; p < producers(); ++p)
            if (receive.rows > 0 || (p == 0 && self == 0))
                receive.flags.push_back(flag_pair(r, first, p, self, ranks[p]));
    }

    /// Each flag has one writer, because no transport counts atomically. Acknowledgements begin at the same
    /// place in every step: a peer that is a step ahead must not set one where this rank still waits for an
    /// arrival.
    FlagPair flag_pair(const Route& r, const Place& first, int producer, int consumer, int peer) const {
        const auto size = [](auto count) { return static_cast<std::size_t>(count); };
        const std::size_t sender = size(source_of(spec_, r.producer_group) * producers() + producer),
                          sample = size(target_of(spec_, r.consumer_group) * spec_.max_samples) +
                                   size(first.samples);
        return {peer, sizeof(std::uint64_t) * sender * size(spec_.window),
                sizeof(std::uint64_t) * (arrival_count(spec_) + sample * size(consumers()) + size(consumer))};
    }

    int producers() const { return static_cast<int>(spec_.producers.front().size()); }
    int consumers() const { return static_cast<int>(spec_.consumers.front().size()); }

    const ChannelSpec& spec_;
    std::optional<GroupRank> producer_, consumer_;
    Manifest manifest_;
    /// By producer group, its micro-batch and consumer group: what is in their slots so far.
    std::map<std::tuple<int, int, int>, Place> filled_;
};

}  // namespace

Manifest manifest_of(const ChannelSpec& spec, int rank, std::span<const Route> routes) {
    return ManifestBuilder(spec, rank).build(routes);
}

}  // namespace maestro::channel
