// Bounds on the rows of one rank against every micro-batch of a small file.
#include "workload/slot_rows.hpp"

#include <algorithm>

#include "support/units.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "workload/layout.hpp"

namespace maestro::workload {
namespace {

using parallel::Degrees;
using Samples = std::vector<std::int64_t>;

/// Section 0 sees pictures, 1 is a teacher and 2 its student.
class SlotRows : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays arrays;
        arrays.add(std::vector<std::int32_t>(23, 'a'));
        arrays.add({256, 'x', 256, 'y'}, {{4, 4}, {30, 21}});
        arrays.add({257, 'x', 256, 256, 'z', 258}, {{8, 9}, {13, 12}});
        arrays.add({256}, {{3, 3}});
        arrays.add({'a', 256, 'b', 'c', 'd', 'e', 'f'}, {{40, 5}});
        arrays.add({'a', 256, 256, 256, 'e', 'f'}, {{4, 5}, {4, 8}, {12, 4}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        Pulse quiet;
        file_->find_markers({}, quiet);
        const model::Units encoder = testing_support::encoder_units(2, 2);
        table_ = std::make_unique<SampleTable>(
            file_->index(), std::vector<SampleTable::Section>{{encoder}, {{}, {encoder}}, {{}, {encoder}}});
    }

    /// Every ordered choice of so many samples.
    std::vector<Samples> batches(int count) const {
        std::vector<Samples> all{{}};
        for (int i = 0; i < count; ++i) {
            std::vector<Samples> longer;
            for (const Samples& batch : all)
                for (std::int64_t s = 0; s < table_->size(); ++s)
                    if (std::find(batch.begin(), batch.end(), s) == batch.end()) {
                        longer.push_back(batch);
                        longer.back().push_back(s);
                    }
            all = longer;
        }
        return all;
    }

    /// Of the output rows that one rank has of any micro-batch.
    std::int64_t sent(const LaneSpec& lane) const {
        std::int64_t most = 0;
        for (const Samples& batch : batches(lane.micro_batch)) {
            const PackedSequences packing = pack_sequences(*table_, lane.section, batch);
            const parallel::Partition partition = partition_of(packing, lane.degrees);
            for (int cp = 0; cp < lane.degrees.cp; ++cp)
                for (const std::int64_t rows : partition.tp_rows(cp))
                    most = std::max(most, rows / packing.unit);
        }
        return most;
    }

    /// Of the rows that one rank gets of a producer's micro-batch whose samples are, each, in any of the
    /// consumer's.
    std::int64_t received(const LaneSpec& up, const LaneSpec& down) const {
        const auto ranks = static_cast<std::size_t>(down.degrees.ranks());
        std::vector<Samples> rows(static_cast<std::size_t>(table_->size()), Samples(ranks, 0));
        for (const Samples& batch : batches(down.micro_batch)) {
            std::vector<std::vector<Range>> places;
            for (const std::int64_t s : batch)
                places.push_back(places_of(*table_, up.section, down.section, s, down.degrees));
            const RowPlacements inputs =
                inputs_of(pack_sequences(*table_, down.section, batch), places, down.degrees);
            for (std::size_t i = 0; i < batch.size(); ++i) {
                Samples received_rows(ranks, 0);
                for (const parallel::RowPlacement& h : inputs[i])
                    received_rows[static_cast<std::size_t>(h.rank)] += h.count;
                Samples& most = rows[static_cast<std::size_t>(batch[i])];
                for (std::size_t q = 0; q < ranks; ++q) most[q] = std::max(most[q], received_rows[q]);
            }
        }
        std::int64_t most = 0;
        for (std::size_t q = 0; q < ranks; ++q)
            most = std::max(most, table_->sum_of_largest(up.micro_batch, [&](std::int64_t s) {
                return rows[static_cast<std::size_t>(s)][q];
            }));
        return most;
    }

    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<SampleTable> table_;
};

TEST_F(SlotRows, AreNeverExceededAndNearWhatIsHad) {
    for (const int section : {0, 1})
        for (int cp = 1; cp <= 4; ++cp)
            for (int tp = 1; tp <= 3; ++tp)
                for (int batch = 1; batch <= 3; ++batch) {
                    SCOPED_TRACE(testing::Message() << "section " << section << ", cp " << cp << ", tp " << tp
                                                    << ", micro-batch " << batch);
                    const LaneSpec lane{section, batch, {cp, tp}};
                    const std::int64_t bound = max_rows_sent(*table_, lane), most = sent(lane);
                    EXPECT_LE(most, bound);
                    EXPECT_LE(bound, most + most / 4 + 2);
                    EXPECT_TRUE(cp > 1 || most == bound) << most << " of " << bound;
                    for (int other = 1; other <= 2; ++other) {
                        const LaneSpec up{section, batch, {}}, down{2, other, {cp, tp}};
                        const std::int64_t had = received(up, down),
                                           slot = max_rows_received(*table_, up, down);
                        EXPECT_LE(had, slot);
                        EXPECT_TRUE(cp * tp > 1 || had == slot) << had << " of " << slot;
                        // Samples that have most on one rank need not have it on the same.
                        EXPECT_LE(slot, 2 * had + 3);
                    }
                }
}

TEST_F(SlotRows, ShrinkWithTheLane) {
    const LaneSpec up{1, 1, {}};
    const std::int64_t whole = max_rows_received(*table_, up, {2, 1, {}});
    EXPECT_LE(max_rows_received(*table_, up, {2, 1, {2, 2}}), whole / 4 + 1);
    EXPECT_LE(max_rows_received(*table_, up, {2, 1, {1, 4}}), whole / 4 + 1);
    EXPECT_LE(max_rows_received(*table_, up, {2, 3, {4, 1}}), whole / 4 + 2);
}

TEST_F(SlotRows, PlacesAreThoseOfTheMarkers) {
    // 257 x [8 x 9] [13 x 12] z 258: pictures side by side are one range.
    const std::int64_t first = table_->units(0).outputs(table_->items(2)[0]),
                       second = table_->units(0).outputs(table_->items(2)[1]);
    EXPECT_EQ(places_of(*table_, 0, 2, 2, {2, 1}), (std::vector<Range>{{2, 2 + first + second}}));
    EXPECT_EQ(places_of(*table_, 0, 2, 1, {1, 2}), (std::vector<Range>{{0, 1}, {2, 2 + 8 * 6}}));
    EXPECT_EQ(places_of(*table_, 1, 2, 3, {1, 2}), (std::vector<Range>{{0, 1}}));
    EXPECT_TRUE(places_of(*table_, 0, 2, 0, {1, 2}).empty());
    EXPECT_EQ(places_of(*table_, 0, 2, 1, {}), (std::vector<Range>{{0, 49}}));
}

TEST_F(SlotRows, MarkersAreNeededOnlyByReplicasOfSeveralRanks) {
    graph::SectionGraph graph;
    graph.sections.resize(3);
    graph.edges.resize(2);
    graph.edges[0].from = 0;
    graph.edges[0].to = graph.edges[1].to = 2;
    graph.edges[1].from = 1;
    graph.edges[1].tensor = EdgeTensor::hidden;
    graph.sections[0].layout.tp = graph.sections[1].layout.cp = 2;
    EXPECT_FALSE(needs_markers(graph));
    graph.sections[2].layout.tp = 2;
    EXPECT_TRUE(needs_markers(graph));
}

}  // namespace
}  // namespace maestro::workload
