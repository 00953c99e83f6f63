#include "io/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"
#include "storage/file.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

/// Makes sure that the disk holds `bytes` more: what a file claims to hold may not be there yet.
void reserve(const fs::path& partial, std::uint64_t bytes, Pulse& pulse) {
    check_free_space(partial, bytes);
    const fs::path probe = partial / fmt::format(".reserve-{}", ::getpid());
    const storage::Descriptor file(probe, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file) storage::io_failed(probe, "cannot be made", errno);
    std::error_code ignored;
    fs::remove(probe, ignored);  // what it takes is given back when it is closed
    storage::reserve_space(partial, file, bytes, pulse);
}

/// A name beside, in the place of what has it.
void rename_to(const fs::path& path, const fs::path& target) {
    std::error_code error;
    fs::remove_all(target, error);
    fs::rename(path, target, error);
    if (error) storage::io_failed(path, "cannot be renamed", error.value());
}

bool among(const fs::path& path, std::span<const fs::path> list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const fs::path& other) { return other.filename() == path.filename(); });
}

}  // namespace

fs::path begin_checkpoint(const fs::path& run, std::int64_t step) {
    const fs::path partial = run / "checkpoints" / fmt::format("step-{:06d}.partial", step);
    std::error_code error;
    fs::remove_all(partial, error);
    fs::create_directories(partial, error);
    if (error)
        throw Error(ExitCode::io_error,
                    fmt::format("{}: cannot be made: {}", partial.string(), error.message()));
    return partial;
}

ManifestEntry write_train_state(const fs::path& partial, const TrainState& state, Pulse& pulse) {
    const fs::path path = partial / "train.h5";
    pulse.doing(fmt::format("writing {}", path.string()));
    reserve(partial, state.deck.size() + (2 << 20), pulse);
    File file(path, File::Mode::create, pulse);
    write_attribute(file, "format", std::string("maestro-train"));
    write_attribute(file, "version", kCheckpointVersion);
    write_attribute(file, "step", state.step);
    write_attribute(file, "deck", state.deck);
    write_attribute(file, "settings", nlohmann::json(state.settings).dump());
    write_attribute(file, "defaults", nlohmann::json(state.defaults).dump());
    write_attribute(file, "samples", fmt::format("{:016x}", state.samples));
    write_attribute(file, "step_rows", state.counts.steps);
    write_attribute(file, "timeline_rows", state.counts.tasks);
    write_attribute(file, "assignment_rows", state.counts.assignment);
    file.close();
    storage::sync(path);
    const storage::Fingerprint found = storage::fingerprint(path, pulse);
    return {.file = path.filename().string(), .bytes = found.bytes, .hash = found.hash};
}

fs::path finish_checkpoint(const fs::path& partial, std::span<const ManifestEntry> entries, std::int64_t keep,
                           std::span<const fs::path> damaged) {
    nlohmann::ordered_json json{{"format", "maestro-checkpoint"},
                                {"version", kCheckpointVersion},
                                {"files", nlohmann::ordered_json::array()}};
    for (const auto& e : entries)
        json["files"].push_back(
            {{"file", e.file}, {"bytes", e.bytes}, {"xxh64", fmt::format("{:016x}", e.hash)}});
    storage::write_text_durably(partial / "manifest.json", json.dump(2) + "\n");
    storage::sync(partial);
    const fs::path checkpoints = partial.parent_path(), final_path = checkpoints / partial.stem();
    const std::int64_t step = step_of_checkpoint(final_path);
    std::error_code error;
    for (const fs::path& path : damaged)
        if (step_of_checkpoint(path) <= step && fs::exists(path, error))
            rename_to(path, path.string() + ".damaged");
    if (fs::exists(final_path, error)) rename_to(final_path, final_path.string() + ".abandoned");
    fs::rename(partial, final_path, error);
    if (error) storage::io_failed(final_path, "cannot be renamed", error.value());
    storage::sync(checkpoints);
    storage::write_text_durably(checkpoints / "LATEST", final_path.filename().string() + "\n");
    std::int64_t kept = 0;
    for (const fs::path& path : list_checkpoints(checkpoints.parent_path()))
        if (step_of_checkpoint(path) <= step && ++kept > std::max<std::int64_t>(keep, 2))
            fs::remove_all(path, error);
    return final_path;
}

void set_aside_newer(const fs::path& run, std::int64_t step, std::span<const fs::path> spared) {
    for (const fs::path& path : list_checkpoints(run))
        if (step_of_checkpoint(path) > step && !among(path, spared))
            rename_to(path, path.string() + ".abandoned");
}

std::int64_t step_of_checkpoint(const fs::path& path) {
    const std::string name = path.filename().string();
    if (!name.starts_with("step-") || name.size() < 11 ||
        name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() > 20)
        return -1;
    return std::stoll(name.substr(5));
}

}  // namespace maestro::io
