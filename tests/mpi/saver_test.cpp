// Checkpoints of a small job saved in every layout that the ranks allow, and read in every other: weights and
// moments are what they were, element by element. The same of shards on every grid of dp x cp and tp, whose
// file has the bytes of the one that a single rank writes.
#include "train/checkpoint/saver.hpp"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <functional>

#include "comm/agree.hpp"
#include "io/checkpoint_reader.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "mpi/shard_grid.hpp"
#include "storage/file.hpp"
#include "support/scratch_folder.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/stage_parts.hpp"
#include "train/checkpoint/weights.hpp"
#include "train/run/job.hpp"
#include "train/run/preflight.hpp"
#include "unit/data/sample_writer.hpp"

namespace {

using namespace maestro;
namespace fs = std::filesystem;

constexpr std::int64_t kStep = 7;

constexpr const char* kDeck = R"([run]
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
const std::vector<Layout> kLayouts = {
    {1, {"section.language.colocate_with=vision"}},
    {2, {}},
    {2,
     {"section.language.colocate_with=vision", "section.vision.layout.dp=2", "section.language.layout.dp=2"}},
    {3, {"section.language.layout.dp=2"}},
    {3,
     {"section.language.colocate_with=vision", "section.vision.layout.dp=3", "section.language.layout.dp=3"}},
};

/// A number for each element. Groups, sections and neighbouring elements have different ones.
float value_of(io::Stored group, const std::string& section, const std::string& name, std::int64_t i) {
    const auto key = static_cast<double>(std::hash<std::string>{}(section + "/" + name) % 1000);
    const double v = std::sin(key + 0.7 * static_cast<double>(i) + 3.0 * static_cast<int>(group));
    return static_cast<float>(group == io::Stored::second ? v * v : v);
}

/// Returns those of the elements that a rank holds which are in `held`. Frozen weights are kept, and saved,
/// in the type in which the model computes.
std::vector<float> values_of(io::Stored group, const std::string& section, const parallel::Parameter& p,
                             Range held) {
    const bool rounded = !p.trainable && p.weight.dtype == DType::bf16;
    std::vector<float> values;
    for (const Extent& extent : extents_of(p.shape, p.shard, held))
        for (std::int64_t i = 0; i < extent.count; ++i) {
            const float value = value_of(group, section, p.name, extent.logical + i);
            values.push_back(rounded ? static_cast<float>(bf16(value)) : value);
        }
    return values;
}
std::vector<float> values_of(io::Stored group, const std::string& section, const parallel::Parameter& p) {
    return values_of(group, section, p, {0, p.size()});
}

/// Fills a store as after some training: all ranks have the same weights, and the moments of their shards.
void fill_section(const std::string& section, parallel::ParameterStore& store, train::Optimizer* optimizer) {
    for (const parallel::Parameter& p : store.parameters()) {
        std::vector<float> weights = values_of(io::Stored::weight, section, p);
        store.group_of(p).set_weights(p, {0, p.size()}, Tensor(weights.data(), DType::f32, {p.size()}));
        if (!optimizer) continue;
        if (const Range share = test::updated(store, p); share.size() > 0)
            optimizer->set_moments(p, values_of(io::Stored::first, section, p, share),
                                   values_of(io::Stored::second, section, p, share));
    }
}

std::span<const float> elements_of(const Tensor& t) {
    return {t.as<float>(), static_cast<std::size_t>(t.size())};
}

void expect_same(const std::vector<float>& due, std::span<const float> found, const std::string& section,
                 const std::string& name, const char* what) {
    MAESTRO_CHECK(found.size() == due.size(), "section {}: {} {}s of {}", section, found.size(), what, name);
    for (std::size_t i = 0; i < due.size(); ++i)
        MAESTRO_CHECK(found[i] == due[i], "section {}: {} {} of {} is {}, not {}", section, what, i, name,
                      found[i], due[i]);
}

/// The weights, their copies that the model computes with, and the moments kept here.
void check_section(const std::string& section, const parallel::ParameterStore& store,
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
        const Range share = test::updated(store, p);
        if (share.size() <= 0) continue;
        expect_same(values_of(io::Stored::first, section, p, share), elements_of(optimizer->first_moments(p)),
                    section, p.name, "first moment");
        expect_same(values_of(io::Stored::second, section, p, share),
                    elements_of(optimizer->second_moments(p)), section, p.name, "second moment");
    }
}

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
    void check() {
        for (auto& replica : job_->stages())
            check_section(replica->name(), replica->module().parameters(), replica->optimizer());
    }

private:
    comm::Watchdog watchdog_{{.timeout_s = 2 * test::kHangS, .on_hang = {}, .abort = {}}};
    Pulse quiet_;
    train::RunContext context_;
    std::unique_ptr<train::Preflight> preflight_;
    std::unique_ptr<train::Job> job_;
};

/// Checks what each file holds.
void check_files(Stage& stage, const fs::path& checkpoint, bool trained) {
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
comm::Communicator first_ranks(const comm::Communicator& world, int count) {
    return world.split(world.rank() < count ? 0 : -1, world.rank(), "first ranks");
}

void make_run(const fs::path& run) {
    Pulse quiet;
    fs::create_directories(run);
    io::Rows rows;
    rows.steps.push_back({.step = 1});
    rows.tasks.resize(2);
    io::create_metrics(run / "metrics.h5",
                       {.deck = kDeck, .environment = "", .sections = {"vision", "language"}}, rows, quiet);
}

/// Saves in one layout and loads in all others. `with`: settings of both decks.
void every_layout_reads_every_other(const comm::Communicator& world, const fs::path& folder,
                                    const std::vector<std::string>& with, bool trained) {
    const auto overrides = [&](const Layout& layout) {
        std::vector<std::string> all = layout.overrides;
        all.insert(all.end(), with.begin(), with.end());
        return all;
    };
    for (std::size_t from = 0; from < kLayouts.size(); ++from) {
        if (kLayouts[from].ranks > world.size()) continue;
        const fs::path run = folder / fmt::format("run-{}-{}", from, with.size());
        const fs::path saved = run / "checkpoints" / "step-000007";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        if (const comm::Communicator ranks = first_ranks(world, kLayouts[from].ranks)) {
            Stage stage(ranks, folder, overrides(kLayouts[from]));
            stage.fill();
            train::save_checkpoint(stage.job().state(), run, kStep, {});
            stage.check();  // saving changes nothing
            check_files(stage, saved, trained);
            Pulse quiet;
            MAESTRO_CHECK(fs::path(train::need_checkpoint(ranks, run.string(), quiet)) == saved,
                          "it is whole");
        }
        for (const Layout& to : kLayouts) {
            if (to.ranks > world.size()) continue;
            const comm::Communicator ranks = first_ranks(world, to.ranks);
            if (!ranks) continue;
            Stage stage(ranks, folder, overrides(to));
            stage.job().load(saved.string());
            stage.check();
        }
    }
}

/// Weights that are NaN or Inf are not saved: all ranks throw, whichever rank holds them.
void weights_that_are_not_finite_are_refused(const comm::Communicator& world, const fs::path& folder) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "refused";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, layout.overrides);
        stage.fill();
        for (auto& replica : stage.job().stages())
            if (replica->name() == "language")
                replica->module().parameters().parameters().back().weight.as<float>()[1] = NAN;
        test::expect_error(ExitCode::not_finite, "section language: element 1 of ",
                           [&] { train::save_checkpoint(stage.job().state(), run, kStep, {}); });
        MAESTRO_CHECK(!fs::exists(run / "checkpoints" / "step-000007"), "nothing has the final name");
    }
}

/// While it lives this rank's writes beyond the first bytes of a file fail, as on a disk that is full.
class NoRoom {
public:
    explicit NoRoom(bool here) {
        std::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &before_);
        rlimit limit = before_;
        if (here) limit.rlim_cur = 1;
        MAESTRO_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
    }
    ~NoRoom() { ::setrlimit(RLIMIT_FSIZE, &before_); }
    NoRoom(const NoRoom&) = delete;
    NoRoom& operator=(const NoRoom&) = delete;

private:
    rlimit before_{};
};

/// One rank cannot write its part: all ranks throw, and nothing has the final name. The next checkpoint is
/// whole.
void a_rank_that_cannot_write_ends_all(const comm::Communicator& world, const fs::path& folder) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "no-room", saved = run / "checkpoints" / "step-000007";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, layout.overrides);
        stage.fill();
        for (int victim = 0; victim < world.size(); ++victim) {
            const NoRoom full(world.rank() == victim);
            test::expect_error(ExitCode::io_error, "File too large",
                               [&] { train::save_checkpoint(stage.job().state(), run, kStep, {}); });
            MAESTRO_CHECK(!fs::exists(saved), "nothing has the final name");
        }
        train::save_checkpoint(stage.job().state(), run, kStep, {});
        check_files(stage, saved, true);
        world.barrier();
        if (world.rank() == 0) fs::remove_all(run);
        world.barrier();
    }
}

/// A trained and a frozen section, sharded over the ranks of a grid.
class Shards {
public:
    Shards(const comm::Communicator& ranks, const test::Grid& grid, std::int64_t size)
        : ranks_(ranks), mesh_(test::mesh_of(ranks, grid)) {
        test::declare(trained_, grid, mesh_.tp_rank(), size);
        test::declare(frozen_, grid, mesh_.tp_rank(), size, false);
        optimizer_ = std::make_unique<train::Optimizer>(*backend_, trained_);
    }

    void fill() {
        fill_section("trained", trained_, optimizer_.get());
        fill_section("frozen", frozen_, nullptr);
    }
    void check() {
        check_section("trained", trained_, optimizer_.get());
        check_section("frozen", frozen_, nullptr);
    }
    /// Name, size and hash of the files, on every rank.
    std::string save(const fs::path& folder) {
        const bool first = ranks_.rank() == 0;
        const std::vector<train::StagePart> parts = {{0, "trained", trained_, optimizer_.get(), first},
                                                     {1, "frozen", frozen_, nullptr, first}};
        for (const train::StagePart& part : parts) train::check_finite(part, kStep);
        std::string text;
        for (const io::ManifestEntry& e : train::write_sections(ranks_, folder, kStep, 2, parts, quiet_))
            text += fmt::format("{} {} {:x};", e.file, e.bytes, e.hash);
        if (first)
            storage::write_text_durably(folder / "manifest.json",
                                        R"({"format": "maestro-checkpoint", "version": 3, "files": [
                    {"file": "trained.h5", "bytes": 0, "xxh64": "0"},
                    {"file": "frozen.h5", "bytes": 0, "xxh64": "0"}]})");
        ranks_.barrier();
        ranks_.broadcast(text);
        return text;
    }
    void load(const fs::path& folder) {
        train::load_weights(folder, "trained", trained_, quiet_);
        train::load_weights(folder, "frozen", frozen_, quiet_);
        train::load_moments(folder, "trained", trained_, *optimizer_, quiet_);
        for (parallel::ParameterStore* store : {&trained_, &frozen_})
            for (parallel::ParameterGroup& group : store->groups()) group.gather_weights();
    }
    /// The rank that would write a NaN or Inf reports it, with its index in the unsharded weight.
    void check_that_nan_is_found() {
        for (const parallel::Parameter& p : trained_.parameters())
            for (const Extent& extent : extents_of(p.shape, p.shard))
                if (p.name == "output" && extent.logical <= 4 && 4 < extent.logical + extent.count)
                    p.weight.as<float>()[extent.local + 4 - extent.logical] = INFINITY;
        test::expect_error(ExitCode::not_finite, "section trained: element 4 of output is inf", [&] {
            comm::agree(ranks_, [&] {
                train::check_finite({0, "trained", trained_, optimizer_.get(), false}, kStep);
            });
        });
    }

private:
    const comm::Communicator& ranks_;
    Pulse quiet_;
    std::unique_ptr<backend::Backend> backend_ = backend::make_cpu(1);
    parallel::Mesh mesh_;
    parallel::ParameterStore trained_{*backend_, mesh_, "trained", 1, DType::f32},
        frozen_{*backend_, mesh_, "frozen", 1, DType::bf16};
    std::unique_ptr<train::Optimizer> optimizer_;
};

/// Saves on every grid and reads on every other one. The files have the same bytes.
void every_grid_reads_every_other(const comm::Communicator& world, const fs::path& folder,
                                  std::int64_t size) {
    std::vector<test::Grid> grids;
    for (int ranks = 1; ranks <= world.size(); ++ranks)
        for (const test::Grid& grid : test::grids_of(ranks)) grids.push_back(grid);
    std::vector<std::string> bytes;
    for (std::size_t from = 0; from < grids.size(); ++from) {
        const fs::path saved = folder / fmt::format("grid-{}-{}", size, from);
        if (world.rank() == 0) fs::create_directories(saved);
        world.barrier();
        if (const comm::Communicator ranks = first_ranks(world, grids[from].ranks())) {
            Shards shards(ranks, grids[from], size);
            shards.fill();
            bytes.push_back(shards.save(saved));
            shards.check();
        }
        MAESTRO_CHECK(world.rank() != 0 || bytes.back() == bytes.front(), "data {} tp {} keys {}: {}, not {}",
                      grids[from].data, grids[from].tp, grids[from].keys, bytes.back(), bytes.front());
        // Of the many grids of many ranks every fourth: each is read somewhere.
        const std::size_t stride = world.size() > 3 ? 4 : 1;
        for (std::size_t to = 0; to < grids.size(); ++to) {
            if (to != from && (to + from) % stride != 0) continue;
            const comm::Communicator ranks = first_ranks(world, grids[to].ranks());
            if (!ranks) continue;
            Shards shards(ranks, grids[to], size);
            shards.load(saved);
            shards.check();
            if (to == from) shards.check_that_nan_is_found();
        }
        world.barrier();
        if (world.rank() == 0) fs::remove_all(saved);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        std::unique_ptr<testing_support::ScratchFolder> scratch;
        std::string folder;
        if (world.rank() == 0) {
            scratch = std::make_unique<testing_support::ScratchFolder>();
            folder = scratch->path().string();
            data_test::SampleArrays samples;
            for (int i = 0; i < 8; ++i) samples.add({257, 256, 'a' + i, 258}, {{8 + i, 16}});
            data_test::SampleFileWriter{}.write(scratch->path() / "samples.h5", samples);
        }
        world.broadcast(folder);
        every_layout_reads_every_other(world, folder, {}, true);
        every_layout_reads_every_other(
            world, folder,
            {"run.precision=bf16", "section.vision.mode=forward", "section.vision.weights=random"}, false);
        weights_that_are_not_finite_are_refused(world, folder);
        a_rank_that_cannot_write_ends_all(world, folder);
        for (const std::int64_t size : {1, 2, 11}) every_grid_reads_every_other(world, folder, size);
        world.barrier();
    });
}
