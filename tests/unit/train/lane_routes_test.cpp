// Rows between groups of several ranks, in thousands of random layouts, against the definition row by row.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "channel/manifest.hpp"
#include "support/units.hpp"
#include "train/step/routes.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/train/random_plan.hpp"
#include "workload/slot_rows.hpp"

namespace maestro::train {
namespace {

using parallel::Degrees;
using Samples = std::vector<std::int64_t>;
using Row = std::pair<std::int64_t, std::int64_t>;  ///< sample, row of it as the edge counts

/// The rank that holds a row, and where.
struct Owner {
    int group = 0, micro_batch = 0, rank = 0;
    std::int64_t row = 0;  ///< producer: of the output; consumer: of the sample's on that rank
    auto operator<=>(const Owner&) const = default;
};
using Owners = std::map<Row, Owner>;

/// One edge in one step: the plan and the layouts, and the routes made from them.
struct Case {
    schedule::StepPlan plan;
    Degrees up, down;
    std::vector<channel::Route> routes;
    channel::ChannelSpec spec;
    int up_parts = 1, down_parts = 1;  ///< of a lane
};

/// Divides the samples of every micro-batch among the parts of its lane.
void divide(Batches& section, int parts, Dice& dice) {
    for (auto& group : section)
        for (schedule::MicroBatch& batch : group) {
            const auto samples = static_cast<std::int64_t>(batch.samples.size());
            for (int part = 1; part < parts; ++part)
                batch.part_ends.push_back(static_cast<int>(dice.up_to(samples)));
            std::sort(batch.part_ends.begin(), batch.part_ends.end());
            if (parts > 1) batch.part_ends.push_back(static_cast<int>(samples));
        }
}

channel::Side side(std::size_t groups, int ranks, int& rank) {
    channel::Side side(groups, std::vector<int>(static_cast<std::size_t>(ranks)));
    for (auto& group : side)
        for (int& r : group) r = rank++;
    return side;
}

channel::ChannelSpec spec_of(const Case& c, std::int64_t max_sent, std::int64_t max_received) {
    channel::ChannelSpec spec;
    spec.name = "edge";
    int rank = 0;
    spec.producers = side(c.plan.batches[0].size(), c.up_parts * c.up.ranks(), rank);
    spec.consumers = side(c.plan.batches[2].size(), c.down_parts * c.down.ranks(), rank);
    spec.max_sent = max_sent;
    spec.max_received = max_received;
    spec.max_samples = 64;
    return spec;
}

/// Returns the rank and local row of every row of every sequence.
std::vector<std::vector<std::pair<int, std::int64_t>>> by_row(const parallel::Partition& partition,
                                                              const workload::PackedSequences& packing) {
    std::vector<std::vector<std::pair<int, std::int64_t>>> owners;
    for (const std::int64_t length : packing.lengths)
        owners.emplace_back(static_cast<std::size_t>(length), std::pair(-1, std::int64_t{-1}));
    const auto holdings = partition.placements();
    for (std::size_t s = 0; s < holdings.size(); ++s)
        for (const parallel::RowPlacement& h : holdings[s])
            for (std::int64_t i = 0; i < h.count; ++i)
                owners[s][static_cast<std::size_t>(h.first + i)] = {h.rank, h.local + i};
    return owners;
}

/// The samples of a micro-batch in one part of the lane.
struct PartOfBatch {
    int group = 0, micro_batch = 0, part = 0;
    Samples samples;
};

std::vector<PartOfBatch> parts_of(const Batches& section) {
    std::vector<PartOfBatch> all;
    for (std::size_t r = 0; r < section.size(); ++r)
        for (std::size_t k = 0; k < section[r].size(); ++k)
            for (int part = 0; part < section[r][k].parts(); ++part) {
                const auto samples = section[r][k].of_part(part);
                all.push_back(
                    {static_cast<int>(r), static_cast<int>(k), part, {samples.begin(), samples.end()}});
            }
    return all;
}

int most_samples(const Batches& section, bool of_a_part) {
    std::size_t most = 1;
    for (const auto& group : section)
        for (const auto& batch : group)
            for (int part = 0; part < batch.parts(); ++part)
                most = std::max(most, (of_a_part ? batch.of_part(part) : std::span(batch.samples)).size());
    return static_cast<int>(most);
}

/// `packing(samples)` packs a micro-batch of the producer. A row of output lies where the first of the rows
/// that it is made from lies.
template <class PackingOf>
Owners producers_of(const Case& c, PackingOf packing_of) {
    Owners owners;
    for (const auto& [group, k, part, samples] : parts_of(c.plan.batches[0])) {
        const workload::PackedSequences packing = packing_of(samples);
        const auto rows = by_row(workload::partition_of(packing, c.up), packing);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            std::int64_t number = 0;
            for (std::size_t s = packing.samples[i]; s < packing.samples[i + 1]; ++s)
                for (std::size_t r = 0; r < rows[s].size(); r += static_cast<std::size_t>(packing.unit))
                    owners[{samples[i], number++}] = {group, k, part * c.up.ranks() + rows[s][r].first,
                                                      rows[s][r].second / packing.unit};
        }
    }
    return owners;
}

/// `positions(sample)` returns the positions of the edge's rows in the sample's sequence.
template <class PackingOf, class Positions>
Owners consumers_of(const Case& c, PackingOf packing_of, Positions positions) {
    Owners owners;
    for (const auto& [group, k, part, samples] : parts_of(c.plan.batches[2])) {
        const workload::PackedSequences packing = packing_of(samples);
        const auto rows = by_row(workload::partition_of(packing, c.down), packing);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            // Rows of the sample lie on a rank in the order of its local rows.
            const std::vector<std::int64_t> at = positions(samples[i]);
            for (std::size_t e = 0; e < at.size(); ++e) {
                const int rank = rows[i][static_cast<std::size_t>(at[e])].first;
                const auto earlier = [&, mine = rows[i][static_cast<std::size_t>(at[e])],
                                      i = i](std::int64_t other) {
                    const auto [other_rank, other_local] = rows[i][static_cast<std::size_t>(other)];
                    return other_rank == mine.first && other_local < mine.second;
                };
                const auto before = std::count_if(at.begin(), at.end(), earlier);
                owners[{samples[i], static_cast<std::int64_t>(e)}] = {group, k, part * c.down.ranks() + rank,
                                                                      before};
            }
        }
    }
    return owners;
}

std::int64_t number_of(const Owner& o, std::int64_t salt) {
    return (o.group * 131 + o.micro_batch * 31 + o.rank * 17 + o.row * 7 + salt) % 1009 - 500;
}

/// Every row that both ends hold crosses once, from the rank that holds it to the rank that needs it.
void expect_rows(const Case& c, const Owners& up, const Owners& down) {
    std::map<Owner, Row> row_at;
    for (const auto& [row, owner] : up) ASSERT_TRUE(row_at.emplace(owner, row).second);
    Owners came;
    for (const channel::Route& r : c.routes)
        for (const channel::RowSegment& p : r.segments)
            for (std::int64_t i = 0; i < p.rows; ++i) {
                const auto from =
                    row_at.find({r.producer_group, r.producer_micro_batch, p.producer, p.producer_row + i});
                ASSERT_NE(from, row_at.end());
                EXPECT_EQ(from->second.first, r.sample);
                const Owner to{r.consumer_group, 0, p.consumer, p.consumer_row + i};
                EXPECT_TRUE(came.emplace(from->second, to).second) << "a row twice";
            }
    Owners due;
    for (const auto& [row, owner] : down)
        if (up.contains(row)) {
            due[row] = owner;
            due[row].micro_batch = 0;
        }
    EXPECT_TRUE(came == due);
}

/// Checks over the manifests of all ranks that <R x, y> = <x, R' y>, and both against the definition.
void expect_adjoint(const Case& c, const Owners& up, const Owners& down) {
    std::int64_t expected = 0, forward = 0, backward = 0;
    for (const auto& [row, from] : up)
        if (const auto to = down.find(row); to != down.end())
            expected += number_of(from, 1) * (number_of(to->second, 2) + row.first);
    std::map<std::int64_t, int> micro_batch;  // of the consumer
    for (const PartOfBatch& batch : parts_of(c.plan.batches[2]))
        for (const std::int64_t sample : batch.samples) micro_batch[sample] = batch.micro_batch;
    std::map<int, channel::Manifest> manifests;
    for (const int rank : channel::ranks_of(c.spec))
        manifests.emplace(rank, channel::manifest_of(c.spec, rank, c.routes));

    // Slots of rows by rank and producer micro-batch.
    std::map<std::tuple<int, int, std::int64_t>, std::int64_t> slots;
    for (const auto& [rank, manifest] : manifests)
        for (const auto& [k, samples] : manifest.sends)
            for (const channel::SampleSend& sample : samples)
                for (const channel::CopySegment& s : sample.segments)
                    for (std::int64_t i = 0; i < s.rows; ++i) {
                        const auto place = channel::find_rank(c.spec.producers, rank);
                        const bool fresh =
                            slots
                                .emplace(std::tuple(s.peer, k, s.remote + i),
                                         number_of({place->group, k, place->rank, s.local + i}, 1))
                                .second;
                        EXPECT_TRUE(fresh) << "two rows in one place";
                    }
    for (const auto& [rank, manifest] : manifests)
        for (const auto& [sample, in] : manifest.receives) {
            const auto place = channel::find_rank(c.spec.consumers, rank);
            const auto y = [&](std::int64_t row) {
                return number_of({place->group, micro_batch.at(sample), place->rank, row}, 2) + sample;
            };
            for (std::int64_t i = 0; i < in.rows; ++i) {
                const auto at = slots.find({rank, in.producer_micro_batch, in.first_row + i});
                ASSERT_NE(at, slots.end());
                forward += at->second * y(i);
                slots.erase(at);
            }
            for (const channel::CopySegment& s : in.segments) {
                const auto producer = channel::find_rank(c.spec.producers, s.peer);
                for (std::int64_t i = 0; i < s.rows; ++i)
                    backward +=
                        number_of({producer->group, in.producer_micro_batch, producer->rank, s.remote + i},
                                  1) *
                        y(s.local + i);
            }
        }
    EXPECT_TRUE(slots.empty()) << "rows that nobody reads";
    EXPECT_EQ(forward, expected);
    EXPECT_EQ(backward, expected);
}

Degrees random_degrees(Dice& dice) {
    return {dice.from_one_to(4), dice.from_one_to(4)};
}

TEST(LaneRoutes, OfSamplesOfAnyLengthEvenNone) {
    for (std::uint64_t seed = 0; seed < 1500; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        Case c{random_plan(dice, dice.from_one_to(3), dice.from_one_to(3), dice.up_to(16)),
               random_degrees(dice),
               random_degrees(dice),
               {},
               {}};
        std::vector<std::int64_t> lengths;
        for (int i = 0; i < 16; ++i) lengths.push_back(dice.up_to(i % 3 == 0 ? 2 : i % 3 == 1 ? 8 : 40));
        const auto packing_of = [&](std::span<const std::int64_t> samples) {
            workload::PackedSequences packing;
            for (const std::int64_t sample : samples) {
                packing.lengths.push_back(lengths[static_cast<std::size_t>(sample)]);
                packing.samples.push_back(packing.lengths.size());
            }
            return packing;
        };
        const auto produced = [&](const schedule::MicroBatch& micro_batch) {
            return workload::outputs_of(packing_of(micro_batch.samples), c.up);
        };
        const auto consumed = [&](const schedule::MicroBatch& micro_batch) {
            std::vector<std::vector<Range>> places;
            for (const std::int64_t sample : micro_batch.samples)
                places.push_back({{0, lengths[static_cast<std::size_t>(sample)]}});
            return workload::inputs_of(packing_of(micro_batch.samples), places, c.down);
        };
        c.routes = routes(c.plan, 0, 2, produced, consumed);
        c.spec = spec_of(c, 1000, 1000);
        const Owners up = producers_of(c, packing_of);
        const Owners down = consumers_of(c, packing_of, [&](std::int64_t sample) {
            std::vector<std::int64_t> all(
                static_cast<std::size_t>(lengths[static_cast<std::size_t>(sample)]));
            std::iota(all.begin(), all.end(), 0);
            return all;
        });
        expect_rows(c, up, down);
        expect_adjoint(c, up, down);
    }
}

/// Sections as routes see them: pictures of a sample file in section 0, text with pictures in 1 and 2.
class LaneRoutesOfFile : public data::SampleFileTest {
protected:
    static constexpr int kSamples = 40;
    const model::Units encoder_ = testing_support::encoder_units(2, 2);

    void SetUp() override {
        Dice dice(99);
        data::SampleArrays arrays;
        for (int i = 0; i < kSamples; ++i) {
            std::vector<std::int32_t> text(static_cast<std::size_t>(1 + dice.up_to(i % 2 == 0 ? 3 : 30)),
                                           'a');
            std::vector<std::array<std::int32_t, 2>> shapes;
            for (auto& token : text)
                if (dice.up_to(5) == 0) {
                    token = 256;
                    shapes.push_back({dice.from_one_to(13), dice.from_one_to(i % 5 == 0 ? 60 : 13)});
                }
            arrays.add(text, shapes);
            texts_.push_back(text);
        }
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        Pulse quiet;
        std::vector<std::int32_t> markers;  // of three readers
        for (int reader = 0; reader < 3; ++reader) {
            const auto share = file_->find_markers({reader, 3}, quiet);
            markers.resize(share.size(), 0);
            for (std::size_t i = 0; i < share.size(); ++i) markers[i] += share[i];
        }
        file_->find_markers({0, 1}, quiet);
        table_ = std::make_unique<workload::SampleTable>(
            file_->index(),
            std::vector<workload::SampleTable::Section>{{encoder_}, {{}, {encoder_}}, {{}, {encoder_}}});
        std::size_t at = 0;
        for (std::int64_t i = 0; i < kSamples; ++i)
            for (const std::int32_t marker : table_->markers(i)) EXPECT_EQ(marker, markers[at++]);
        EXPECT_EQ(at, markers.size());
    }

    /// Returns the positions of the rows of pictures after expansion, from the text alone.
    std::vector<std::int64_t> picture_positions(std::int64_t sample) const {
        std::vector<std::int64_t> found;
        std::int64_t position = 0;
        std::size_t picture = 0;
        for (const std::int32_t token : texts_[static_cast<std::size_t>(sample)]) {
            std::int64_t rows = 1;
            if (token == 256) {
                const Item size = table_->items(sample)[picture++];
                rows = std::int64_t{(size.height + 3) / 4} * ((size.width + 3) / 4);
                for (std::int64_t r = 0; r < rows; ++r) found.push_back(position + r);
            }
            position += rows;
        }
        return found;
    }

    /// From `section` into 2, whose rows are at `positions(sample)`. Returns the fullest slot's share of the
    /// bound.
    template <class Positions>
    void check(std::uint64_t seed, int section, Positions positions) {
        Dice dice(seed);
        Case c{random_plan(dice, dice.from_one_to(2), dice.from_one_to(3), kSamples),
               random_degrees(dice),
               random_degrees(dice),
               {},
               {},
               dice.from_one_to(3),
               dice.from_one_to(3)};
        divide(c.plan.batches[0], c.up_parts, dice);
        divide(c.plan.batches[2], c.down_parts, dice);
        if (section == 1) c.plan.batches[1] = c.plan.batches[0];  // the teacher packs as vision did
        const workload::LaneSpec producer{section, most_samples(c.plan.batches[0], true), c.up},
            lane{section, most_samples(c.plan.batches[0], false), c.up},
            consumer{2, most_samples(c.plan.batches[2], true), c.down};
        c.routes = routes(c.plan, {section, c.up}, {2, c.down}, *table_);
        c.spec = spec_of(c, max_rows_sent(*table_, producer), max_rows_received(*table_, lane, consumer));
        const auto packing = [&](int s) {
            return [this, s](std::span<const std::int64_t> samples) {
                return workload::pack_sequences(*table_, s, samples);
            };
        };
        for (const PartOfBatch& batch : parts_of(c.plan.batches[0])) {
            const workload::PackedSequences packed = packing(section)(batch.samples);
            const parallel::Partition partition = workload::partition_of(packed, c.up);
            for (int cp = 0; cp < c.up.cp; ++cp)
                for (const std::int64_t rows : partition.tp_rows(cp))
                    EXPECT_LE(rows / packed.unit, c.spec.max_sent);
        }
        const Owners up = producers_of(c, packing(section)), down = consumers_of(c, packing(2), positions);
        expect_rows(c, up, down);
        expect_adjoint(c, up, down);  // by manifests, which hold the slots against max_received
    }

    std::vector<std::vector<std::int32_t>> texts_;
    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<workload::SampleTable> table_;
};

TEST_F(LaneRoutesOfFile, EmbeddingsGoWhereTheirMarkersStand) {
    for (std::uint64_t seed = 0; seed < 700; ++seed) {
        SCOPED_TRACE(seed);
        check(seed, 0, [&](std::int64_t sample) { return picture_positions(sample); });
    }
}

TEST_F(LaneRoutesOfFile, HiddenStatesCoverAllOfASample) {
    for (std::uint64_t seed = 5000; seed < 5500; ++seed) {
        SCOPED_TRACE(seed);
        check(seed, 1, [&](std::int64_t sample) {
            std::vector<std::int64_t> all(static_cast<std::size_t>(table_->length(sample, 2)));
            std::iota(all.begin(), all.end(), 0);
            return all;
        });
    }
}

/// A rank passes its rows of the residual stream on to the rank at the same place of the next stage, where
/// they lie in the same order: those of the first sample, then those of the next.
TEST_F(LaneRoutesOfFile, BetweenStagesEveryRankPassesItsRowsOn) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        schedule::StepPlan plan = random_plan(dice, dice.from_one_to(2), dice.from_one_to(2), kSamples);
        const int section = seed % 2 == 0 ? 0 : 2;
        divide(plan.batches[static_cast<std::size_t>(section)], dice.from_one_to(3), dice);
        const EdgeSide side{section, random_degrees(dice)};
        std::map<std::int64_t, const channel::Route*> route_of;
        const auto found = routes(plan, side, side, *table_);
        for (const channel::Route& r : found) ASSERT_TRUE(route_of.emplace(r.sample, &r).second);
        for (const auto& [group, k, part, samples] : parts_of(plan.batches[section])) {
            std::vector<std::int64_t> rows(static_cast<std::size_t>(side.degrees.ranks()), 0);  // by rank
            for (const std::int64_t sample : samples) {
                const channel::Route& route = *route_of.at(sample);
                EXPECT_EQ(route.producer_group, group);
                EXPECT_EQ(route.consumer_group, group);
                EXPECT_EQ(route.producer_micro_batch, k);
                std::vector<std::int64_t> of_sample(rows.size(), 0);
                for (const channel::RowSegment& s : route.segments) {
                    ASSERT_EQ(s.producer, s.consumer);
                    const auto rank = static_cast<std::size_t>(s.producer - part * side.degrees.ranks());
                    ASSERT_LT(rank, rows.size());
                    ASSERT_EQ(s.producer_row, rows[rank]) << "sample " << sample << " on rank " << rank;
                    ASSERT_EQ(s.consumer_row, of_sample[rank]);
                    rows[rank] += s.rows;
                    of_sample[rank] += s.rows;
                }
                EXPECT_EQ(std::accumulate(of_sample.begin(), of_sample.end(), std::int64_t{0}),
                          table_->length(sample, section));
            }
            const auto partition =
                workload::partition_of(workload::pack_sequences(*table_, section, samples), side.degrees);
            for (int rank = 0; rank < side.degrees.ranks(); ++rank)
                EXPECT_EQ(rows[static_cast<std::size_t>(rank)],
                          partition.tp_rows(
                              rank / side.degrees.tp)[static_cast<std::size_t>(rank % side.degrees.tp)]);
        }
    }
}

}  // namespace
}  // namespace maestro::train
