#include "train/saver.hpp"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "io/checkpoint_reader.hpp"
#include "io/file.hpp"
#include "train/agree.hpp"
#include "train/weights.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

io::ManifestEntry write_section(Replica& replica, const std::filesystem::path& partial,
                                const std::string& name, std::int64_t step, const std::vector<float>& first,
                                const std::vector<float>& second, Pulse& pulse) {
    std::vector<io::StoredParameter> stored;
    for (const model::Parameter& p : replica.module().parameters().parameters()) {
        MAESTRO_CHECK(p.shard == whole(p.shape), "{}: ranks that hold a part do not write yet", p.name);
        const bool moments = p.trainable && !first.empty();
        const auto weights = p.master.as<float>();
        for (std::int64_t i = 0; p.trainable && i < p.master.size(); ++i)
            if (!std::isfinite(weights[i]))
                throw Error(
                    ExitCode::not_finite,
                    fmt::format("section {}: element {} of {} is {} after step {}; this checkpoint is not "
                                "kept. Go on from the last one with a smaller optimizer.learning_rate",
                                name, i, p.name, weights[i], step));
        stored.push_back({.name = p.name,
                          .shape = p.shape,
                          .weight = p.master.as<float>(),
                          .first = moments ? first.data() + p.offset : nullptr,
                          .second = moments ? second.data() + p.offset : nullptr});
    }
    return io::write_section(partial, name, step, stored, pulse);
}

}  // namespace

void save_checkpoint(Job& job, const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> damaged) {
    const comm::Communicator& world = job.launch().world;
    const config::Deck& deck = job.launch().deck;
    Pulse& pulse = job.launch().pulse;
    const bool coordinator = world.rank() == 0;
    const auto partial = run / "checkpoints" / fmt::format("step-{:06d}.partial", step);
    agree(world, [&] {
        if (coordinator) io::begin_checkpoint(run, step);
    });
    std::string written;  // "file bytes hash" lines of this rank
    const auto note = [&](const io::ManifestEntry& e) {
        written += fmt::format("{} {} {}\n", e.file, e.bytes, e.hash);
    };
    std::vector<std::vector<float>> moments(job.replicas().size() * 2);
    for (std::size_t i = 0; i < job.replicas().size(); ++i)
        if (Optimizer* optimizer = job.replicas()[i]->optimizer())
            optimizer->gather(moments[2 * i], moments[2 * i + 1]);
    agree(world, [&] {
        for (std::size_t i = 0; i < job.replicas().size(); ++i) {
            Replica& replica = *job.replicas()[i];
            if (replica.index() != 0) continue;
            note(write_section(replica, partial, job.launch().deck.graph.sections[replica.section()].name,
                               step, moments[2 * i], moments[2 * i + 1], pulse));
        }
        if (!coordinator) return;
        const auto metrics = run / "metrics.h5";
        io::sync(metrics);  // the rows that the checkpoint counts on
        note(io::write_train_state(partial,
                                   {.step = step,
                                    .deck = deck.text,
                                    .settings = deck.settings,
                                    .defaults = deck.defaults,
                                    .samples = job.samples().identity(),
                                    .counts = io::count_rows(metrics)},
                                   pulse));
    });
    const std::vector<std::string> all = world.gather(written);
    agree(world, [&] {
        if (!coordinator) return;
        std::vector<io::ManifestEntry> entries;
        for (const std::string& text : all) {
            std::istringstream lines(text);
            for (io::ManifestEntry e; lines >> e.file >> e.bytes >> e.hash;) entries.push_back(e);
        }
        io::finish_checkpoint(partial, entries, deck.checkpoint.keep, damaged);
    });
}

void load_checkpoint(Job& job, const std::string& checkpoint) {
    Pulse& pulse = job.launch().pulse;
    agree(job.launch().world, [&] {
        for (auto& replica : job.replicas()) {
            model::ParameterStore& store = replica->module().parameters();
            load_weights(checkpoint, replica->name(), store, pulse);
            Optimizer* optimizer = replica->optimizer();
            if (!optimizer) continue;
            const io::SectionReader section(checkpoint, section_in(checkpoint, replica->name()), pulse);
            for (const model::Parameter& p : store.parameters()) {
                const Range share = optimizer->share_of(p);
                if (share.size() <= 0) continue;
                optimizer->set_moments(p, section.read(p.name, p.shape, io::Stored::first, p.shard, share),
                                       section.read(p.name, p.shape, io::Stored::second, p.shard, share));
            }
        }
    });
}

}  // namespace maestro::train
