#include "io/section_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/check.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "files hold floats as this machine does");

fs::path file_of(const fs::path& partial, const std::string& section) {
    return partial / (section + ".h5");
}

/// The metadata, in memory; arrays have their place, and no bytes.
File describe_file(const fs::path& path, const std::string& section, std::int64_t step,
                   std::span<const StoredParameter> parameters, std::vector<ArrayPlaces>& places,
                   Pulse& pulse) {
    File file = File::held(path, pulse);
    write_attribute(file, "format", std::string("maestro-section"));
    write_attribute(file, "version", kCheckpointVersion);
    write_attribute(file, "section", section);
    write_attribute(file, "step", step);
    for (const StoredParameter& p : parameters) {
        ArrayPlaces& at = places.emplace_back();
        for (std::size_t i = 0; i < at.size(); ++i)
            if (i == 0 || p.moments) at[i] = make_floats(file, kStoredGroups[i], p.name, p.shape);
    }
    file.close();
    return file;
}

}  // namespace

SectionFile create_section(const fs::path& partial, const std::string& section, std::int64_t step,
                           std::span<const StoredParameter> parameters, Pulse& pulse) {
    const fs::path path = file_of(partial, section);
    pulse.doing(fmt::format("writing {}", path.string()));
    SectionFile made;
    const File described = describe_file(path, section, step, parameters, made.places, pulse);
    const storage::DriverState& state = described.state();
    made.bytes = state.end;
    check_free_space(partial, made.bytes);
    const storage::Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file) storage::io_failed(path, "cannot be made", errno);
    storage::reserve_space(path, file, made.bytes, pulse);
    for (const auto& [number, page] : state.pages) {
        const std::uint64_t at = number * storage::kPage;
        if (at < made.bytes &&
            !storage::write_at(file.get(), page.data(), std::min(storage::kPage, made.bytes - at), at, pulse))
            storage::io_failed(path, "cannot be written", errno);
    }
    if (::fsync(file.get()) != 0) storage::io_failed(path, "cannot be synced to the disk", errno);
    return made;
}

// For writing only: a network file system that has read a page may later send back all of it, and what
// another rank wrote there is lost.
SectionWriter::SectionWriter(const fs::path& partial, const std::string& section, Pulse& pulse)
    : path_(file_of(partial, section)), pulse_(pulse), file_(path_, O_WRONLY) {
    pulse.doing(fmt::format("writing {}", path_.string()));
    if (!file_) storage::io_failed(path_, "cannot be opened", errno);
}

void SectionWriter::write(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard,
                          Range held, const float* values) {
    MAESTRO_CHECK(place > 0, "{}: no such array", path_.string());
    for (const Extent& extent : extents_of(shape, shard, held)) {
        const auto bytes = static_cast<std::uint64_t>(extent.count) * sizeof(float);
        if (!storage::write_at(file_.get(), values + (extent.local - held.begin), bytes,
                               place + static_cast<std::uint64_t>(extent.logical) * sizeof(float), pulse_))
            storage::io_failed(path_, "cannot be written", errno);
        elements_ += extent.count;
        unsynced_ += bytes;
        if (unsynced_ >= storage::kSyncEvery) sync();
    }
}

void SectionWriter::sync() {
    if (::fsync(file_.get()) != 0) storage::io_failed(path_, "cannot be synced to the disk", errno);
    unsynced_ = 0;
    pulse_.beat();
}

ManifestEntry verify_section(const fs::path& partial, const std::string& section, std::uint64_t bytes,
                             Pulse& pulse) {
    const fs::path path = file_of(partial, section);
    const storage::Fingerprint found = storage::fingerprint(path, pulse);
    if (found.bytes != bytes)
        throw Error(ExitCode::io_error,
                    fmt::format("{}: {} bytes where {} were written", path.string(), found.bytes, bytes));
    return {.file = path.filename().string(), .bytes = found.bytes, .hash = found.hash};
}

}  // namespace maestro::io
