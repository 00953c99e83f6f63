// Loads a model folder as a training run does, on as many ranks as the layout has: how far the memory of a
// rank grows beyond the arrays of its weights, and the time over that of reading the same bytes plainly.
//     mpirun -n 4 folder_bench FOLDER TP PP fp32|bf16 [ROUNDS [THREADS [cold]]]
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/text_file.hpp"
#include "comm/communicator.hpp"
#include "comm/environment.hpp"
#include "comm/memory.hpp"
#include "comm/progress.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "workload/scenario.hpp"

using namespace maestro;

namespace {

namespace fs = std::filesystem;

model::ModelSpec spec_of(const std::string& folder) {
    const std::string path = folder + "/config.json";
    std::map<std::string, std::string> settings;
    for (const auto& [key, value] : families::read_config(*read_text_file(path), path, "language"))
        settings["model.text." + key] = value;
    return workload::spec_of(config::model_of(settings, "text"));
}

/// The bytes [begin, end) of all weight files of the folder, read in blocks that stay in a core's cache.
void read_plainly(const std::vector<fs::path>& files, std::uint64_t begin, std::uint64_t end) {
    constexpr std::uint64_t kBlock = 1 << 20;
    std::vector<char> block(kBlock);
    std::uint64_t at = 0;
    for (const fs::path& path : files) {
        const std::uint64_t size = fs::file_size(path);
        const std::uint64_t from = std::clamp(begin, at, at + size) - at,
                            to = std::clamp(end, at, at + size) - at;
        at += size;
        const storage::Descriptor file(path, O_RDONLY);
        for (std::uint64_t place = from; place < to;) {
            const ssize_t got =
                ::pread(file.get(), block.data(), std::min(kBlock, to - place), static_cast<off_t>(place));
            MAESTRO_CHECK(got > 0, "{} cannot be read", path.string());
            place += static_cast<std::uint64_t>(got);
        }
    }
}

/// Removes the files from the page cache, so that the next read comes from storage.
void forget(const std::vector<fs::path>& files) {
    for (const fs::path& path : files) {
        const storage::Descriptor file(path, O_RDONLY);
        MAESTRO_CHECK(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0, "{}", path.string());
    }
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Growth {
    double held_mib = 0;  ///< all arrays of this rank's weights, gradients among them
    double most_mib = 0;  ///< the most memory during the first load, less that before it
};

/// The stage of this rank, with zero weights.
std::unique_ptr<model::Module> make_stage(const comm::Communicator& world, backend::Backend& backend,
                                          const model::ModelSpec& spec, int tp, int pp, DType compute) {
    const int stage = world.rank() / tp;
    const comm::Communicator ranks = world.split(stage, world.rank());
    model::Role role{};
    role.section = "text";
    role.compute = compute;
    role.stage = {.index = stage, .count = pp, .first_layer = stage * spec.layers / pp};
    role.stage.layers = (stage + 1) * spec.layers / pp - role.stage.first_layer;
    if (role.stage.last()) role.loss_terms = {model::LossTerm{}};
    role.emits = !role.stage.last();
    if (!role.stage.first()) role.inputs = {{EdgeTensor::stream, spec}};
    parallel::Mesh mesh =
        parallel::make_mesh(ranks, backend, {.degrees = {1, tp}, .kv_heads = spec.kv_heads()}, role.section);
    return model::make_module(backend, spec, role, std::move(mesh), model::InitialWeights::zeros);
}

void run(const comm::Communicator& world, const std::string& folder, int tp, int pp, DType compute,
         int rounds, int threads, bool cold) {
    MAESTRO_CHECK(world.size() == tp * pp, "{} ranks for tp {} and pp {}", world.size(), tp, pp);
    const model::ModelSpec spec = spec_of(folder);
    const auto backend = backend::make_cpu(threads);
    const auto module = make_stage(world, *backend, spec, tp, pp, compute);
    std::vector<fs::path> files;
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& path : files) bytes += fs::file_size(path);
    const auto ranks = static_cast<std::uint64_t>(world.size()),
               rank = static_cast<std::uint64_t>(world.rank());
    const auto timed = [&](const auto& action) {
        world.barrier();
        const double begin_s = comm::now_s();
        action();
        return world.max(comm::now_s() - begin_s);
    };
    Pulse pulse;
    Growth growth;
    growth.held_mib = static_cast<double>(module->parameters().bytes()) / (1 << 20);
    std::vector<double> plain_s, check_s, load_s;
    for (int round = 0; round < rounds; ++round) {
        if (cold && world.rank() == 0) forget(files);
        plain_s.push_back(
            timed([&] { read_plainly(files, bytes * rank / ranks, bytes * (rank + 1) / ranks); }));
        const comm::Resident before = comm::resident_memory();
        std::ofstream("/proc/self/clear_refs") << 5;  // the most memory is counted from here
        check_s.push_back(timed([&] {
            if (world.rank() == 0) train::check_folder(folder, spec, pulse);
        }));
        if (cold && world.rank() == 0) forget(files);
        load_s.push_back(timed([&] { train::load_folder(folder, spec, module->parameters(), pulse); }));
        if (round > 0) continue;
        const std::uint64_t most = comm::resident_memory().most;
        growth.most_mib = static_cast<double>(most - std::min(most, before.now)) / (1 << 20);
    }
    const std::vector<Growth> all = world.allgather(growth);
    if (world.rank() != 0) return;
    std::vector<std::string> held, most;
    for (const Growth& each : all) {
        held.push_back(fmt::format("{:.0f}", each.held_mib));
        most.push_back(fmt::format("{:.1f}", each.most_mib));
    }
    fmt::print(
        "tp {} x pp {}, {} thread{}, {}, {}: ranks hold {} MiB, and while loading at most {} MiB more; "
        "{:.2f} s for {:.0f} MiB, {:.2f} times a plain read ({:.2f} s); {:.3f} s before for headers\n",
        tp, pp, threads, threads == 1 ? "" : "s", name_of(compute),
        cold ? "from storage" : "from the page cache", fmt::join(held, ", "), fmt::join(most, ", "),
        median(load_s), static_cast<double>(bytes) / (1 << 20), median(load_s) / median(plain_s),
        median(plain_s), median(check_s));
}

}  // namespace

int main(int argc, char** argv) {
    comm::Environment environment(argc, argv);
    try {
        if (argc < 5)
            throw Error(ExitCode::usage, "folder_bench FOLDER TP PP fp32|bf16 [ROUNDS [THREADS [cold]]]");
        comm::Waiter waiter(600);
        run(comm::Communicator::world(waiter), argv[1], std::stoi(argv[2]), std::stoi(argv[3]),
            std::string(argv[4]) == "bf16" ? DType::bf16 : DType::f32, argc > 5 ? std::stoi(argv[5]) : 5,
            argc > 6 ? std::stoi(argv[6]) : 1, argc > 7);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        comm::abort_world(1);
    }
}
