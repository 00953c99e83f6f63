#include "train/checkpoint/saver.hpp"

#include <fmt/format.h>

#include <sstream>

#include "base/check.hpp"
#include "comm/agree.hpp"
#include "graph/grid.hpp"
#include "storage/file.hpp"
#include "train/checkpoint/stage_parts.hpp"
#include "train/checkpoint/weights.hpp"

namespace maestro::train {

namespace {

std::vector<StagePart> parts_of(const RunState& state) {
    const int rank = state.world.rank();
    std::vector<StagePart> parts;
    for (const auto& local : state.stages) {
        MAESTRO_CHECK(graph::holds(state.graph, local->number(), rank), "{} is not on rank {}",
                      local->label(), rank);
        parts.push_back({.section = local->section(),
                         .name = local->name(),
                         .store = local->module().parameters(),
                         .optimizer = local->optimizer(),
                         .first = rank == graph::first_rank_of(state.graph, local->number()),
                         .scratch = &local->scratch(),
                         .stage = local->index()});
    }
    return parts;
}

}  // namespace

void save_checkpoint(const RunState& state, const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> damaged) {
    const comm::Communicator& world = state.world;
    const config::Deck& deck = state.deck;
    Pulse& pulse = state.pulse;
    const bool coordinator = world.rank() == 0;
    const auto partial = run / "checkpoints" / fmt::format("step-{:06d}.partial", step);
    const std::vector<StagePart> parts = parts_of(state);
    comm::agree(world, [&] {
        for (const StagePart& part : parts) check_finite(part, step);
        if (coordinator) io::begin_checkpoint(run, step);
    });
    std::string written;  // "file bytes hash" lines of this rank
    const auto note = [&](const io::ManifestEntry& e) {
        written += fmt::format("{} {} {}\n", e.file, e.bytes, e.hash);
    };
    const auto sections = static_cast<int>(state.graph.sections.size());
    for (const io::ManifestEntry& e : write_sections(world, partial, step, sections, parts, pulse)) note(e);
    comm::agree(world, [&] {
        if (!coordinator) return;
        const auto metrics = run / "metrics.h5";
        storage::sync(metrics);  // a checkpoint may not promise rows that a power failure takes back
        note(io::write_train_state(partial,
                                   {.step = step,
                                    .deck = deck.text,
                                    .settings = deck.settings,
                                    .defaults = deck.defaults,
                                    .samples = state.samples,
                                    .counts = io::count_rows(metrics)},
                                   pulse));
    });
    const std::vector<std::string> all = world.gather(written);
    comm::agree(world, [&] {
        if (!coordinator) return;
        std::vector<io::ManifestEntry> entries;
        for (const std::string& text : all) {
            std::istringstream lines(text);
            for (io::ManifestEntry e; lines >> e.file >> e.bytes >> e.hash;) entries.push_back(e);
        }
        io::finish_checkpoint(partial, entries, deck.checkpoint.keep, damaged);
    });
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
