// Tasks of a run whose times are known multiples of the predicted ones, and runs that measure nothing.
#include "recorded/corrections.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <set>

#include "support/decks.hpp"
#include "support/errors.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "workload/corrected_work.hpp"
#include "workload/cost_model.hpp"
#include "workload/data_order.hpp"
#include "workload/estimate.hpp"
#include "workload/models.hpp"
#include "workload/stages.hpp"

namespace maestro::recorded {
namespace {

using config::Correction;
using testing::HasSubstr;

constexpr std::size_t kVision = 0, kLanguage = 1;

class Recorded : public data::SampleFileTest {
protected:
    using Parts = std::vector<std::vector<std::int64_t>>;  ///< of a micro-batch, the samples of each replica
    /// Seconds of a task on part `part` of these.
    using Seconds = std::function<double(int stage, std::size_t phase, const Parts& parts, std::size_t part)>;

    /// Samples with so many tokens each, the even ones with a picture, one of them among these tokens.
    void write_samples(const std::vector<int>& tokens) {
        data::SampleArrays arrays;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens[i]), 'x');
            ids.front() = 257;
            ids.back() = 258;
            if (i % 2 == 0) ids[1] = 256;
            const std::array<std::int32_t, 2> picture{32, 32 + 16 * static_cast<int>(i % 5)};
            arrays.add(ids, i % 2 == 0 ? std::vector{picture} : std::vector<std::array<std::int32_t, 2>>{});
        }
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
    }

    config::Deck deck_of(std::vector<std::string> settings, const std::string& name = "vlm_glyphs.toml") {
        settings.insert(settings.begin(), {"data.train=" + path_.string(),
                                           "data.global_batch=" + std::to_string(file_->index().size() / 2)});
        return config::parse_deck(testing_support::input(name), "deck", settings, config::Command::plan);
    }

    config::Cluster cluster(double latency_s = 1e-5, double bandwidth = 1e9) const {
        return {.name = "test",
                .ranks_per_node = 8,
                .device = {.memory = 16e9,
                           .memory_bandwidth = 1e10,
                           .element_flops = 1e9,
                           .operation_s = 2e-6,
                           .kind = "cpu",
                           .gemm_rates = {{16, 2e10, 4e10}, {256, 5e10, 1e11}}},
                .node = {latency_s, bandwidth},
                .network = {latency_s, bandwidth}};
    }
    workload::Scenario scenario_of(const config::Deck& deck, config::Cluster machines) const {
        workload::Scenario scenario = workload::make_scenario(deck);
        scenario.markers = file_->markers();
        scenario = workload::on_cluster(std::move(scenario), std::move(machines));
        workload::balance_stages(scenario, workload::table_of(scenario, *file_));
        return scenario;
    }
    /// Makes the scenario of the run.
    void make(const std::vector<std::string>& settings, const std::string& name = "vlm_glyphs.toml") {
        scenario_ = std::make_unique<workload::Scenario>(scenario_of(deck_of(settings, name), cluster()));
        table_ = std::make_unique<workload::SampleTable>(workload::table_of(*scenario_, *file_));
    }

    /// The rows of so many steps, in which replicas take the samples of the deck's order in turn.
    io::Rows rows_of(std::int64_t steps, const Seconds& seconds) const {
        const workload::Scenario& s = *scenario_;
        io::Rows rows;
        workload::DataOrder order(s.seed, table_->size(), s.global_batch);
        for (std::int64_t step = 1; step <= steps; ++step) {
            const std::span<const std::int64_t> ids = order.batch(step - 1);
            double now_s = 0;
            for (int section = 0; section < static_cast<int>(s.graph.sections.size()); ++section) {
                const graph::Section& of = s.graph.sections[section];
                std::vector<std::int64_t> active;
                std::copy_if(ids.begin(), ids.end(), std::back_inserter(active),
                             [&](std::int64_t id) { return table_->activates(id, section); });
                // By replica group and number.
                std::map<std::pair<int, int>, Parts> batches;
                for (std::size_t i = 0; i < active.size(); ++i) {
                    const int replica = static_cast<int>(i) % of.layout.dp,
                              number = static_cast<int>(i) / of.layout.dp / of.micro_batch;
                    Parts& parts = batches[{replica / of.lane_replicas, number}];
                    parts.resize(static_cast<std::size_t>(of.lane_replicas));
                    parts[static_cast<std::size_t>(replica % of.lane_replicas)].push_back(active[i]);
                    rows.assignment.push_back({.step = step,
                                               .section = section,
                                               .replica = replica,
                                               .micro_batch = number,
                                               .sample = active[i]});
                }
                for (const auto& [key, parts] : batches)
                    for (std::size_t part = 0; part < parts.size(); ++part)
                        for (int stage = 0; stage < of.layout.stage_count() && !parts[part].empty(); ++stage)
                            for (const int phase : {0, 1}) {
                                const double task_s = seconds(s.graph.stage_of(section, stage),
                                                              static_cast<std::size_t>(phase), parts, part);
                                // A wait for weights is no work.
                                rows.tasks.push_back(
                                    {.section = section,
                                     .replica = key.first * of.lane_replicas + static_cast<int>(part),
                                     .stage = stage,
                                     .step = step,
                                     .micro_batch = key.second,
                                     .phase = phase,
                                     .start_s = now_s,
                                     .end_s = now_s + task_s + 0.25,
                                     .weights_s = 0.25});
                                now_s += task_s + 1;
                            }
            }
            rows.steps.push_back({.step = step, .time_s = now_s});
        }
        return rows;
    }

    /// Predicted seconds of the task of a micro-batch, which is perhaps not full.
    double task(const workload::CostModel& model, const std::vector<std::int64_t>& samples, int stage,
                std::size_t phase) const {
        const graph::Section& section = scenario_->graph.section_of(stage);
        const schedule::TaskCost lacking = model.lacking(stage);
        return sum(model, samples, stage, phase) +
               (section.micro_batch - static_cast<double>(samples.size())) *
                   (phase == 0 ? lacking.forward_s : lacking.backward_s);
    }
    /// Predicted seconds of these samples.
    static double sum(const workload::CostModel& model, const std::vector<std::int64_t>& samples, int stage,
                      std::size_t phase) {
        double seconds = 0;
        for (const std::int64_t id : samples) {
            const schedule::TaskCost cost = model.of(id).stages[stage];
            seconds += phase == 0 ? cost.forward_s : cost.backward_s;
        }
        return seconds;
    }

    std::vector<Correction> corrections(const io::Rows& rows, const std::set<std::int64_t>& steps) {
        return corrections_of("runs/test", *scenario_, *table_, probes_, rows, steps);
    }

    /// Expects that the costs of each sample under these corrections are `factor`(stage, phase) times those
    /// without.
    void expect_factors(const std::vector<Correction>& found,
                        const std::function<double(int, std::size_t)>& factor) {
        workload::Scenario corrected = *scenario_;
        corrected.cluster->corrections = found;
        const workload::CostModel before(*scenario_, *table_, probes_), after(corrected, *table_, probes_);
        for (std::int64_t id = 0; id < table_->size(); ++id)
            for (std::size_t k = 0; k < corrected.graph.stages.size(); ++k)
                for (const std::size_t phase : {0, 1}) {
                    const int stage = static_cast<int>(k);
                    const double plain_s = sum(before, {id}, stage, phase);
                    EXPECT_NEAR(sum(after, {id}, stage, phase), factor(stage, phase) * plain_s,
                                1e-9 * plain_s)
                        << "sample " << id << ", stage " << stage << ", phase " << phase;
                }
    }

    std::unique_ptr<data::SampleFile> file_;
    std::unique_ptr<workload::Scenario> scenario_;
    std::unique_ptr<workload::SampleTable> table_;
    workload::Probes probes_;
};

const std::vector<int> kLengths = {9,  40, 17, 70, 12, 90, 25, 33, 60, 14, 20, 80,
                                   11, 50, 30, 10, 45, 22, 75, 16, 28, 65, 13, 36};

TEST_F(Recorded, TasksGiveTheirFactorsAndEstimatesTakeThem) {
    write_samples(kLengths);
    make({});
    // Corrections of the file itself do not count: the factors are over its rates.
    Correction other{.section = "language", .precision = "fp32", .width = 128, .part = "stage"};
    other.forward_s = other.backward_s = 1;
    other.forward = other.backward = 50;
    const workload::CostModel predicted(*scenario_, *table_, probes_);
    scenario_->cluster->corrections = {other};
    // The last step would give other factors, but is not one of those that count.
    io::Rows rows = rows_of(2, [&](int stage, std::size_t phase, const Parts& parts, std::size_t part) {
        return (phase == 0 ? 3 : 2) * task(predicted, parts[part], stage, phase);
    });
    for (io::TaskRow& t : rows.tasks)
        if (t.step == 2) t.end_s += 7;
    const std::vector<Correction> found = corrections(rows, {1});
    scenario_->cluster->corrections.clear();
    std::set<std::string> sections;
    double forward_s = 0;
    for (const Correction& of : found) {
        sections.insert(of.section);
        EXPECT_NEAR(of.forward, 3, 1e-9);
        EXPECT_NEAR(of.backward, 2, 1e-9);
        if (of.section == "language") forward_s += of.forward_s;
    }
    EXPECT_EQ(sections, (std::set<std::string>{"vision", "language"}));
    workload::DataOrder order(scenario_->seed, table_->size(), scenario_->global_batch);
    const std::span<const std::int64_t> batch = order.batch(0);
    const std::vector<std::int64_t> ids(batch.begin(), batch.end());
    EXPECT_NEAR(forward_s, sum(predicted, ids, kLanguage, 0), 1e-9 * forward_s);
    expect_factors(found, [](int, std::size_t phase) { return phase == 0 ? 3 : 2; });

    workload::Scenario corrected = *scenario_;
    corrected.cluster->corrections = found;
    EXPECT_GT(workload::corrected_work(corrected, *table_, probes_, ids).measured_share, 0.95);
    // As a planner and the simulation take them.
    const auto estimate = [&](const workload::Scenario& s) {
        return workload::estimate(s, *table_, probes_, workload::rank_device_of(cluster(), {}), {}, ids);
    };
    const auto plain = estimate(*scenario_).problem.samples, used = estimate(corrected).problem.samples;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_NEAR(used[i].stages[kLanguage].forward_s, 3 * plain[i].stages[kLanguage].forward_s, 1e-12);
        EXPECT_NEAR(used[i].stages[kVision].backward_s, 2 * plain[i].stages[kVision].backward_s, 1e-12);
    }
    // Another layout is not measured; the encoder, which did not change, is.
    workload::Scenario wider = scenario_of(deck_of({"section.language.layout.tp=2"}), *corrected.cluster);
    const double of_encoder = workload::corrected_work(wider, *table_, probes_, ids).measured_share;
    EXPECT_GT(of_encoder, 0);
    EXPECT_LT(of_encoder, 0.5);
}

TEST_F(Recorded, LengthsHaveTheirOwnRatiosOfSums) {
    // With pictures the first of each pair has 28 to 36 rows: another class.
    write_samples({25, 10, 25, 50, 25, 80, 25, 50});
    make({"section.language.micro_batch=1", "section.language.layout.dp=1"});
    const workload::CostModel predicted(*scenario_, *table_, probes_);
    const std::map<std::int64_t, double> factors{{10, 5}, {50, 2}, {80, 4}};
    const io::Rows rows = rows_of(4, [&](int stage, std::size_t phase, const Parts& parts, std::size_t part) {
        const auto factor = factors.find(table_->length(parts[part].front(), kLanguage));
        return (factor == factors.end() ? 1 : factor->second) * task(predicted, parts[part], stage, phase);
    });
    double shorter_s = 0, longer_s = 0;
    for (const io::AssignmentRow& a : rows.assignment) {
        if (a.section != kLanguage) continue;
        if (table_->length(a.sample, kLanguage) == 50) shorter_s += sum(predicted, {a.sample}, kLanguage, 0);
        if (table_->length(a.sample, kLanguage) == 80) longer_s += sum(predicted, {a.sample}, kLanguage, 0);
    }
    ASSERT_GT(shorter_s, 0);
    ASSERT_GT(longer_s, 0);
    double of_short = 0, of_long = 0;
    for (const Correction& of : corrections(rows, {1, 2, 3, 4})) {
        if (of.section != "language") continue;
        EXPECT_DOUBLE_EQ(of.rows, of.length) << "a micro-batch is a sequence";
        if (of.length == 10) of_short = of.forward;
        if (of.length > 45 && of.length < 90) {
            of_long = of.forward;
            EXPECT_GT(of.length, 50);
            EXPECT_LT(of.length, 80);
        }
    }
    EXPECT_NEAR(of_short, 5, 1e-9);
    EXPECT_NEAR(of_long, (2 * shorter_s + 4 * longer_s) / (shorter_s + longer_s), 1e-9);
}

/// What ranks send is predicted as before, so that the corrected time is the measured one.
TEST_F(Recorded, MessagesAreNotCorrected) {
    write_samples(kLengths);
    make({"section.language.layout.tp=2"});
    workload::Scenario free = *scenario_;
    free.cluster->node = free.cluster->network = {0, 1e30};
    const workload::CostModel predicted(*scenario_, *table_, probes_), computed(free, *table_, probes_);
    ASSERT_GT(sum(predicted, {0}, kLanguage, 0), 1.1 * sum(computed, {0}, kLanguage, 0));
    const std::vector<Correction> found =
        corrections(rows_of(2,
                            [&](int stage, std::size_t phase, const Parts& parts, std::size_t part) {
                                return task(predicted, parts[part], stage, phase) +
                                       2 * task(computed, parts[part], stage, phase);
                            }),
                    {1, 2});
    for (const Correction& of : found) {
        EXPECT_EQ(of.tp, of.section == "language" ? 2 : 1);
        EXPECT_NEAR(of.forward, 3, 1e-9);
        EXPECT_NEAR(of.backward, 3, 1e-9);
    }
    workload::Scenario corrected = *scenario_;
    corrected.cluster->corrections = found;
    const workload::CostModel after(corrected, *table_, probes_);
    for (std::int64_t id = 0; id < table_->size(); ++id)
        EXPECT_NEAR(sum(after, {id}, kLanguage, 1),
                    sum(predicted, {id}, kLanguage, 1) + 2 * sum(computed, {id}, kLanguage, 1), 1e-9);
    // Where messages alone would take longer, something of the measured time is computation all the same.
    const io::Rows short_ones = rows_of(1, [](int, std::size_t, const Parts&, std::size_t) { return 1e-6; });
    double tenth_s = 0, computed_s = 0;
    for (const io::TaskRow& t : short_ones.tasks)
        if (t.section == kLanguage && t.phase == 0) tenth_s += 0.1 * t.work_s();
    for (const Correction& of : corrections(short_ones, {1}))
        if (of.section == "language") computed_s += of.forward * of.forward_s;
    EXPECT_NEAR(computed_s, tenth_s, 1e-9 * tenth_s);
}

TEST_F(Recorded, StagesHaveTheirOwnFactors) {
    write_samples(kLengths);
    make({"section.language.layout.pp=2"});
    const workload::CostModel predicted(*scenario_, *table_, probes_);
    const auto factor = [&](int stage, std::size_t) { return stage == 1 ? 2.0 : stage == 2 ? 5.0 : 1.0; };
    const std::vector<Correction> found =
        corrections(rows_of(2,
                            [&](int stage, std::size_t phase, const Parts& parts, std::size_t part) {
                                return factor(stage, phase) * task(predicted, parts[part], stage, phase);
                            }),
                    {1, 2});
    expect_factors(found, factor);
    // In one stage, each half of the layers counts by its time.
    double halves_s[2] = {0, 0};
    for (const Correction& of : found)
        if (of.section == "language") halves_s[of.begin > 0] += of.forward_s;
    make({});
    workload::Scenario corrected = *scenario_;
    corrected.cluster->corrections = found;
    const std::vector<std::int64_t> long_ones{5, 11, 21};
    const double ratio = sum({corrected, *table_, probes_}, long_ones, kLanguage, 0) /
                         sum({*scenario_, *table_, probes_}, long_ones, kLanguage, 0);
    EXPECT_NEAR(ratio, (2 * halves_s[0] + 5 * halves_s[1]) / (halves_s[0] + halves_s[1]), 0.1);
}

/// Replicas that share experts end a task together: the one with most work holds up the others.
TEST_F(Recorded, PartsOfALaneWaitForEachOther) {
    write_samples(kLengths);
    make({"section.language.layout.dp=2", "section.language.layout.ep=4"}, "layouts_moe.toml");
    ASSERT_EQ(scenario_->graph.sections[kLanguage].lane_replicas, 2);
    scenario_->cluster->node = scenario_->cluster->network = {0, 1e30};
    const workload::CostModel predicted(*scenario_, *table_, probes_);
    ASSERT_GT(predicted.of(0).stages[kLanguage].common, 0.05);
    const io::Rows rows = rows_of(2, [&](int stage, std::size_t phase, const Parts& parts, std::size_t) {
        double longest_s = 0, common_s = 0;
        for (const std::vector<std::int64_t>& samples : parts) {
            double alone_s = 0;
            for (const std::int64_t id : samples) {
                const double seconds = sum(predicted, {id}, stage, phase),
                             common = predicted.of(id).stages[stage].common;
                alone_s += (1 - common) * seconds;
                common_s += common * seconds;
            }
            longest_s = std::max(longest_s, alone_s);
        }
        return longest_s + common_s / static_cast<double>(parts.size());
    });
    for (const Correction& of : corrections(rows, {1, 2})) {
        if (of.section != "language") continue;
        EXPECT_EQ(of.ep, 4);
        EXPECT_NEAR(of.forward, 1, 1e-9);
        EXPECT_NEAR(of.backward, 1, 1e-9);
    }
}

class RecordedRun : public Recorded {
protected:
    void SetUp() override {
        write_samples(kLengths);
        make({});
        const workload::CostModel predicted(*scenario_, *table_, probes_);
        rows_ = rows_of(8, [&](int stage, std::size_t phase, const Parts& parts, std::size_t part) {
            return 3 * task(predicted, parts[part], stage, phase);
        });
        // The first steps after a start take longer.
        for (io::TaskRow& t : rows_.tasks)
            if (t.step <= 3) t.end_s += 1;
        store(1);
    }
    void store(std::int64_t first_step) const {
        Pulse quiet;
        io::create_metrics(
            folder_ / "metrics.h5",
            {.deck = "", .environment = "", .sections = {"vision", "language"}, .first_step = first_step},
            rows_, quiet);
    }
    /// The corrections that a scenario of the deck with these settings gets.
    std::vector<Correction> added(const std::vector<std::string>& settings,
                                  const std::vector<std::string>& of_run = {}, std::string kind = "cpu") {
        const config::Deck deck = deck_of(settings), run_deck = deck_of(of_run);
        config::Cluster machines = cluster();
        machines.device.kind = std::move(kind);
        workload::Scenario scenario = scenario_of(deck, machines);
        add_corrections(scenario, deck, {folder_.string(), run_deck, workload::make_scenario(run_deck)});
        return scenario.cluster->corrections;
    }
    void expect_refused_with(const std::string& words, const std::vector<std::string>& settings = {},
                             const std::vector<std::string>& of_run = {}, const std::string& kind = "cpu") {
        const auto thrown = testing_support::error_of([&] { added(settings, of_run, kind); });
        EXPECT_EQ(thrown.code, ExitCode::bad_data) << thrown.what;
        EXPECT_THAT(thrown.what, HasSubstr(words));
        EXPECT_THAT(thrown.what, HasSubstr("--measured " + folder_.string()));
    }
    io::Rows rows_;
};

TEST_F(RecordedRun, CountsWithoutItsFirstSteps) {
    std::vector<Correction> found = added({"section.language.layout.tp=2", "model.glyph-language.layers=6"});
    ASSERT_FALSE(found.empty());
    for (const Correction& of : found) EXPECT_NEAR(of.forward, 3, 1e-9) << of.section;
    // Also where the program began again, perhaps in other layouts.
    for (io::TaskRow& t : rows_.tasks)
        if (t.step < 8) t.end_s += 1;
    store(5);
    for (const Correction& of : added({})) EXPECT_NEAR(of.forward, 3, 1e-9) << of.section;
    store(6);
    expect_refused_with(
        "the first 3 do not count, and no tasks of others are recorded; its last start began "
        "with step 6, its last recorded step is 8");
}

TEST_F(RecordedRun, OfAnotherModelDoesNotCount) {
    std::set<std::string> sections;
    for (const Correction& of : added({"model.glyph-vision.mlp=64"})) sections.insert(of.section);
    EXPECT_EQ(sections, std::set<std::string>{"language"});
    expect_refused_with("section vision does not count: it computed in fp32, the deck does in bf16",
                        {"run.precision=bf16"});
    expect_refused_with("section language does not count: its model has width 128, the deck's 64",
                        {"model.glyph-language.width=64", "model.glyph-vision.mlp=64"});
}

TEST_F(RecordedRun, ThatMeasuresNothingIsRefused) {
    expect_refused_with("run.device is emulated there", {},
                        {"run.device=emulated", "emulated.cluster=inputs/clusters/h100.toml"});
    expect_refused_with("run.device is cpu there, and the ranks of cluster test are GPUs", {}, {}, "gpu");
    expect_refused_with("step 4 had sample", {}, {"run.seed=2"});
    rows_.assignment.clear();
    store(1);
    expect_refused_with("/timeline has a task of step 4 in stage 0 and replica 0 of section vision");
    rows_.tasks.clear();
    store(1);
    expect_refused_with("no tasks are recorded there; train with metrics.timeline_every of 1 or more");
    std::filesystem::remove(folder_ / "metrics.h5");
    EXPECT_EQ(testing_support::error_of([&] { added({}); }).code, ExitCode::input_missing);
}

}  // namespace
}  // namespace maestro::recorded
