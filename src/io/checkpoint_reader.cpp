#include "io/checkpoint_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "base/adhash.hpp"
#include "base/error.hpp"
#include "base/shard.hpp"
#include "storage/file.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

/// Names in RUN/checkpoints; none where there is no such directory.
std::vector<fs::path> entries_of(const fs::path& run) {
    const fs::path checkpoints = run / "checkpoints";
    std::vector<fs::path> found;
    std::error_code error;
    fs::directory_iterator entry(checkpoints, error);
    while (!error && entry != fs::directory_iterator()) {
        found.push_back(entry->path());
        entry.increment(error);
    }
    if (error && error != std::errc::no_such_file_or_directory)
        storage::io_failed(checkpoints, "cannot be read", error.value());
    return found;
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& run) {
    std::vector<fs::path> found = entries_of(run);
    std::erase_if(found, [](const fs::path& path) { return step_of_checkpoint(path) < 0; });
    std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
        return step_of_checkpoint(a) > step_of_checkpoint(b);
    });
    return found;
}

bool had_checkpoints(const fs::path& run) {
    const std::vector<fs::path> entries = entries_of(run);
    return std::any_of(entries.begin(), entries.end(),
                       [](const fs::path& path) { return path.extension() != ".partial"; });
}

Manifest read_manifest(const fs::path& checkpoint) {
    const fs::path path = checkpoint / "manifest.json";
    return parse_manifest(storage::read_text(path), path);
}

Manifest parse_manifest(const std::string& text, const fs::path& path) {
    try {
        const auto json = nlohmann::json::parse(text);
        if (json.at("format") != "maestro-checkpoint")
            throw Error(ExitCode::bad_data, path.string() + ": of something else than a checkpoint");
        Manifest manifest{.version = json.at("version"), .files = {}};
        if (manifest.version != kCheckpointVersion) return manifest;
        for (const auto& entry : json.at("files")) {
            const std::string name = entry.at("file");
            if (name.find('/') != std::string::npos)
                throw Error(
                    ExitCode::bad_data,
                    fmt::format("{}: names '{}', which is not a file of a checkpoint", path.string(), name));
            const std::string hash = entry.at("adhash64");
            manifest.files.push_back(
                {.file = name, .bytes = entry.at("bytes"), .hash = std::stoull(hash, nullptr, 16)});
        }
        return manifest;
    } catch (const Error&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {  // of json and stoull
        throw Error(ExitCode::bad_data, fmt::format("{}: damaged: {}", path.string(), error.what()));
    }
}

namespace {

/// What a rank reads at a time of a file, and the share that it is given of one.
constexpr std::uint64_t kReadBlock = 16 << 20;

std::uint64_t blocks_of(const ManifestEntry& entry) {
    return std::max<std::uint64_t>(1, (entry.bytes + kReadBlock - 1) / kReadBlock);
}

std::string other_size(const fs::path& path, std::uint64_t found, std::uint64_t due) {
    return fmt::format("{}: {} bytes, the manifest says {}", path.string(), found, due);
}
std::string other_hash(const fs::path& path) {
    return fmt::format("{}: its checksum is not the manifest's, its contents have changed", path.string());
}

/// Adds the hash of blocks [begin, end) of a file.
std::string damage_of_blocks(const fs::path& path, const ManifestEntry& entry, std::uint64_t begin,
                             std::uint64_t end, std::uint64_t& hash, Pulse& pulse) {
    pulse.doing(fmt::format("reading {} to compare its checksum", path.string()));
    const storage::Descriptor file = storage::open_to_read(path);
    const std::uint64_t from = begin * kReadBlock, to = std::min(end * kReadBlock, entry.bytes);
    AdHash sum;
    storage::add_to_hash(path, file, from, to - from, sum, pulse);
    if (const std::uint64_t found = storage::size_of(path, file); found != entry.bytes)
        return other_size(path, found, entry.bytes);
    hash += sum.value();
    return "";
}

/// Turns Error(bad_data), such as for a missing file, into a description.
template <class Action>
std::string described(Action&& action) {
    try {
        return action();
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_data) throw;
        return error.what();
    }
}

}  // namespace

std::string damage_of_part(const fs::path& checkpoint, const Manifest& manifest, int rank, int ranks,
                           std::span<std::uint64_t> hashes, Pulse& pulse) {
    std::int64_t all = 0, first = 0;
    for (const ManifestEntry& entry : manifest.files) all += static_cast<std::int64_t>(blocks_of(entry));
    const Range here = part_of(all, rank, ranks);
    for (std::size_t f = 0; f < manifest.files.size(); ++f) {
        const ManifestEntry& entry = manifest.files[f];
        const auto blocks = static_cast<std::int64_t>(blocks_of(entry));
        const Range part{std::max(here.begin - first, std::int64_t{0}), std::min(here.end - first, blocks)};
        first += blocks;
        if (part.size() <= 0) continue;
        const std::string wrong = described([&] {
            return damage_of_blocks(checkpoint / entry.file, entry, static_cast<std::uint64_t>(part.begin),
                                    static_cast<std::uint64_t>(part.end), hashes[f], pulse);
        });
        if (!wrong.empty()) return wrong;
    }
    return "";
}

std::string damage_of(const fs::path& checkpoint, const Manifest& manifest,
                      std::span<const std::uint64_t> hashes) {
    for (std::size_t f = 0; f < manifest.files.size(); ++f)
        if (hashes[f] != manifest.files[f].hash) return other_hash(checkpoint / manifest.files[f].file);
    return "";
}

void check_version(const fs::path& checkpoint, const Manifest& manifest) {
    if (manifest.version == kCheckpointVersion) return;
    throw Error(ExitCode::bad_data,
                fmt::format("{}: a checkpoint of version {}, this build reads version {}; use the build that "
                            "wrote it, or another run.output",
                            checkpoint.string(), manifest.version, kCheckpointVersion));
}

namespace {

std::optional<std::vector<std::int32_t>> read_ends(hid_t open) {
    if (MAESTRO_HDF5(H5Aexists(open, "ends")) == 0) return {};
    return nlohmann::json::parse(read_text_attribute(open, "ends")).get<std::vector<std::int32_t>>();
}

/// Checkpoints of older builds do not count them: they had none.
std::int64_t read_loss_rows(hid_t open) {
    return MAESTRO_HDF5(H5Aexists(open, "loss_rows")) > 0 ? read_integer_attribute(open, "loss_rows") : 0;
}

}  // namespace

TrainState read_train_state(const fs::path& checkpoint, Pulse& pulse) {
    const fs::path path = checkpoint / "train.h5";
    const File file(path, File::Mode::read, pulse);
    return file.read([&](hid_t open) {
        try {
            return TrainState{
                .step = read_integer_attribute(open, "step"),
                .deck = read_text_attribute(open, "deck"),
                .ends = read_ends(open),
                .settings = nlohmann::json::parse(read_text_attribute(open, "settings")),
                .defaults = nlohmann::json::parse(read_text_attribute(open, "defaults")),
                .samples = std::stoull(read_text_attribute(open, "samples"), nullptr, 16),
                .counts = {.steps = read_integer_attribute(open, "step_rows"),
                           .tasks = read_integer_attribute(open, "timeline_rows"),
                           .syncs = read_integer_attribute(open, "sync_rows"),
                           .assignment = read_integer_attribute(open, "assignment_rows"),
                           .experts = read_integer_attribute(open, "expert_rows"),
                           .losses = read_loss_rows(open)},
            };
        } catch (const Error&) {
            throw;
        } catch (const std::bad_alloc&) {
            throw;
        } catch (const std::exception& error) {  // of json and stoull
            throw Error(ExitCode::bad_data, fmt::format("not written by this program: {}", error.what()));
        }
    });
}

std::vector<std::string> sections_of(const fs::path& checkpoint) {
    std::vector<std::string> names;
    for (const ManifestEntry& entry : read_manifest(checkpoint).files)
        if (entry.file != "train.h5") names.push_back(fs::path(entry.file).stem().string());
    std::sort(names.begin(), names.end());
    return names;
}

SectionReader::SectionReader(const fs::path& checkpoint, const std::string& section, Pulse& pulse)
    : file_(checkpoint / (section + ".h5"), File::Mode::read, pulse) {
    pulse.doing(fmt::format("reading {}", (checkpoint / (section + ".h5")).string()));
}

bool SectionReader::has(const std::string& parameter) const {
    return file_.read([&](hid_t file) {
        return MAESTRO_HDF5(H5Lexists(file, kStoredGroups[0], H5P_DEFAULT)) > 0 &&
               MAESTRO_HDF5(H5Lexists(file, fmt::format("{}/{}", kStoredGroups[0], parameter).c_str(),
                                      H5P_DEFAULT)) > 0;
    });
}

std::vector<float> SectionReader::read(const std::string& parameter, const std::vector<std::int64_t>& shape,
                                       Stored what, const Shard& shard) const {
    return read(parameter, shape, what, shard, {0, shard.size()});
}

std::vector<float> SectionReader::read(const std::string& parameter, const std::vector<std::int64_t>& shape,
                                       Stored what, const Shard& shard, Range held) const {
    return file_.read([&](hid_t file) {
        return read_floats(file, fmt::format("{}/{}", kStoredGroups[static_cast<int>(what)], parameter),
                           shape, shard, held);
    });
}

}  // namespace maestro::io
