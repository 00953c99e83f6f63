// A small job whose weights and moments are known numbers, for the tests of checkpoints.
#pragma once

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint_reader.hpp"
#include "mpi/mpi_main.hpp"
#include "mpi/shard_grid.hpp"
#include "train/setup/job.hpp"
#include "train/setup/preflight.hpp"

namespace maestro::test {

namespace fs = std::filesystem;

inline constexpr std::int64_t kStep = 7;

inline constexpr const char* kDeck = R"([run]
name = "saver"
seed = 3
output = "unused"
device = "cpu"
[data]
train = "unused"
global_batch = 4
sequence_length = 64
[train]
steps = 9
[optimizer]
learning_rate = 0.001
[model.eye]
kind = "vision"
layers = 1
width = 16
heads = 2
head_dim = 8
mlp = 24
patch = 4
merge = 2
[model.tongue]
kind = "language"
layers = 2
width = 24
heads = 2
kv_heads = 1
head_dim = 12
mlp = 40
vocabulary = 260
[[section]]
name = "vision"
model = "eye"
micro_batch = 2
window = 2
[[section]]
name = "language"
model = "tongue"
micro_batch = 2
window = 2
[[edge]]
from = "vision"
to = "language"
)";

/// The layouts of the two sections on the first ranks.
struct Layout {
    int ranks;
    std::vector<std::string> overrides;
};
inline const std::vector<Layout> kLayouts = {
    {1, {"section.language.colocate_with=vision"}},
    {2, {}},
    {2,
     {"section.language.colocate_with=vision", "section.vision.layout.dp=2", "section.language.layout.dp=2"}},
    {3, {"section.language.layout.dp=2"}},
    {3,
     {"section.language.colocate_with=vision", "section.vision.layout.dp=3", "section.language.layout.dp=3"}},
};

inline const std::vector<std::string> kFrozenVision = {"run.precision=bf16", "section.vision.mode=forward",
                                                       "section.vision.weights=random"};

/// A number for each element. Groups, sections and neighbouring elements have different ones.
inline float value_of(io::Stored group, const std::string& section, const std::string& name, std::int64_t i) {
    const auto key = static_cast<double>(std::hash<std::string>{}(section + "/" + name) % 1000);
    const double v = std::sin(key + 0.7 * static_cast<double>(i) + 3.0 * static_cast<int>(group));
    return static_cast<float>(group == io::Stored::second ? v * v : v);
}

/// Returns those of the elements that a rank holds which are in `held`. Frozen weights are kept, and saved,
/// in the type in which the model computes.
inline std::vector<float> values_of(io::Stored group, const std::string& section,
                                    const parallel::Parameter& p, Range held) {
    const bool rounded = !p.trainable && p.weight.dtype == DType::bf16;
    std::vector<float> values;
    for (const Extent& extent : extents_of(p.shape, p.shard, held))
        for (std::int64_t i = 0; i < extent.count; ++i) {
            const float value = value_of(group, section, p.name, extent.logical + i);
            values.push_back(rounded ? static_cast<float>(bf16(value)) : value);
        }
    return values;
}
inline std::vector<float> values_of(io::Stored group, const std::string& section,
                                    const parallel::Parameter& p) {
    return values_of(group, section, p, {0, p.size()});
}

/// Fills a store as after some training: all ranks have the same weights, and the moments of their shards.
inline void fill_section(const std::string& section, parallel::ParameterStore& store,
                         train::Optimizer* optimizer) {
    for (const parallel::Parameter& p : store.parameters()) {
        std::vector<float> weights = values_of(io::Stored::weight, section, p);
        store.group_of(p).set_weights(p, {0, p.size()}, Tensor(weights.data(), DType::f32, {p.size()}));
        if (!optimizer) continue;
        if (const Range share = updated(store, p); share.size() > 0)
            optimizer->set_moments(p, share, values_of(io::Stored::first, section, p, share),
                                   values_of(io::Stored::second, section, p, share));
    }
}

inline std::span<const float> elements_of(const Tensor& t) {
    return {t.as<float>(), static_cast<std::size_t>(t.size())};
}

inline void expect_same(const std::vector<float>& due, std::span<const float> found,
                        const std::string& section, const std::string& name, const char* what) {
    MAESTRO_CHECK(found.size() == due.size(), "section {}: {} {}s of {}", section, found.size(), what, name);
    for (std::size_t i = 0; i < due.size(); ++i)
        MAESTRO_CHECK(found[i] == due[i], "section {}: {} {} of {} is {}, not {}", section, what, i, name,
                      found[i], due[i]);
}

/// The weights, their copies that the model computes with, and the moments kept here.
inline void check_section(const std::string& section, const parallel::ParameterStore& store,
                          const train::Optimizer* optimizer) {
    for (const parallel::Parameter& p : store.parameters()) {
        const std::vector<float> weights = values_of(io::Stored::weight, section, p);
        for (std::size_t i = 0; p.weight.dtype == DType::bf16 && i < weights.size(); ++i)
            MAESTRO_CHECK(static_cast<float>(p.weight.as<bf16>()[i]) == static_cast<float>(bf16(weights[i])),
                          "element {} of {} for computing", i, p.name);
        if (const Range shard = store.group_of(p).shard_of(p); p.trainable && shard.size() > 0)
            expect_same(values_of(io::Stored::weight, section, p, shard),
                        elements_of(store.group_of(p).shard_weights(p, shard)), section, p.name,
                        "master weight");
        if (p.weight.dtype == DType::f32)
            expect_same(weights, elements_of(p.weight.reshape({p.size()})), section, p.name, "weight");
        if (!optimizer) continue;
        const Range share = updated(store, p);
        if (share.size() <= 0) continue;
        expect_same(values_of(io::Stored::first, section, p, share), elements_of(optimizer->first_moments(p)),
                    section, p.name, "first moment");
        expect_same(values_of(io::Stored::second, section, p, share),
                    elements_of(optimizer->second_moments(p)), section, p.name, "second moment");
    }
}

/// The name by which other values are drawn.
inline constexpr const char* kSpoilt = "spoilt";

/// A job whose world is the first ranks of the test's world.
class Stage {
public:
    Stage(const comm::Communicator& ranks, const fs::path& folder, std::vector<std::string> overrides)
        : context_{.world = ranks, .watchdog = watchdog_, .pulse = quiet_, .topology = {}, .deck = {}} {
        overrides.push_back("data.train=" + (folder / "samples.h5").string());
        context_.topology.host = "host";
        context_.topology.ranks_on_node = ranks.size();
        context_.deck = config::parse_deck(kDeck, "deck", overrides, config::Command::train);
        context_.scenario = workload::make_scenario(context_.deck);
        preflight_ = std::make_unique<train::Preflight>(context_);
        job_ = std::make_unique<train::Job>(context_, *preflight_);
        job_->load_initial();
    }

    train::Job& job() { return *job_; }

    void fill() {
        for (auto& replica : job_->stages())
            fill_section(replica->name(), replica->module().parameters(), replica->optimizer());
    }
    /// Other weights and moments of what is trained, as of a later step.
    void spoil() {
        for (auto& replica : job_->stages())
            if (replica->optimizer())
                fill_section(kSpoilt, replica->module().parameters(), replica->optimizer());
    }
    void check_spoilt() {
        for (auto& replica : job_->stages())
            check_section(replica->optimizer() ? kSpoilt : replica->name(), replica->module().parameters(),
                          replica->optimizer());
    }
    void check() {
        for (auto& replica : job_->stages())
            check_section(replica->name(), replica->module().parameters(), replica->optimizer());
    }

private:
    comm::Watchdog watchdog_{{.timeout_s = 2 * kHangS, .on_hang = {}, .abort = {}}};
    Pulse quiet_;
    train::RunContext context_;
    std::unique_ptr<train::Preflight> preflight_;
    std::unique_ptr<train::Job> job_;
};

/// Checks what each file holds.
inline void check_files(Stage& stage, const fs::path& checkpoint, bool trained) {
    Pulse quiet;
    const io::TrainState state = io::read_train_state(checkpoint, quiet);
    MAESTRO_CHECK(state.step == kStep && state.samples == stage.job().samples().identity() &&
                      state.counts == (io::RowCounts{.steps = 1, .tasks = 2, .assignment = 0}),
                  "step {}, {} rows of steps", state.step, state.counts.steps);
    MAESTRO_CHECK(state.settings == stage.job().context().deck.settings &&
                      state.deck == stage.job().context().deck.text,
                  "the deck");
    MAESTRO_CHECK(io::sections_of(checkpoint).size() == 2, "sections");
    for (auto& replica : stage.job().stages()) {
        const io::SectionReader file(checkpoint, replica->name(), quiet);
        for (const parallel::Parameter& p : replica->module().parameters().parameters())
            for (const io::Stored group : {io::Stored::weight, io::Stored::first, io::Stored::second}) {
                if (group != io::Stored::weight && !(trained && p.trainable)) continue;
                MAESTRO_CHECK(
                    file.read(p.name, p.shape, group, p.shard) == values_of(group, replica->name(), p),
                    "section {}: {} in the file", replica->name(), p.name);
            }
    }
}

/// The first `count` ranks, empty on the others. Collective over the world.
inline comm::Communicator first_ranks(const comm::Communicator& world, int count) {
    return world.split(world.rank() < count ? 0 : -1, world.rank(), "first ranks");
}

inline void make_run(const fs::path& run) {
    Pulse quiet;
    fs::create_directories(run);
    io::Rows rows;
    rows.steps.push_back({.step = 1});
    rows.tasks.resize(2);
    io::create_metrics(run / "metrics.h5",
                       {.deck = kDeck, .environment = "", .sections = {"vision", "language"}}, rows, quiet);
}

inline std::vector<std::string> both(std::vector<std::string> settings,
                                     const std::vector<std::string>& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
}

}  // namespace maestro::test
