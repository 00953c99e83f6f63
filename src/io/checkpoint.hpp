// Checkpoints: a directory step-NNNNNN with one HDF5 file a section, train.h5 and manifest.json with sizes
// and hashes. It is written as step-NNNNNN.partial, verified, synced and renamed, so what has its final name
// is whole. No MPI here: section leaders write their files, rank 0 begins and finishes.
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

/// A parameter's values; the moments are null where it is frozen.
struct StoredParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    const float* weight = nullptr;
    const float* first = nullptr;
    const float* second = nullptr;
};

struct ManifestEntry {
    std::string file;
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;  ///< XXH64 of the file
};

struct TrainState {
    std::int64_t step = 0;  ///< steps done
    std::string deck;
    std::map<std::string, std::string> settings;  ///< every key of the deck, with its value
    std::uint64_t samples = 0;                    ///< identity of the sample file
    Rows rows;
};

/// Makes RUN/checkpoints/step-NNNNNN.partial, empty. Rank 0.
std::filesystem::path begin_checkpoint(const std::filesystem::path& run, std::int64_t step);
/// Space is reserved first and the file read back after, because a full disk is not reported otherwise.
ManifestEntry write_section(const std::filesystem::path& partial, const std::string& section,
                            std::int64_t step, std::span<const StoredParameter> parameters);
ManifestEntry write_train_state(const std::filesystem::path& partial, const TrainState& state);
/// Manifest, sync, rename, LATEST; then deletes old ones, keeping max(keep, 2) whole ones. Returns the final
/// path.
std::filesystem::path finish_checkpoint(const std::filesystem::path& partial,
                                        std::span<const ManifestEntry> entries, std::int64_t keep);

/// Checkpoints of `run` after `step` become step-NNNNNN.abandoned: a run that goes on from `step` leaves
/// them.
void set_aside_newer(const std::filesystem::path& run, std::int64_t step);

/// `path` is a checkpoint or a run directory: the newest whole checkpoint, verified by its manifest; none:
/// nullopt.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path);
TrainState read_train_state(const std::filesystem::path& checkpoint);

enum class Stored { weight, first, second };
/// One parameter of a section; Error(bad_data) where it is missing or of another shape.
std::vector<float> read_parameter(const std::filesystem::path& checkpoint, const std::string& section,
                                  const std::string& name, const std::vector<std::int64_t>& shape,
                                  Stored what);
/// Is there such a parameter?
bool has_parameter(const std::filesystem::path& checkpoint, const std::string& section,
                   const std::string& name);
/// Names of the sections that a checkpoint holds.
std::vector<std::string> sections_of(const std::filesystem::path& checkpoint);

}  // namespace maestro::io
