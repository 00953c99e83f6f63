// The memory plan: windows from a device's memory, and what each rank holds.
#include "workload/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "ops/adamw.hpp"
#include "unit/data/sample_file_fixture.hpp"
#include "unit/workload/glyph_scenario.hpp"
#include "workload/models.hpp"
#include "workload/rank_device.hpp"

namespace maestro::workload {
namespace {

class Memory : public data::SampleFileTest {
protected:
    void SetUp() override {
        data::SampleArrays arrays;
        for (int i = 0; i < 40; ++i) arrays.add({257, 256, 'x', 258}, {{64, 32 + i}});
        write(arrays);
        file_ = std::make_unique<data::SampleFile>(path_);
    }
    MemoryPlan plan(const std::vector<std::string>& settings, int threads = 1) {
        scenario_ = glyph_scenario(settings);
        scenario_.markers = file_->markers();
        Probes probes;
        return measure_memory(scenario_, table_of(scenario_, *file_), probes, threads);
    }
    double total(const MemoryPlan& plan, int rank) const {
        return memory_of(plan, scenario_.graph, rank).total();
    }
    Scenario scenario_;
    std::unique_ptr<data::SampleFile> file_;
};

TEST_F(Memory, CountsEachPartByItsRule) {
    const MemoryPlan memory = plan({});
    const RankMemory vision = memory_of(memory, scenario_.graph, 0),
                     language = memory_of(memory, scenario_.graph, 2);
    const auto& up = memory.stages[0];
    const auto& down = memory.stages[1];
    EXPECT_EQ(vision.weights, up.footprint.parameters);
    EXPECT_EQ(vision.weights, 8.0 * static_cast<double>(up.footprint.optimizer));  // fp32 weight and gradient
    EXPECT_EQ(vision.optimizer, 8.0 * static_cast<double>(up.footprint.optimizer));  // two moments
    // A third of the blocks of weights, rounded up.
    const auto blocks = static_cast<std::int64_t>(down.footprint.parameters) / 8 / parallel::kBlock;
    EXPECT_EQ(language.optimizer, 8.0 * static_cast<double>((blocks + 2) / 3 * parallel::kBlock));
    EXPECT_EQ(vision.activations, 6.0 * static_cast<double>(up.footprint.saved));
    EXPECT_EQ(language.activations, static_cast<double>(down.footprint.saved));  // its backward follows
    // Both ends of the edge have the six slots: rows here, gradients there. A slot has a flag for the arrival
    // of its eight samples, and one for each of them that each of three replicas may acknowledge.
    const double flags = 6 * (1 + 3 * 8) * 8 + 16;  // in whole cache lines
    const double rows = 6.0 * static_cast<double>(up.max_rows) * 128 * sizeof(float) + flags;
    EXPECT_EQ(vision.channels, rows);
    EXPECT_EQ(language.channels, rows);
    EXPECT_EQ(vision.scratch, up.footprint.scratch + up.footprint.sync_scratch);
}

TEST_F(Memory, RefusesMicroBatchesWithMoreRowsThan32BitsNumber) {
    // Eight samples of 16 pictures, each of 2^24 patches of one pixel. The pixels are a hole in the file.
    constexpr std::int64_t kSide = data::kLargestPicture, kPictures = 8 * 16;
    data::SampleArrays arrays;
    std::vector<std::int32_t> ids(16, 256);
    ids.push_back('x');
    for (int i = 0; i < 8; ++i) arrays.add(ids);
    arrays.picture_shape.assign(2 * kPictures, kSide);
    arrays.pixel_checksum.assign(kPictures, 0);
    for (std::int64_t i = 1; i <= kPictures; ++i) arrays.pixel_offsets.push_back(i * kSide * kSide);
    for (std::size_t i = 0; i <= 8; ++i) arrays.picture_offsets[i] = static_cast<std::int64_t>(16 * i);
    writer_.instead["pixels"] = [](hid_t file) {
        const hsize_t bytes = kPictures * kSide * kSide;
        const hid_t space = H5Screate_simple(1, &bytes, nullptr), list = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
        H5Pset_fill_time(list, H5D_FILL_TIME_NEVER);
        H5Dclose(H5Dcreate2(file, "pixels", H5T_STD_U8LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
        H5Pclose(list);
        H5Sclose(space);
    };
    write(arrays);
    file_ = std::make_unique<data::SampleFile>(path_);
    try {
        plan({"model.glyph-vision.patch=1"});
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_deck);
        EXPECT_THAT(error.what(),
                    testing::HasSubstr("section.vision.micro_batch: a micro-batch of 8 samples has up to "
                                       "2164260864 rows, and at most 2147483647 can be numbered"));
    }
}

TEST_F(Memory, CountsTheCopyThatIsSaved) {
    MemoryPlan memory = plan({"section.vision.mode=forward", "section.vision.weights=random"});
    const double before = total(memory, 2);
    EXPECT_EQ(snapshot_of(memory, scenario_.graph, 2), 0);
    memory.snapshots = true;
    // A third of the trained weights with their two moments; frozen weights do not change.
    const auto blocks = static_cast<double>(memory.stages[1].footprint.parameters) / 8 / parallel::kBlock;
    const double copy = 12.0 * std::ceil(blocks / 3) * parallel::kBlock;
    EXPECT_EQ(total(memory, 2) - before, copy);
    EXPECT_EQ(memory_of(memory, scenario_.graph, 0).snapshot, 0);
    EXPECT_NE(memory_of(memory, scenario_.graph, 2).describe().find("for the copy that is saved"),
              std::string::npos);
    memory.shares_scratch = false;  // a GPU, whose memory does not hold it
    EXPECT_EQ(total(memory, 2), before);
    EXPECT_EQ(snapshot_of(memory, scenario_.graph, 2), copy);
    // Its frozen weights are copied as well, because threads cannot read them: here a third of them.
    MemoryPlan shards =
        plan({"section.vision.mode=forward", "section.vision.weights=random", "section.vision.layout.dp=3"});
    shards.snapshots = true;
    EXPECT_EQ(snapshot_of(shards, scenario_.graph, 0), 0);
    shards.shares_scratch = false;
    const auto frozen = static_cast<double>(shards.stages[0].footprint.parameters) / 4 / parallel::kBlock;
    EXPECT_EQ(snapshot_of(shards, scenario_.graph, 0), 4.0 * std::ceil(frozen / 3) * parallel::kBlock);
}

TEST_F(Memory, NamesGradientsOnlyWhereASectionIsTrained) {
    const MemoryPlan memory = plan({"section.vision.mode=forward", "section.vision.weights=random"});
    const auto names = [](const std::string& text) {
        return std::pair(text.find("weights") != text.npos, text.find("gradients") != text.npos);
    };
    for (const auto& [section, rank, trained] : {std::tuple(0, 0, false), std::tuple(1, 2, true)}) {
        EXPECT_EQ(names(memory_of(memory, scenario_.graph, rank).describe()), std::pair(true, trained));
        EXPECT_EQ(names(describe(memory.stages[section])), std::pair(true, trained));
    }
}

TEST_F(Memory, GradientsAreSummedBesideTasks) {
    MemoryPlan memory = plan({});
    model::Footprint& down = memory.stages[1].footprint;
    down.scratch = 64;
    // The parts of both other replicas, and on a GPU the partial sums of the norm.
    EXPECT_EQ(memory_of(memory, scenario_.graph, 2).scratch,
              64 + 2.0 * sizeof(float) * static_cast<double>(down.optimizer) +
                  static_cast<double>(ops::squares_scratch(down.optimizer)));
}

/// Between nodes each row of the six slots is also in a message, at both ends.
TEST_F(Memory, MessagesCount) {
    MemoryPlan memory = plan({});
    const double before[] = {total(memory, 0), total(memory, 1)};
    EXPECT_EQ(memory_of(memory, scenario_.graph, 0).messages, 0);
    memory.channels[0].by_messages = true;
    const double rows = 6.0 * static_cast<double>(memory.stages[0].max_rows) * 128 * sizeof(float);
    for (const int rank : {0, 1}) {
        EXPECT_EQ(memory_of(memory, scenario_.graph, rank).messages, rows);
        EXPECT_EQ(total(memory, rank), before[rank] + rows);
    }
}

TEST_F(Memory, OpenWindowsTakeWhatTheDeviceHas) {
    // Of the encoder's rank, or of a language model's, which also keeps the encoder's rows: every rank fits,
    // and one micro-batch more in flight would not.
    for (const auto& [width, by_messages] : {std::pair{"model.glyph-language.width=128", false},
                                             std::pair{"model.glyph-language.width=128", true},
                                             std::pair{"model.glyph-language.width=1024", false}}) {
        MemoryPlan open = plan({"section.vision.window=0", "section.vision.micro_batch=1",
                                "section.language.micro_batch=1", width, "checkpoint.every=0"});
        open.channels[0].by_messages = by_messages;
        const auto largest = [&](int window) {
            MemoryPlan with = open;
            with.set_window(0, window, scenario_.graph);
            return std::max(total(with, 0), total(with, 1));
        };
        std::set<int> found;
        for (const double share : {0.0, 0.1, 0.35, 0.99}) {
            MemoryPlan chosen = open;
            const double bytes = largest(1) + share * (largest(80) - largest(1));
            choose_windows(chosen, scenario_.graph, bytes);
            const int window = chosen.stages[0].window;
            EXPECT_EQ(chosen.channels[0].window, window);
            EXPECT_LE(largest(window), bytes);
            EXPECT_GT(largest(window + 1), bytes);
            found.insert(window);
        }
        EXPECT_EQ(found.size(), 4U);
    }
    MemoryPlan memory = plan({"section.vision.window=0", "section.vision.micro_batch=1"});
    choose_windows(memory, scenario_.graph, 1e15);
    EXPECT_EQ(memory.stages[0].window, 80);  // the batch; more would be of no use
    MemoryPlan none = plan({"section.vision.window=0"});
    choose_windows(none, scenario_.graph,
                   1);                    // does not fit at all: one, and the caller sees that it does not
    EXPECT_EQ(none.stages[0].window, 1);  // eight samples, more than a micro-batch of language has
    none = plan({"section.vision.window=0", "section.vision.micro_batch=1"});
    choose_windows(none, scenario_.graph, 1);
    EXPECT_EQ(none.stages[0].window, 4);  // as many as those have
}

TEST_F(Memory, IsThatOfTheDeviceWhateverTheThreadsOfThisHost) {
    const int here = omp_get_max_threads();
    std::vector<std::vector<double>> bytes;
    for (const int host : {1, 16}) {
        omp_set_num_threads(host);
        const MemoryPlan memory = plan({});
        bytes.push_back({total(memory, 0), total(memory, 1)});
        for (const StageMemory& section : memory.stages)
            bytes.back().push_back(static_cast<double>(section.footprint.scratch));
    }
    omp_set_num_threads(here);
    EXPECT_EQ(bytes[0], bytes[1]);
    // A device of more threads has more in use within a task.
    const MemoryPlan one = plan({}), eight = plan({}, 8);
    EXPECT_GT(eight.stages[1].footprint.scratch, one.stages[1].footprint.scratch);
    EXPECT_EQ(eight.stages[1].footprint.saved, one.stages[1].footprint.saved);
}

TEST_F(Memory, SectionsOnOneRankShareScratchAndPassPointers) {
    const MemoryPlan memory = plan({"section.language.colocate_with=vision", "section.language.layout.dp=1"});
    const RankMemory both = memory_of(memory, scenario_.graph, 0);
    const double sums = static_cast<double>(memory.stages[0].footprint.sync_scratch +
                                            memory.stages[1].footprint.sync_scratch);
    EXPECT_EQ(both.scratch, static_cast<double>(std::max(memory.stages[0].footprint.scratch,
                                                         memory.stages[1].footprint.scratch)) +
                                sums);
    EXPECT_GT(both.channels, 0);  // slots for gradients, and none for rows
    // What each has for itself adds up.
    const model::Footprint &up = memory.stages[0].footprint, &down = memory.stages[1].footprint;
    EXPECT_EQ(both.weights, static_cast<double>(up.parameters + down.parameters));
    EXPECT_EQ(both.optimizer, 8.0 * static_cast<double>(up.optimizer + down.optimizer));
    EXPECT_EQ(both.activations, static_cast<double>(6 * up.saved + down.saved));
    MemoryPlan apart = memory;  // on a GPU they run beside each other
    apart.shares_scratch = false;
    EXPECT_EQ(memory_of(apart, scenario_.graph, 0).scratch,
              scratch_of(memory, 0) + scratch_of(memory, 1) + sums);
    EXPECT_GT(memory_of(apart, scenario_.graph, 0).scratch, both.scratch);
}

TEST_F(Memory, OfLibrariesCountsOnAGpuAlone) {
    MemoryPlan memory = plan({});
    const RankMemory without = memory_of(memory, scenario_.graph, 2);
    EXPECT_EQ(without.libraries + without.reserve, 0);
    EXPECT_EQ(without.total(), without.buffers() + without.samples);
    memory.libraries = {.workspace = 1e6, .reserve = 2e7, .link = 3e8};
    const RankMemory with = memory_of(memory, scenario_.graph, 2);  // sums gradients with two other ranks
    EXPECT_EQ(with.libraries, 1e6);
    EXPECT_EQ(with.reserve, 2e7 + 2 * 3e8);
    EXPECT_EQ(with.buffers(), without.buffers());
    EXPECT_EQ(with.on_device(), with.buffers() + 1e6 + 2e7 + 2 * 3e8);
    EXPECT_EQ(with.total(), with.on_device() + with.samples);
    EXPECT_EQ(memory_of(memory, scenario_.graph, 0).reserve, 2e7);  // the encoder's rank is alone
}

TEST_F(Memory, OpenWindowsLeaveRoomForLibraries) {
    MemoryPlan open = plan({"section.vision.window=0", "section.vision.micro_batch=1",
                            "section.language.micro_batch=1", "checkpoint.every=0"});
    const auto window_in = [&](double bytes) {
        MemoryPlan chosen = open;
        choose_windows(chosen, scenario_.graph, bytes);
        return chosen.stages[0].window;
    };
    MemoryPlan ten = open;
    ten.set_window(0, 10, scenario_.graph);
    const double bytes = std::max(total(ten, 0), total(ten, 1));
    EXPECT_EQ(window_in(bytes), 10);
    open.libraries = {.workspace = 1e6, .reserve = 2e7};
    EXPECT_LT(window_in(bytes), 10);
    EXPECT_EQ(window_in(bytes + 1e6 + 2e7), 10);
}

/// What a run needs is the same wherever it is asked: a GPU has what its context leaves, libraries count, and
/// open windows leave a fifth of it.
TEST_F(Memory, OfAnotherMachineIsPlannedAsThere) {
    scenario_ = glyph_scenario({"section.vision.window=0", "section.vision.micro_batch=1"});
    scenario_.markers = file_->markers();
    const SampleTable table = table_of(scenario_, *file_);
    Probes probes;
    config::Run run;
    config::Device device;
    device.memory = 3e9;
    device.kind = "gpu";
    const auto planned = [&](const RankDevice& on, bool snapshots = false) {
        return plan_memory(scenario_, table, probes, on, {.snapshots = snapshots});
    };
    const auto most = [&](const MemoryPlan& memory) {
        return std::max(memory_of(memory, scenario_.graph, 0).needed(),
                        memory_of(memory, scenario_.graph, 1).needed());
    };
    RankDevice gpu = rank_device_of(device, run, "a GPU", 2);
    EXPECT_EQ(gpu.memory, 3e9 - 512.0 * (1 << 20));
    EXPECT_EQ(gpu.window_bytes(), 0.8 * gpu.memory);
    const MemoryPlan full = planned(gpu);
    const RankMemory language = memory_of(full, scenario_.graph, 1);
    EXPECT_EQ(language.libraries, 32.0 * (1 << 20));
    EXPECT_EQ(language.transfers, 2 * 384.0 * (1 << 20));  // to the other two replicas
    EXPECT_EQ(language.reserve, language.transfers + 256.0 * (1 << 20));
    EXPECT_EQ(language.needed(), language.on_device());
    EXPECT_GT(language.on_host(), 0);
    EXPECT_EQ(shortage(full, scenario_.graph, gpu), "");
    // Just what the smallest windows need; a window of one micro-batch more needs a fifth more memory.
    gpu.memory = 1;
    const double least = most(planned(gpu));
    gpu.memory = least;
    EXPECT_EQ(shortage(planned(gpu), scenario_.graph, gpu), "");
    EXPECT_LT(planned(gpu).stages[0].window, full.stages[0].window);
    gpu.memory = least - (1 << 20);
    EXPECT_THAT(shortage(planned(gpu), scenario_.graph, gpu), testing::HasSubstr("the ranks on GPU "));
    EXPECT_THAT(refusal("lack", "advice", full, scenario_.graph), testing::HasSubstr("\n  section vision: "));
    // The host has the samples and the copy for checkpoints.
    gpu.memory = 3e9;
    gpu.host_memory = memory_of(planned(gpu, true), scenario_.graph, 1).on_host() - 1e6;
    EXPECT_THAT(shortage(planned(gpu, true), scenario_.graph, gpu), testing::HasSubstr("the ranks on node "));
    EXPECT_EQ(shortage(planned(gpu), scenario_.graph, gpu), "");
    // CPUs of a node share its memory, and send messages to the other.
    device.kind = "cpu";
    RankDevice cpu = rank_device_of(device, run, "two nodes", 2);
    EXPECT_EQ(cpu.memory, 3e9);
    const MemoryPlan on_cpus = planned(cpu);
    EXPECT_EQ(memory_of(on_cpus, scenario_.graph, 1).reserve, 0);
    EXPECT_GT(memory_of(on_cpus, scenario_.graph, 0).messages, 0);
    const double both =
        memory_of(on_cpus, scenario_.graph, 0).total() + memory_of(on_cpus, scenario_.graph, 1).total();
    cpu.memory = both / 2 + 1;
    EXPECT_EQ(shortage(on_cpus, scenario_.graph, cpu), "") << "one rank needs more than its share";
    cpu.memory = both / 2 - (1 << 20);
    EXPECT_THAT(shortage(on_cpus, scenario_.graph, cpu), testing::HasSubstr("the ranks on node 0 need"));
    // A file that does not say.
    device.kind = "";
    EXPECT_FALSE(rank_device_of(device, run, "", 0).gpu);
    run.device = "cuda";
    EXPECT_TRUE(rank_device_of(device, run, "", 0).gpu);
}

TEST_F(Memory, CountsLinksToOtherRanksOfEachGroup) {
    const auto links = [&](const std::vector<std::string>& settings) {
        return plan(settings).stages[1].links;
    };
    EXPECT_EQ(links({}), 2);  // three replicas
    EXPECT_EQ(links({"section.language.layout.dp=1"}), 0);
    EXPECT_EQ(links({"section.language.layout.dp=24"}), 8);  // a node's, and the network's
    EXPECT_EQ(links({"section.language.layout.dp=1", "section.language.layout.tp=2"}), 1);
    // Gradients of a replica's cp ranks are summed as well.
    EXPECT_EQ(links({"section.language.layout.dp=1", "section.language.layout.cp=2"}), 2);
}

}  // namespace
}  // namespace maestro::workload
