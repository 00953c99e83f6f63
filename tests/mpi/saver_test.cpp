// Checkpoints of a small job saved in every layout that the ranks allow, at once and in the background, and
// read in every other: weights and moments are what they were, element by element. Errors of one rank are
// those of all.
#include "train/checkpoint/saver.hpp"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <set>
#include <thread>

#include "mpi/expect.hpp"
#include "mpi/saver_fixture.hpp"
#include "support/scratch_folder.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "unit/data/sample_writer.hpp"

namespace {

using namespace maestro;
using namespace maestro::test;

/// Saves in one layout and loads in all others. `with`: settings of both decks.
void every_layout_reads_every_other(const comm::Communicator& world, const fs::path& folder,
                                    const std::vector<std::string>& with, bool trained) {
    for (std::size_t from = 0; from < kLayouts.size(); ++from) {
        if (kLayouts[from].ranks > world.size()) continue;
        const fs::path run = folder / fmt::format("run-{}-{}", from, with.size());
        const fs::path saved = run / "checkpoints" / "step-000007";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        if (const comm::Communicator ranks = first_ranks(world, kLayouts[from].ranks)) {
            Stage stage(ranks, folder, both(kLayouts[from].overrides, with));
            stage.fill();
            train::Saver(stage.job().state(), {.run = run}).save(kStep);
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
            Stage stage(ranks, folder, both(to.overrides, with));
            stage.job().load(saved.string());
            stage.check();
        }
    }
}

/// How many checkpoints there are, complete or not.
std::ptrdiff_t left_of(const fs::path& run) {
    if (!fs::exists(run / "checkpoints")) return 0;
    return std::distance(fs::directory_iterator(run / "checkpoints"), fs::directory_iterator());
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
                           [&] { train::Saver(stage.job().state(), {.run = run}).save(kStep); });
        train::Saver background(stage.job().state(), {.run = run, .background = true});
        test::expect_error(ExitCode::not_finite, "section language: element 1 of ", [&] {
            background.start(kStep);
            background.finish();
        });
        background.finish();  // nothing is under way
        world.barrier();
        MAESTRO_CHECK(left_of(run) == 0, "nothing is left");
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

/// As after many steps: a thread has ended long before the last of them.
void poll_for_long(train::Saver& saver) {
    for (int step = 0; step < 200; ++step) {
        saver.poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

/// What is written in the background is what there was at start(), whatever the next steps do to it, and a
/// second checkpoint waits for the first.
void training_goes_on_beside_a_checkpoint(const comm::Communicator& world, const fs::path& folder,
                                          const std::vector<std::string>& with) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "background", saved = run / "checkpoints";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, both(layout.overrides, with));
        stage.fill();
        train::Saver saver(stage.job().state(), {.run = run, .background = true});
        std::int64_t shares = 0;  // bytes of masters and moments here; frozen weights are read in place
        for (auto& replica : stage.job().stages())
            for (const parallel::Parameter& p : replica->module().parameters().parameters())
                if (const Range range = test::updated(replica->module().parameters(), p);
                    p.trainable && range.size() > 0)
                    shares += 12 * range.size();
        MAESTRO_CHECK(static_cast<std::int64_t>(saver.bytes()) == shares, "{} bytes are copied of {}",
                      saver.bytes(), shares);
        saver.start(kStep);
        stage.spoil();
        saver.start(kStep + 1);
        stage.fill();
        MAESTRO_CHECK(fs::exists(saved / "step-000007"), "the second waits for the first");
        // All ranks look equally often, whichever of them sees it first.
        for (int step = 0; !world.any(fs::exists(saved / "step-000008")) || step < 3; ++step) {
            saver.poll();
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            MAESTRO_CHECK(step < 10000, "it is never complete");
        }
        saver.finish();
        stage.check();
        check_files(stage, saved / "step-000007", true);
        Pulse quiet;
        MAESTRO_CHECK(fs::path(train::need_checkpoint(world, run.string(), quiet)) == saved / "step-000008",
                      "it is whole");
        stage.job().load((saved / "step-000008").string());
        stage.check_spoilt();
        // A saver that ends in the middle leaves what there was.
        train::Saver(stage.job().state(), {.run = run, .background = true}).start(kStep + 2);
        world.barrier();
        MAESTRO_CHECK(!fs::exists(saved / "step-000009"), "no rank has completed it");
        world.barrier();
        if (world.rank() == 0) fs::remove_all(run);
        world.barrier();
    }
}

/// The checkpoint after which the loss was lowest outlives those after it.
void a_run_that_diverges_keeps_the_best(const comm::Communicator& world, const fs::path& folder) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "diverging";
        Pulse quiet;
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, layout.overrides);
        train::Saver saver(stage.job().state(), {.run = run});
        for (std::int64_t step = 2; step <= 28; ++step) {
            io::Rows rows;
            rows.steps.push_back({.step = step, .loss = step > 12 && step < 20 ? 1.0 : 5.0});
            if (world.rank() == 0) io::append_metrics(run / "metrics.h5", rows, quiet);
            if (step % 4 == 0) saver.save(step);
        }
        world.barrier();
        std::set<std::string> names;
        for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
            names.insert(entry.path().filename());
        MAESTRO_CHECK(names == (std::set<std::string>{"LATEST", "step-000012", "step-000024", "step-000028"}),
                      "{}", fmt::join(names, ", "));
        world.barrier();
        if (world.rank() == 0) fs::remove_all(run);
        world.barrier();
    }
}

/// One rank has no room for its part: nothing has the final name, and all ranks throw where there is no
/// complete checkpoint, or where this one was a must. Otherwise they go on, and the next one is whole.
void a_rank_without_room_is_one_for_all(const comm::Communicator& world, const fs::path& folder) {
    for (const Layout& layout : kLayouts) {
        if (layout.ranks != world.size()) continue;
        const fs::path run = folder / "no-room", saved = run / "checkpoints" / "step-000007";
        if (world.rank() == 0) make_run(run);
        world.barrier();
        Stage stage(world, folder, layout.overrides);
        stage.fill();
        for (int victim = 0; victim < world.size(); ++victim) {
            const NoRoom full(world.rank() == victim);
            train::Saver saver(stage.job().state(), {.run = run, .background = true});
            test::expect_error(ExitCode::io_error, "File too large", [&] { saver.save(kStep); });
            saver.start(kStep);  // what a thread meets is thrown after a later step
            test::expect_error(ExitCode::io_error, "File too large", [&] { poll_for_long(saver); });
            saver.poll();  // nothing is under way any more
            saver.start(kStep);
            test::expect_error(ExitCode::io_error, "File too large", [&] { saver.finish(); });
            world.barrier();
            MAESTRO_CHECK(left_of(run) == 0, "nothing is left, and its room is free");
            world.barrier();
        }
        train::Saver(stage.job().state(), {.run = run}).save(kStep);
        check_files(stage, saved, true);
        train::Saver saver(stage.job().state(), {.run = run, .saved = kStep, .background = true});
        for (int victim = 0; victim < world.size(); ++victim) {
            const NoRoom full(world.rank() == victim);
            saver.start(kStep + 1);
            saver.finish();
            MAESTRO_CHECK(saver.saved_step() == kStep && saver.has_complete(), "saved {}",
                          saver.saved_step());
            test::expect_error(ExitCode::io_error, "File too large", [&] { saver.save(kStep + 1); });
            world.barrier();
            MAESTRO_CHECK(left_of(run) == 2, "the complete one, LATEST, and nothing else");
            world.barrier();
        }
        saver.start(kStep + 1);
        saver.finish();
        MAESTRO_CHECK(saver.saved_step() == kStep + 1, "saved {}", saver.saved_step());
        world.barrier();
        if (world.rank() == 0) fs::remove_all(run);
        world.barrier();
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
        every_layout_reads_every_other(world, folder, kFrozenVision, false);
        weights_that_are_not_finite_are_refused(world, folder);
        a_run_that_diverges_keeps_the_best(world, folder);
        a_rank_without_room_is_one_for_all(world, folder);
        training_goes_on_beside_a_checkpoint(world, folder, {});
        training_goes_on_beside_a_checkpoint(world, folder, kFrozenVision);
        world.barrier();
    });
}
