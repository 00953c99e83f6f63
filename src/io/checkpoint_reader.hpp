// Reads checkpoints, and tells a damaged one (which an older one may replace) from one that cannot be read
// now (which nothing may replace).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"

namespace maestro::io {

/// Checkpoints of a run under their final names, newest first. Error(io_error) where the directory cannot be
/// read.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);
/// Was there ever a whole checkpoint? Anything but unfinished ones says so.
bool had_checkpoints(const std::filesystem::path& run);

struct Manifest {
    std::int64_t version = 0;
    std::vector<ManifestEntry> files;  ///< empty if the version is another than kCheckpointVersion
};
/// Error(bad_data) where it is missing or damaged, Error(io_error) where it cannot be read.
Manifest read_manifest(const std::filesystem::path& checkpoint);
/// The same from its text; `path` is named in errors.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);
/// Describes what is wrong with a file of a checkpoint, with its path, in what one of `ranks` reads of the
/// files: each reads an equal number of blocks. Empty if nothing is. Adds the hash of each file's blocks to
/// `hashes`, by file, whose sums over all ranks damage_of() then compares. Error(io_error).
std::string damage_of_part(const std::filesystem::path& checkpoint, const Manifest& manifest, int rank,
                           int ranks, std::span<std::uint64_t> hashes, Pulse& pulse);
/// Describes the first file whose hash is not the manifest's; empty if there is none.
std::string damage_of(const std::filesystem::path& checkpoint, const Manifest& manifest,
                      std::span<const std::uint64_t> hashes);
/// Error(bad_data) for a checkpoint of a version that this build cannot read: to pass it over as damaged
/// could overwrite it.
void check_version(const std::filesystem::path& checkpoint, const Manifest& manifest);

TrainState read_train_state(const std::filesystem::path& checkpoint, Pulse& pulse);
/// Names of the sections that a checkpoint holds.
std::vector<std::string> sections_of(const std::filesystem::path& checkpoint);

/// A section's file, open.
class SectionReader {
public:
    SectionReader(const std::filesystem::path& checkpoint, const std::string& section, Pulse& pulse);
    bool has(const std::string& parameter) const;
    /// One parameter of this logical shape, and of it the shard; Error(bad_data) where it is missing or of
    /// another shape, Error(io_error).
    std::vector<float> read(const std::string& parameter, const std::vector<std::int64_t>& shape, Stored what,
                            const Shard& shard) const;
    /// Of the shard's elements [held.begin, held.end) alone.
    std::vector<float> read(const std::string& parameter, const std::vector<std::int64_t>& shape, Stored what,
                            const Shard& shard, Range held) const;

private:
    File file_;
};

}  // namespace maestro::io
