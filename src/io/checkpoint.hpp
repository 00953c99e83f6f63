// Checkpoints: a directory step-NNNNNN with one HDF5 file a section, train.h5 and manifest.json with sizes
// and hashes. It is written as step-NNNNNN.partial, verified, synced and renamed, so a directory with the
// final name is complete. No MPI here: rank 0 begins and finishes, the ranks of a section write its file
// (section_writer.hpp). checkpoint_reader.hpp reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/metrics_file.hpp"

namespace maestro::io {

struct ManifestEntry {
    std::string file;
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;  ///< XXH64 of the file
};

struct TrainState {
    std::int64_t step = 0;  ///< steps done
    std::string deck;
    std::map<std::string, std::string> settings;  ///< every key of the deck, with its value
    std::map<std::string, std::string> defaults;  ///< of the keys that a deck may leave out
    std::uint64_t samples = 0;                    ///< identity of the sample file
    RowCounts counts;                             ///< rows of metrics.h5 up to here
    std::optional<Rows> rows = {};                ///< they themselves, in a checkpoint of version 2
};

/// The arrays that a section's file may hold of a parameter, and the groups of them.
enum class Stored { weight, first, second };
inline constexpr const char* kStoredGroups[] = {"weights", "adam_m", "adam_v"};
/// The version that is written, and the oldest that can be read.
inline constexpr std::int64_t kCheckpointVersion = 3, kOldestCheckpointVersion = 2;

/// Makes RUN/checkpoints/step-NNNNNN.partial, empty. Rank 0.
std::filesystem::path begin_checkpoint(const std::filesystem::path& run, std::int64_t step);
/// train.h5. Space is reserved first and the file read back after, because a full disk is not always
/// reported.
ManifestEntry write_train_state(const std::filesystem::path& partial, const TrainState& state, Pulse& pulse);
/// Writes the manifest, syncs, renames, and writes LATEST. Renames `damaged` checkpoints that are not newer
/// to step-NNNNNN.damaged, and keeps max(keep, 2) of this one and the others that are not newer. Newer
/// checkpoints belong to another continuation of the run and are not touched. Returns the final path.
std::filesystem::path finish_checkpoint(const std::filesystem::path& partial,
                                        std::span<const ManifestEntry> entries, std::int64_t keep,
                                        std::span<const std::filesystem::path> damaged = {});

/// Renames the checkpoints of `run` after `step`, except those in `spared`, to step-NNNNNN.abandoned: a run
/// that continues from `step` no longer needs them.
void set_aside_newer(const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> spared = {});

/// The step number in the name of a checkpoint; -1 if the name is not that of a checkpoint.
std::int64_t step_of_checkpoint(const std::filesystem::path& path);

}  // namespace maestro::io
