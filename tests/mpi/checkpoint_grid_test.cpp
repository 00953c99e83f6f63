// Shards of a trained and a frozen section saved on every grid of dp x cp and tp, and read on every other
// one: the file has the bytes of the one that a single rank writes.
#include <cmath>

#include "base/adhash.hpp"
#include "comm/agree.hpp"
#include "mpi/expect.hpp"
#include "mpi/saver_fixture.hpp"
#include "storage/file.hpp"
#include "support/scratch_folder.hpp"
#include "train/checkpoint/checkpoint_write.hpp"
#include "train/checkpoint/hash_sums.hpp"
#include "train/checkpoint/section_files.hpp"
#include "train/checkpoint/snapshot.hpp"
#include "train/checkpoint/weights.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;

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
        const std::vector<train::StageShard> shards = {{0, "trained", trained_, optimizer_.get(), first},
                                                       {1, "frozen", frozen_, nullptr, first}};
        for (const train::StageShard& shard : shards) train::check_finite(shard, kStep);
        const train::SectionFiles files(ranks_, 2, shards, quiet_);
        train::CheckpointWrite write{.partial = folder,
                                     .metrics = {},
                                     .images = files.images(kStep, quiet_),
                                     .outputs = {},
                                     .hashes = {0, 0},
                                     .elements = {0, 0}};
        for (std::size_t p = 0; p < 2; ++p)
            write.outputs.push_back(
                {p, &files.outputs()[p], backend_->read_to_host(tensors_of(files.outputs()[p]))});
        comm::agree(ranks_, [&] { write.run(quiet_); });
        const auto hashes = train::sums_on_first(ranks_, write.hashes),
                   elements = train::sums_on_first(ranks_, write.elements);
        std::string text;
        for (std::size_t f = 0; first && f < 2; ++f) {
            const std::string bytes = storage::read_text(folder / (files.files()[f].section + ".h5"));
            AdHash whole;
            whole.add(bytes.data(), bytes.size(), 0);
            MAESTRO_CHECK(bytes.size() == files.files()[f].bytes && whole.value() == hashes[f] &&
                              elements[f] == files.files()[f].elements,
                          "the hash of {} from the ranks is {:x}, from the file {:x}",
                          files.files()[f].section, hashes[f], whole.value());
            text += fmt::format("{} {} {:x};", files.files()[f].section, bytes.size(), whole.value());
        }
        if (first)
            storage::write_text_durably(folder / "manifest.json",
                                        R"({"format": "maestro-checkpoint", "version": 4, "files": [
                    {"file": "trained.h5", "bytes": 0, "adhash64": "0"},
                    {"file": "frozen.h5", "bytes": 0, "adhash64": "0"}]})");
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
    return maestro::test::run(argc, argv, [](const comm::Communicator& world) {
        std::unique_ptr<testing_support::ScratchFolder> scratch;
        std::string folder;
        if (world.rank() == 0) {
            scratch = std::make_unique<testing_support::ScratchFolder>();
            folder = scratch->path().string();
        }
        world.broadcast(folder);
        for (const std::int64_t size : {1, 2, 11}) every_grid_reads_every_other(world, folder, size);
        world.barrier();
    });
}
