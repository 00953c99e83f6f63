#include "train/saver.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "train/agree.hpp"
#include "train/weights.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

Replica* find(Job& job, int section) {
    for (auto& replica : job.replicas())
        if (replica->section() == section) return replica.get();
    return nullptr;
}

io::ManifestEntry write_section(Replica& replica, const std::filesystem::path& partial,
                                const std::string& name, std::int64_t step, const std::vector<float>& first,
                                const std::vector<float>& second) {
    std::vector<io::StoredParameter> stored;
    for (const model::Parameter& p : replica.module().parameters().parameters()) {
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
    return io::write_section(partial, name, step, stored);
}

}  // namespace

void save_checkpoint(Job& job, const std::filesystem::path& run, std::int64_t step, std::int64_t keep) {
    const comm::Communicator& world = job.launch().world;
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
            note(write_section(replica, partial,
                               job.launch().graph.sections[static_cast<std::size_t>(replica.section())].name,
                               step, moments[2 * i], moments[2 * i + 1]));
        }
        if (coordinator)
            note(io::write_train_state(partial, {.step = step,
                                                 .deck = job.launch().deck.text,
                                                 .settings = job.launch().deck.settings,
                                                 .samples = job.samples().identity(),
                                                 .rows = io::read_metrics(run / "metrics.h5")}));
    });
    const std::vector<std::string> all = world.gather(written);
    agree(world, [&] {
        if (!coordinator) return;
        std::vector<io::ManifestEntry> entries;
        for (const std::string& text : all) {
            std::istringstream lines(text);
            for (io::ManifestEntry e; lines >> e.file >> e.bytes >> e.hash;) entries.push_back(e);
        }
        io::finish_checkpoint(partial, entries, keep);
    });
}

void load_checkpoint(Job& job, const std::filesystem::path& checkpoint) {
    agree(job.launch().world, [&] {
        for (std::size_t s = 0; s < job.launch().graph.sections.size(); ++s) {
            Replica* replica = find(job, static_cast<int>(s));
            if (!replica) continue;
            const std::string& name = job.launch().graph.sections[s].name;
            model::ParameterStore& store = replica->module().parameters();
            load_weights(checkpoint.string(), name, store);
            if (!replica->optimizer()) continue;
            std::vector<float> first(static_cast<std::size_t>(store.gradient().size()), 0.0f), second = first;
            for (const model::Parameter& p : store.parameters()) {
                if (!p.trainable) continue;
                for (const auto& [what, target] :
                     {std::pair{io::Stored::first, &first}, std::pair{io::Stored::second, &second}}) {
                    const auto values = io::read_parameter(checkpoint, name, p.name, p.shape, what);
                    std::copy(values.begin(), values.end(), target->begin() + p.offset);
                }
            }
            replica->optimizer()->scatter(first, second);
        }
    });
}

}  // namespace maestro::train
