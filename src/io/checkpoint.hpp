// Checkpoints: a directory step-NNNNNN with one HDF5 file a section, train.h5 and manifest.json with sizes
// and hashes. It is written as step-NNNNNN.partial, verified, synced and renamed, so a directory with the
// final name is complete. No MPI here: rank 0 begins and finishes, the ranks of a section write its file
// (section_image.hpp, file_writer.hpp). checkpoint_reader.hpp reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/file_image.hpp"
#include "io/metrics_file.hpp"

namespace maestro::io {

struct ManifestEntry {
    std::string file;
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;  ///< AdHash of the file
};

struct TrainState {
    std::int64_t step = 0;  ///< steps done
    std::string deck;
    /// Ids of the tokens that end answers in the samples; nothing where that is not known.
    std::optional<std::vector<std::int32_t>> ends = {};
    std::map<std::string, std::string> settings;  ///< every key of the deck, with its value
    std::map<std::string, std::string> defaults;  ///< of the keys that a deck may leave out
    std::uint64_t samples = 0;                    ///< identity of the sample file
    RowCounts counts;                             ///< rows of metrics.h5 up to here
};

/// The arrays that a section's file may hold of a parameter, and the groups of them.
enum class Stored { weight, first, second };
inline constexpr const char* kStoredGroups[] = {"weights", "adam_m", "adam_v"};
/// The version of manifests, and that of the HDF5 files.
inline constexpr std::int64_t kCheckpointVersion = 4, kFileVersion = 3;

/// RUN/checkpoints/step-NNNNNN.partial.
std::filesystem::path partial_of(const std::filesystem::path& run, std::int64_t step);
/// Makes it, empty, and removes what unfinished checkpoints have left. Rank 0, while nothing else is being
/// saved. Error(io_error).
void begin_checkpoint(const std::filesystem::path& run, std::int64_t step);
/// Removes an unfinished checkpoint that has failed, so that its room is free. Ignores errors.
void discard_checkpoint(const std::filesystem::path& partial);
/// train.h5.
FileImage describe_train_state(const TrainState& state, Pulse& pulse);
/// Steps after a checkpoint by whose mean loss it is judged, where there are so many.
inline constexpr std::int64_t kJudgedSteps = 10;

/// Which checkpoints stay when another one is complete, of those that are not newer than it. Newer ones
/// belong to another continuation of the run and are not touched.
struct Retention {
    std::int64_t newest = 2;                 ///< so many, at least two; the complete one is the first of them
    std::vector<std::int64_t> besides = {};  ///< steps of others
    std::vector<std::filesystem::path> damaged = {};  ///< are renamed to step-NNNNNN.damaged, see set_aside()
};
/// Writes the manifest, syncs, renames, writes LATEST, and removes the checkpoints that do not stay. Returns
/// the final path. Needs neither MPI nor HDF5. Error(io_error), also where a file has not the size of its
/// entry; storage::NoRoom.
std::filesystem::path finish_checkpoint(const std::filesystem::path& partial,
                                        std::span<const ManifestEntry> entries, const Retention& retention,
                                        Pulse& pulse);

/// Renames the checkpoints of `run` after `step`, except those in `spared`, to step-NNNNNN.abandoned: a run
/// that continues from `step` no longer needs them.
void set_aside_newer(const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> spared = {});

/// The step number in the name of a checkpoint; -1 if the name is not that of a checkpoint.
std::int64_t step_of_checkpoint(const std::filesystem::path& path);

}  // namespace maestro::io
