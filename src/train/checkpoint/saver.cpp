#include "train/checkpoint/saver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "graph/grid.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/run_directory.hpp"
#include "train/checkpoint/full_disk.hpp"
#include "train/checkpoint/hash_sums.hpp"
#include "train/checkpoint/weights.hpp"

namespace maestro::train {

namespace {

double mib(std::uint64_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
}

std::vector<StageShard> shards_of(const RunState& state) {
    const int rank = state.world.rank();
    std::vector<StageShard> shards;
    for (const auto& local : state.stages) {
        MAESTRO_CHECK(graph::holds(state.graph, local->number(), rank), "{} is not on rank {}",
                      local->label(), rank);
        shards.push_back({.section = local->section(),
                          .name = local->name(),
                          .store = local->module().parameters(),
                          .optimizer = local->optimizer(),
                          .first = rank == graph::first_rank_of(state.graph, local->number()),
                          .scratch = &local->scratch(),
                          .stage = local->index()});
    }
    return shards;
}

}  // namespace

Saver::Saver(const RunState& state, Settings settings)
    : state_(state),
      settings_(std::move(settings)),
      task_(state.world.waiter().timeout_s(), settings_.processors) {
    if (settings_.background) prepare();
}

void Saver::prepare() {
    if (!files_)
        files_.emplace(world(), static_cast<int>(state_.graph.sections.size()), shards_of(state_),
                       state_.pulse);
    if (settings_.background && !snapshot_)
        comm::agree(world(), [&] { snapshot_.emplace(files_->outputs()); });
}

void Saver::start(std::int64_t step) {
    MAESTRO_CHECK(snapshot_, "no memory for a copy");
    finish();
    must_ = false;
    if (!begin(step, true)) return;
    task_.start([write = write_](Pulse& pulse) { write->run(pulse); });
    phase_ = Phase::writing;
}

void Saver::save(std::int64_t step) {
    finish();
    must_ = true;
    begin(step, false);
    agreed([&] { write_->run(state_.pulse); });
    collect();
    agreed([&] {
        if (coordinator()) completion()(state_.pulse);
    });
    report();
}

void Saver::poll() {
    if (phase_ == Phase::idle) return;
    task_.check_progress();
    constexpr double kDone = 0, kRunning = 1, kFailed = 2;
    const double most = world().max(task_.failed() ? kFailed : task_.running() ? kRunning : kDone);
    if (most != kRunning) advance();
}

void Saver::finish() {
    while (phase_ != Phase::idle) {
        task_.wait(state_.pulse, world().waiter());
        advance();
    }
}

/// Called on all ranks when their threads are done, or one has failed: then it cancels the others.
void Saver::advance() {
    const Phase was = std::exchange(phase_, Phase::idle);
    const bool ended = !task_.running();
    task_.cancel();
    task_.wait(state_.pulse, world().waiter());
    const bool done = agreed([&] {
        try {
            task_.take();
        } catch (const Error&) {
            if (ended) throw;  // else it says no more than that it was cancelled
        }
    });
    if (!done) return;
    if (was == Phase::completing) return report();
    collect();
    if (coordinator()) task_.start(completion());
    phase_ = Phase::completing;
}

/// Runs `action`, which may fail on any rank. Then the checkpoint under way is given up. Returns false where
/// only a disk is full, and training goes on.
bool Saver::agreed(const std::function<void()>& action) {
    std::string fault;
    try {
        fault = agree_unless_full(world(), action);
    } catch (...) {
        give_up();
        throw;
    }
    if (fault.empty()) return true;
    give_up();
    skip(step_, fault);
    return false;
}

void Saver::give_up() {
    write_.reset();
    if (coordinator()) io::discard_checkpoint(io::partial_of(settings_.run, step_));
}

std::string Saver::newest_complete() const {
    std::string newest;
    comm::agree(world(), [&] {
        if (!coordinator()) return;
        for (const std::filesystem::path& path : io::list_checkpoints(settings_.run))
            if (newest.empty() && !is_damaged(path)) newest = path.string();
    });
    world().broadcast(newest);
    return newest;
}

void Saver::skip(std::int64_t step, const std::string& fault) {
    const std::string newest = newest_complete();
    std::uint64_t bytes = 0;
    for (const SectionFiles::File& file : files_->files()) bytes += file.bytes;
    std::string room =
        fmt::format("{}. A checkpoint takes {:.1f} MiB, {:.1f} MiB are free in {}", fault, mib(bytes),
                    mib(io::free_space(settings_.run).value_or(0)), settings_.run.string());
    world().broadcast(room);
    if (must_ || newest.empty())
        throw Error(ExitCode::io_error,
                    fmt::format("no checkpoint after step {}: {}; free space, then {}", step, room,
                                newest.empty() ? kStartAgain : kContinue),
                    Scope::all_ranks);
    log::info(
        "warning: no checkpoint after step {}: {}. Training goes on, and {} is complete. Free some "
        "space: the next checkpoint is tried as scheduled",
        step, room, newest);
}

/// Makes write_, with the values of now: copied, or to be read in place by the main thread.
bool Saver::begin(std::int64_t step, bool copy) {
    state_.pulse.doing(fmt::format("the checkpoint after step {}", step));
    prepare();
    step_ = step;
    write_ = std::make_shared<CheckpointWrite>();
    write_->partial = io::partial_of(settings_.run, step);
    write_->hashes.resize(files_->files().size() + 1);
    write_->elements.resize(files_->files().size() + 1);
    return agreed([&] {
        if (coordinator()) io::begin_checkpoint(settings_.run, step);
        add_images(*write_);
        if (!copy || !snapshot_->copy(state_.pulse)) check_all_finite();
        for (std::size_t p = 0; p < files_->outputs().size(); ++p) {
            const SectionFiles::Output& output = files_->outputs()[p];
            write_->outputs.push_back(
                {static_cast<std::size_t>(output.stage.section), &output,
                 copy ? snapshot_->read(p) : output.stage.store.backend().read_to_host(tensors_of(output))});
        }
    });
}

/// Throws the error about the first weight that is NaN or Inf.
void Saver::check_all_finite() const {
    for (const SectionFiles::Output& output : files_->outputs()) check_finite(output.stage, step_);
}

/// The files that this rank makes, described by HDF5, which only the main thread may use.
void Saver::add_images(CheckpointWrite& write) {
    write.images = files_->images(step_, state_.pulse);
    if (coordinator()) {
        write.metrics = settings_.run / "metrics.h5";
        io::FileImage train = io::describe_train_state({.step = step_,
                                                        .deck = state_.deck.text,
                                                        .ends = state_.ends,
                                                        .settings = state_.deck.settings,
                                                        .defaults = state_.deck.defaults,
                                                        .samples = state_.samples,
                                                        .counts = io::count_rows(write.metrics)},
                                                       state_.pulse);
        train_bytes_ = train.bytes;
        train_file_ = train.file;
        write.images.push_back({files_->files().size(), std::move(train)});
        std::uint64_t bytes = train_bytes_;
        for (const SectionFiles::File& file : files_->files()) bytes += file.bytes;
        io::check_free_space(settings_.run, bytes);
        choose_best();
    }
}

bool Saver::is_damaged(const std::filesystem::path& checkpoint) const {
    const auto& damaged = settings_.damaged;
    return std::any_of(damaged.begin(), damaged.end(),
                       [&](const auto& path) { return path.filename() == checkpoint.filename(); });
}

/// Which of the older checkpoints stay besides the newest: a run that diverges would otherwise replace its
/// last good one. A checkpoint is as good as the steps that began with it: its own step was computed with the
/// weights before. The first of besides_ is the best of those that enough steps judge, and the second the
/// best of all, because few steps may have been lucky.
void Saver::choose_best() {
    std::vector<std::int64_t> steps;
    for (const std::filesystem::path& path : io::list_checkpoints(settings_.run))
        if (const std::int64_t step = io::step_of_checkpoint(path); step < step_ && !is_damaged(path))
            steps.push_back(step);
    const std::vector<io::MeanLoss> losses =
        io::mean_losses_after(settings_.run / "metrics.h5", steps, io::kJudgedSteps);
    const auto lowest = [&](std::int64_t judged) {
        std::size_t best = steps.size();  // the newest first, which stays where losses are equal
        for (std::size_t i = 0; i < steps.size(); ++i)
            if (losses[i].steps >= judged && !std::isnan(losses[i].mean) &&
                (best == steps.size() || losses[i].mean < losses[best].mean))
                best = i;
        return best;
    };
    besides_.clear();
    best_note_.clear();
    const auto newest = static_cast<std::size_t>(std::max<std::int64_t>(state_.deck.checkpoint.keep, 2));
    for (const std::int64_t judged : {io::kJudgedSteps, std::int64_t{1}}) {
        const std::size_t best = lowest(judged);
        if (best == steps.size()) continue;
        if (besides_.empty() && steps[best] != noted_ && best + 1 >= newest)
            best_note_ = fmt::format(
                "step-{:06d} stays besides the newest {}: the loss after it is the lowest, "
                "{:.4f}, and {:.4f} after step {}",
                steps[best], newest, losses[best].mean, losses.front().mean, steps.front());
        besides_.push_back(steps[best]);
    }
}

/// Collective. Puts together on rank 0 what the ranks have written.
void Saver::collect() {
    const std::vector<std::uint64_t> hashes = sums_on_first(world(), write_->hashes),
                                     elements = sums_on_first(world(), write_->elements);
    write_.reset();
    entries_.clear();
    if (!coordinator()) return;
    for (std::size_t s = 0; s < files_->files().size(); ++s) {
        const SectionFiles::File& file = files_->files()[s];
        MAESTRO_CHECK(elements[s] == file.elements, "section {}: {} elements written of {}", file.section,
                      elements[s], file.elements);
        entries_.push_back({io::file_of_section(file.section), file.bytes, hashes[s]});
    }
    entries_.push_back({train_file_, train_bytes_, hashes.back()});
}

/// What rank 0 does when all files are written, in a thread or not.
std::function<void(Pulse&)> Saver::completion() const {
    return [partial = io::partial_of(settings_.run, step_), entries = entries_,
            retention = io::Retention{state_.deck.checkpoint.keep, besides_, settings_.damaged}](
               Pulse& pulse) { io::finish_checkpoint(partial, entries, retention, pulse); };
}

void Saver::report() {
    settings_.saved = step_;
    newest_ = io::partial_of(settings_.run, step_).replace_extension().string();
    // They have other names now, and another one may have this step.
    std::erase_if(settings_.damaged, [&](const auto& path) { return io::step_of_checkpoint(path) <= step_; });
    log::info("checkpoint {}", newest_);
    if (best_note_.empty()) return;
    log::info("{}", best_note_);
    noted_ = besides_.front();
}

void load_checkpoint(const RunState& state, const std::string& checkpoint) {
    Pulse& pulse = state.pulse;
    comm::agree(state.world, [&] {
        for (const auto& local : state.stages) {
            parallel::ParameterStore& store = local->module().parameters();
            load_weights(checkpoint, local->name(), store, pulse);
            if (Optimizer* optimizer = local->optimizer())
                load_moments(checkpoint, local->name(), store, *optimizer, pulse);
        }
    });
}

}  // namespace maestro::train
