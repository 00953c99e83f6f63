// Lengths, rows and the worst micro-batch, from a real sample file.
#include "workload/sample_table.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/cost_model.hpp"
#include "workload/counts.hpp"
#include "workload/models.hpp"

namespace maestro::workload {
namespace {

class Table : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays
            arrays;  // long texts without, short ones with pictures, so that no sample is the worst
        std::vector<std::int32_t> text(60, 'a');
        arrays.add(text);
        arrays.add({257, 256, 'x', 258}, {{100, 30}});
        arrays.add({257, 256, 'x', 256, 'y', 256, 'z', 258}, {{16, 16}, {17, 15}, {40, 40}});
        text.resize(45);
        arrays.add(text);
        arrays.add({257, 256, 'x', 'y', 'z', 258}, {{8, 8}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
        scenario_.markers = file_->markers();
        table_ = std::make_unique<SampleTable>(table_of(scenario_, *file_));
    }
    /// Tokens of sample i once its pictures are expanded: patches of 8 pixels, 2 x 2 of them a token.
    std::int64_t expanded(std::int64_t i) const {
        std::int64_t tokens = file_->index().tokens(i);
        for (const auto& p : file_->index().items(i))
            tokens += (p.height + 15) / 16 * ((p.width + 15) / 16) - 1;
        return tokens;
    }
    Scenario scenario_ = glyph_scenario();
    Probes probes_;
    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<SampleTable> table_;
};

/// Passes over the samples keep the deadlines of the other ranks from passing.
TEST_F(Table, BeatsInEveryPass) {
    struct Counting final : Pulse {
        void beat() noexcept override { ++beats; }
        int take() { return std::exchange(beats, 0); }
        int beats = 0;
    } pulse;
    table_->set_pulse(pulse);
    std::vector<std::int64_t> visited;
    table_->for_each([&](std::int64_t i) { visited.push_back(i); });
    EXPECT_EQ(visited, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(pulse.take(), 1) << "one in each block of samples";
    check_lengths(scenario_, *table_, "samples.h5");
    EXPECT_EQ(pulse.take(), 1);
    table_->sequence_rows(1);
    EXPECT_EQ(pulse.take(), 1);
    table_->longest_micro_batch(2, 1);
    EXPECT_EQ(pulse.take(), 1);
    table_->worst_micro_batch(2);
    EXPECT_EQ(pulse.take(), 3);
    const CostModel costs(scenario_, *table_, probes_);
    EXPECT_EQ(pulse.take(), static_cast<int>(scenario_.graph.sections.size()));
    describe_load(scenario_.graph, costs, *table_);
    EXPECT_EQ(pulse.take(), 1);
}

TEST_F(Table, KnowsWhatEachSectionGets) {
    ASSERT_EQ(table_->size(), file_->size());
    bool with = false, without = false;
    for (std::int64_t i = 0; i < table_->size(); ++i) {
        const bool pictures = !file_->index().items(i).empty();
        (pictures ? with : without) = true;
        EXPECT_EQ(table_->activates(i, 0), pictures);
        EXPECT_TRUE(table_->activates(i, 1));
        EXPECT_EQ(table_->length(i, 1), expanded(i));
        EXPECT_EQ(table_->length(i, 0), 4 * table_->output_rows(i, 0));
        EXPECT_EQ(table_->output_rows(i, 0) - static_cast<std::int64_t>(file_->index().items(i).size()),
                  expanded(i) - file_->index().tokens(i));
    }
    EXPECT_TRUE(with && without);
    std::vector<std::int64_t> pictures;
    for (std::int64_t i = 0; i < table_->size(); ++i) pictures.push_back(std::ssize(table_->items(i)));
    std::sort(pictures.rbegin(), pictures.rend());
    EXPECT_EQ(table_->most_sequences(2, 0), pictures[0] + pictures[1]);
    EXPECT_EQ(table_->most_sequences(2, 1), 2);
}

TEST_F(Table, NoMicroBatchExceedsTheWorst) {
    const auto n = table_->size();
    for (int count = 1; count <= 3; ++count) {
        const auto worst = table_->worst_micro_batch(count);
        for (int s = 0; s < 2; ++s) {
            const auto bound = model::measure(scenario_.models[s], role_of(scenario_, s), worst);
            const auto longest = table_->longest_micro_batch(count, s);
            const auto kept = model::measure(scenario_.models[s], role_of(scenario_, s), longest).saved;
            std::size_t most_kept = 0;
            // Every choice of `count` samples, by counting in base n.
            std::int64_t choices = 1;
            for (int i = 0; i < count; ++i) choices *= n;
            for (std::int64_t choice = 0; choice < choices; ++choice) {
                std::vector<model::SampleShape> shapes;
                std::set<std::int64_t> ids;
                for (std::int64_t rest = choice; static_cast<int>(shapes.size()) < count; rest /= n) {
                    ids.insert(rest % n);
                    shapes.push_back(table_->shape(rest % n));
                }
                if (static_cast<int>(ids.size()) != count) continue;
                const auto it = model::measure(scenario_.models[s], role_of(scenario_, s), shapes);
                EXPECT_LE(it.saved, kept);
                most_kept = std::max(most_kept, it.saved);
                EXPECT_LE(it.scratch, bound.scratch);
                EXPECT_LE(table_->rows_of(shapes, s), table_->rows_of(longest, s));
            }
            EXPECT_EQ(most_kept, kept);  // and it is one of them
        }
    }
}

TEST_F(Table, CostsAreThoseOfTheModelsOwnCode) {
    const auto costs = sample_costs(scenario_, *table_, probes_);
    for (std::int64_t i = 0; i < table_->size(); ++i)
        for (int s = 0; s < 2; ++s) {
            const auto& cost = costs[static_cast<std::size_t>(i)].stages[static_cast<std::size_t>(s)];
            EXPECT_EQ(cost.active, table_->activates(i, s));
            if (!cost.active) {
                EXPECT_EQ(cost.forward_s, 0);
                continue;
            }
            const auto counted =
                model::measure(scenario_.models[s], role_of(scenario_, s), std::vector{table_->shape(i)});
            EXPECT_GT(cost.backward_s, cost.forward_s);
            // Shares that do not grow with the length are left out: nothing follows the last token.
            EXPECT_NEAR(cost.forward_s * 1e11, counted.forward_flops, 0.05 * counted.forward_flops)
                << "sample " << i << ", section " << s;
            EXPECT_NEAR(cost.backward_s * 1e11, counted.backward_flops, 0.05 * counted.backward_flops)
                << "sample " << i << ", section " << s;
        }
}

TEST_F(Table, CountsOfAStepAreSumsOverItsSamples) {
    const std::vector<std::int64_t> ids{1, 2, 4};
    const auto counts = step_counts(scenario_, *table_, probes_, ids);
    for (int s = 0; s < 2; ++s) {
        double flops = 0, rows = 0;
        for (const std::int64_t id : ids) {
            const auto one =
                model::measure(scenario_.models[s], role_of(scenario_, s), std::vector{table_->shape(id)});
            flops += one.forward_flops + one.backward_flops;
            rows += static_cast<double>(table_->output_rows(id, s));
        }
        const StepCounts& section = counts[static_cast<std::size_t>(s)];
        EXPECT_NEAR(section.flops, flops, 0.02 * flops);
        // Rows of 128 floats to the language model, and their gradients back.
        EXPECT_EQ(section.edge_bytes, s == 0 ? 2 * rows * 128 * sizeof(float) : 0);
        EXPECT_GT(section.memory_bytes, 0);
    }
    EXPECT_EQ(counts[0].dp_bytes, 0);  // one replica
    const auto language =
        model::measure(scenario_.models[1], role_of(scenario_, 1), std::vector{table_->shape(1)});
    // Three replicas: each passes on two thirds of the gradient and of the weights, and of the padding of
    // both arrays to equal shards of whole blocks, of less than 3 x 16 elements.
    const double due = 3 * (2.0 / 3) * static_cast<double>(language.parameters);
    EXPECT_GE(counts[1].dp_bytes, due);
    EXPECT_LT(counts[1].dp_bytes, due + 3 * (2.0 / 3) * 2 * 3 * 16 * sizeof(float));
}

}  // namespace
}  // namespace maestro::workload
