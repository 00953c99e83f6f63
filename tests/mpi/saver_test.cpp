// Checkpoints of a small job saved in every layout that the ranks allow, and read in every other: weights and
// moments are what they were, element by element.
#include "train/saver.hpp"

#include <cmath>
#include <functional>

#include "io/checkpoint_reader.hpp"
#include "mpi/expect.hpp"
#include "mpi/mpi_main.hpp"
#include "support/scratch_folder.hpp"
#include "train/checkpoint_search.hpp"
#include "train/survey.hpp"
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

/// How the two sections lie on the first ranks.
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

/// A number for each element, which no two groups, sections, or neighbours share.
float value_of(io::Stored group, const std::string& section, const std::string& name, std::int64_t i) {
    const auto key = static_cast<double>(std::hash<std::string>{}(section + "/" + name) % 1000);
    const double v = std::sin(key + 0.7 * static_cast<double>(i) + 3.0 * static_cast<int>(group));
    return static_cast<float>(group == io::Stored::second ? v * v : v);
}

std::vector<float> values_of(io::Stored group, const std::string& section, const model::Parameter& p) {
    std::vector<float> values(static_cast<std::size_t>(p.size()));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = value_of(group, section, p.name, static_cast<std::int64_t>(i));
    return values;
}

/// A job on the first ranks of the world, which are its world.
class Stage {
public:
    Stage(const comm::Communicator& ranks, const fs::path& folder, std::vector<std::string> overrides)
        : launch_{.world = ranks, .watchdog = watchdog_, .pulse = quiet_, .topology = {}, .deck = {}} {
        overrides.push_back("data.train=" + (folder / "samples.h5").string());
        launch_.topology.host = "host";
        launch_.topology.ranks_on_node = ranks.size();
        launch_.deck = config::parse_deck(kDeck, "deck", overrides, config::Command::train);
        survey_ = std::make_unique<train::Survey>(launch_);
        job_ = std::make_unique<train::Job>(launch_, *survey_, true);
    }

    train::Job& job() { return *job_; }

    /// As if trained for a while: replicas have the same weights, and moments of a share each.
    void fill() {
        for (auto& replica : job_->replicas()) {
            train::Optimizer* optimizer = replica->optimizer();
            for (const model::Parameter& p : replica->module().parameters().parameters()) {
                const std::vector<float> weights = values_of(io::Stored::weight, replica->name(), p);
                std::copy(weights.begin(), weights.end(), p.master.as<float>());
                if (!optimizer || !p.trainable) continue;
                const auto [from, to] = optimizer->share_of(p);
                if (from >= to) continue;
                const auto share = [&, begin = from, end = to](io::Stored group) {
                    const std::vector<float> all = values_of(group, replica->name(), p);
                    return std::vector<float>(all.begin() + begin, all.begin() + end);
                };
                optimizer->set_moments(p, share(io::Stored::first), share(io::Stored::second));
            }
            replica->module().parameters().refresh_compute();
        }
    }

    /// Collective: all weights, what the model computes with, and all moments.
    void check() {
        for (auto& replica : job_->replicas()) {
            std::vector<float> first, second;
            if (train::Optimizer* optimizer = replica->optimizer()) optimizer->gather(first, second);
            for (const model::Parameter& p : replica->module().parameters().parameters()) {
                const std::vector<float> weights = values_of(io::Stored::weight, replica->name(), p);
                expect_same(weights, p.master.as<float>(), replica->name(), p.name, "weight");
                for (std::size_t i = 0; p.weight.dtype == DType::bf16 && i < weights.size(); ++i)
                    MAESTRO_CHECK(
                        static_cast<float>(p.weight.as<bf16>()[i]) == static_cast<float>(bf16(weights[i])),
                        "element {} of {} for computing", i, p.name);
                if (first.empty() || !p.trainable) continue;
                expect_same(values_of(io::Stored::first, replica->name(), p), first.data() + p.offset,
                            replica->name(), p.name, "first moment");
                expect_same(values_of(io::Stored::second, replica->name(), p), second.data() + p.offset,
                            replica->name(), p.name, "second moment");
            }
        }
    }

private:
    static void expect_same(const std::vector<float>& due, const float* found, const std::string& section,
                            const std::string& name, const char* what) {
        for (std::size_t i = 0; i < due.size(); ++i)
            MAESTRO_CHECK(found[i] == due[i], "section {}: {} {} of {} is {}, not {}", section, what, i, name,
                          found[i], due[i]);
    }

    comm::Watchdog watchdog_{{.timeout_s = 60, .on_hang = {}, .abort = {}}};
    Pulse quiet_;
    train::Launch launch_;
    std::unique_ptr<train::Survey> survey_;
    std::unique_ptr<train::Job> job_;
};

/// What the files hold, read one by one.
void check_files(Stage& stage, const fs::path& checkpoint, bool trained) {
    Pulse quiet;
    const io::TrainState state = io::read_train_state(checkpoint, quiet);
    MAESTRO_CHECK(state.step == kStep && state.samples == stage.job().samples().identity() &&
                      state.counts == (io::RowCounts{.steps = 1, .tasks = 2, .assignment = 0}),
                  "step {}, {} rows of steps", state.step, state.counts.steps);
    MAESTRO_CHECK(
        state.settings == stage.job().launch().deck.settings && state.deck == stage.job().launch().deck.text,
        "the deck");
    MAESTRO_CHECK(io::sections_of(checkpoint).size() == 2, "sections");
    for (auto& replica : stage.job().replicas()) {
        const io::SectionReader file(checkpoint, replica->name(), quiet);
        for (const model::Parameter& p : replica->module().parameters().parameters())
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

/// Saves in one layout and loads in all others; `with`: of the deck, in both.
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
            train::save_checkpoint(stage.job(), run, kStep, {});
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
            train::load_checkpoint(stage.job(), saved.string());
            stage.check();
        }
    }
}

/// Weights that are no numbers are not kept: all ranks are told, whoever holds them.
void weights_that_are_no_numbers_are_refused(const comm::Communicator& world, const fs::path& folder) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "refused";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, layout.overrides);
        stage.fill();
        for (auto& replica : stage.job().replicas())
            if (replica->name() == "language")
                replica->module().parameters().parameters().back().master.as<float>()[1] = NAN;
        test::expect_error(ExitCode::not_finite, "section language: element 1 of ",
                           [&] { train::save_checkpoint(stage.job(), run, kStep, {}); });
        MAESTRO_CHECK(!fs::exists(run / "checkpoints" / "step-000007"), "nothing has the final name");
    }
}

}  // namespace

int main(int argc, char** argv) {
    return test::run(argc, argv, [](const comm::Communicator& world) {
        std::unique_ptr<testing_support::ScratchFolder> own;
        std::string folder;
        if (world.rank() == 0) {
            own = std::make_unique<testing_support::ScratchFolder>();
            folder = own->path().string();
            data_test::SampleArrays samples;
            for (int i = 0; i < 8; ++i) samples.add({257, 256, 'a' + i, 258}, {{8 + i, 16}});
            data_test::SampleFileWriter{}.write(own->path() / "samples.h5", samples);
        }
        world.broadcast(folder);
        every_layout_reads_every_other(world, folder, {}, true);
        every_layout_reads_every_other(
            world, folder,
            {"run.precision=bf16", "section.vision.mode=forward", "section.vision.weights=random"}, false);
        weights_that_are_no_numbers_are_refused(world, folder);
        world.barrier();
    });
}
