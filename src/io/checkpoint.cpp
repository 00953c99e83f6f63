#include "io/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"
#include "storage/file.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTrainFile = "train.h5";
constexpr const char* kPartial = ".partial";

bool among(const fs::path& path, std::span<const fs::path> list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const fs::path& other) { return other.filename() == path.filename(); });
}

}  // namespace

fs::path partial_of(const fs::path& run, std::int64_t step) {
    return run / "checkpoints" / fmt::format("step-{:06d}{}", step, kPartial);
}

void begin_checkpoint(const fs::path& run, std::int64_t step) {
    std::error_code error;
    std::vector<fs::path> left;
    for (fs::directory_iterator entry(run / "checkpoints", error);
         !error && entry != fs::directory_iterator(); entry.increment(error))
        if (entry->path().extension() == kPartial && step_of_checkpoint(entry->path().stem()) >= 0)
            left.push_back(entry->path());
    for (const fs::path& path : left) discard_checkpoint(path);
    const fs::path partial = partial_of(run, step);
    error.clear();
    fs::create_directories(partial, error);
    if (error) storage::io_failed(partial, "cannot be made", error.value());
}

void discard_checkpoint(const fs::path& partial) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
}

FileImage describe_train_state(const TrainState& state, Pulse& pulse) {
    File file = File::held(kTrainFile, pulse);
    write_attribute(file, "format", std::string("maestro-train"));
    write_attribute(file, "version", kFileVersion);
    write_attribute(file, "step", state.step);
    write_attribute(file, "deck", state.deck);
    if (state.ends) write_attribute(file, "ends", nlohmann::json(*state.ends).dump());
    write_attribute(file, "settings", nlohmann::json(state.settings).dump());
    write_attribute(file, "defaults", nlohmann::json(state.defaults).dump());
    write_attribute(file, "samples", fmt::format("{:016x}", state.samples));
    write_attribute(file, "step_rows", state.counts.steps);
    write_attribute(file, "timeline_rows", state.counts.tasks);
    write_attribute(file, "sync_rows", state.counts.syncs);
    write_attribute(file, "assignment_rows", state.counts.assignment);
    write_attribute(file, "expert_rows", state.counts.experts);
    write_attribute(file, "loss_rows", state.counts.losses);
    file.close();
    return image_of(kTrainFile, file.state());
}

namespace {

void check_sizes(const fs::path& partial, std::span<const ManifestEntry> entries) {
    for (const ManifestEntry& e : entries) {
        std::error_code error;
        const std::uintmax_t found = fs::file_size(partial / e.file, error);
        if (error) storage::io_failed(partial / e.file, "cannot be read", error.value());
        if (found != e.bytes)
            throw Error(ExitCode::io_error, fmt::format("{}: {} bytes where {} were written",
                                                        (partial / e.file).string(), found, e.bytes));
    }
}

void write_manifest(const fs::path& partial, std::span<const ManifestEntry> entries) {
    nlohmann::ordered_json json{{"format", "maestro-checkpoint"},
                                {"version", kCheckpointVersion},
                                {"files", nlohmann::ordered_json::array()}};
    for (const auto& e : entries)
        json["files"].push_back(
            {{"file", e.file}, {"bytes", e.bytes}, {"adhash64", fmt::format("{:016x}", e.hash)}});
    storage::write_text_durably(partial / "manifest.json", json.dump(2) + "\n");
}

/// Removing a large file can take a while, so that each counts as progress.
void remove_checkpoint(const fs::path& path, Pulse& pulse) {
    pulse.doing(fmt::format("removing {}", path.string()));
    std::error_code ignored;
    for (fs::directory_iterator entry(path, ignored); !ignored && entry != fs::directory_iterator();
         entry.increment(ignored)) {
        std::error_code kept;
        fs::remove_all(entry->path(), kept);
        pulse.beat();
    }
    fs::remove_all(path, ignored);
}

}  // namespace

fs::path finish_checkpoint(const fs::path& partial, std::span<const ManifestEntry> entries,
                           const Retention& retention, Pulse& pulse) {
    pulse.doing(fmt::format("completing {}", partial.string()));
    check_sizes(partial, entries);
    write_manifest(partial, entries);
    storage::sync(partial);
    const fs::path checkpoints = partial.parent_path(), final_path = checkpoints / partial.stem();
    const std::int64_t step = step_of_checkpoint(final_path);
    std::error_code error;
    for (const fs::path& path : retention.damaged)
        if (step_of_checkpoint(path) <= step && fs::exists(path, error)) set_aside(path, ".damaged");
    if (fs::exists(final_path, error)) set_aside(final_path, ".abandoned");
    fs::rename(partial, final_path, error);
    if (error) storage::io_failed(final_path, "cannot be renamed", error.value());
    storage::sync(checkpoints);
    pulse.beat();
    try {
        storage::write_text_durably(checkpoints / "LATEST", final_path.filename().string() + "\n");
    } catch (const storage::NoRoom&) {
        // The checkpoint is complete. Until the next one, the file names the one before.
    }
    const std::vector<std::int64_t>& besides = retention.besides;
    std::int64_t kept = 0;
    for (const fs::path& path : list_checkpoints(checkpoints.parent_path())) {
        const std::int64_t old = step_of_checkpoint(path);
        if (old > step || ++kept <= std::max<std::int64_t>(retention.newest, 2)) continue;
        if (std::find(besides.begin(), besides.end(), old) == besides.end()) remove_checkpoint(path, pulse);
    }
    return final_path;
}

void set_aside_newer(const fs::path& run, std::int64_t step, std::span<const fs::path> spared) {
    for (const fs::path& path : list_checkpoints(run))
        if (step_of_checkpoint(path) > step && !among(path, spared)) set_aside(path, ".abandoned");
}

std::int64_t step_of_checkpoint(const fs::path& path) {
    const std::string name = path.filename().string();
    if (!name.starts_with("step-") || name.size() < 11 ||
        name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() > 20)
        return -1;
    return std::stoll(name.substr(5));
}

}  // namespace maestro::io
