#include "io/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kVersion = 2;
constexpr const char* kGroups[] = {"weights", "adam_m", "adam_v"};

[[noreturn]] void failed(const fs::path& path, const std::string& what) {
    throw Error(ExitCode::io_error, fmt::format("{}: {}", path.string(), what));
}

struct File {
    explicit File(const fs::path& path, int flags)
        : descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
    ~File() {
        if (descriptor >= 0) ::close(descriptor);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int descriptor;
};

void sync(const fs::path& path) {
    const File file(path, O_RDONLY);
    if (file.descriptor < 0 || ::fsync(file.descriptor) != 0) failed(path, "cannot be synced to the disk");
}

/// Size and hash of a file as it can be read back.
ManifestEntry fingerprint(const fs::path& path) {
    const File file(path, O_RDONLY);
    if (file.descriptor < 0) failed(path, "cannot be read back");
    const std::unique_ptr<XXH64_state_t, void (*)(XXH64_state_t*)> state(
        XXH64_createState(), [](XXH64_state_t* s) { XXH64_freeState(s); });
    XXH64_reset(state.get(), 0);
    ManifestEntry entry{.file = path.filename().string(), .bytes = 0, .hash = 0};
    std::vector<char> block(1 << 20);
    for (;;) {
        const ssize_t n = ::read(file.descriptor, block.data(), block.size());
        if (n < 0) failed(path, "cannot be read back");
        if (n == 0) break;
        XXH64_update(state.get(), block.data(), static_cast<std::size_t>(n));
        entry.bytes += static_cast<std::uint64_t>(n);
    }
    entry.hash = XXH64_digest(state.get());
    return entry;
}

/// Makes sure that the disk holds `bytes` more: the serial HDF5 driver does not report a full one.
void reserve(const fs::path& partial, std::uint64_t bytes) {
    check_free_space(partial, bytes);
    const fs::path probe = partial / fmt::format(".reserve-{}", ::getpid());
    {
        const File file(probe, O_WRONLY | O_CREAT | O_TRUNC);
        const bool held =
            file.descriptor >= 0 &&
            (bytes == 0 || ::posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes)) == 0);
        std::error_code ignored;
        fs::remove(probe, ignored);
        if (!held)
            failed(
                partial,
                fmt::format("the disk has no room for {} MiB; free space, then run again with --resume auto",
                            (bytes >> 20) + 1));
    }
}

std::int64_t step_of(const fs::path& path) {
    const std::string name = path.filename().string();
    if (!name.starts_with("step-") || name.size() < 11 ||
        name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() > 20)
        return -1;
    return std::stoll(name.substr(5));
}

/// Checkpoints under their final names, newest first.
std::vector<fs::path> list(const fs::path& checkpoints) {
    std::vector<fs::path> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(checkpoints, error))
        if (step_of(entry.path()) >= 0) found.push_back(entry.path());
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
    return found;
}

/// Error(bad_data) for one of another version: to pass it over could overwrite it.
bool whole(const fs::path& checkpoint) {
    nlohmann::json version = kVersion;
    try {
        std::ifstream file(checkpoint / "manifest.json");
        const auto json = nlohmann::json::parse(file);
        if (json.at("format") != "maestro-checkpoint") return false;
        version = json.at("version");
        for (const auto& entry : json.at("files")) {
            const std::string name = entry.at("file");
            if (name.find('/') != std::string::npos) return false;
            const ManifestEntry found = fingerprint(checkpoint / name);
            if (found.bytes != entry.at("bytes").get<std::uint64_t>() ||
                fmt::format("{:016x}", found.hash) != entry.at("xxh64").get<std::string>())
                return false;
        }
    } catch (const std::exception&) {
        return false;
    }
    if (version != kVersion)
        throw Error(
            ExitCode::bad_data,
            fmt::format("{}: a checkpoint of version {}, this build reads version {}; use the build that "
                        "wrote it, or another run.output",
                        checkpoint.string(), version.dump(), kVersion));
    return true;
}

template <class Write>
ManifestEntry write_file(const fs::path& path, std::uint64_t bytes, Write&& write) {
    reserve(path.parent_path(), bytes + (64 << 10));
    Handle file = create_file(path);
    write(file);
    MAESTRO_HDF5(H5Fflush(file, H5F_SCOPE_GLOBAL));
    file.close();
    sync(path);
    const Handle again = open_file(path, false);
    return fingerprint(path);
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

ManifestEntry write_section(const fs::path& partial, const std::string& section, std::int64_t step,
                            std::span<const StoredParameter> parameters) {
    std::uint64_t bytes = 0;
    for (const auto& p : parameters) {
        std::uint64_t size = sizeof(float);
        for (const auto extent : p.shape) size *= static_cast<std::uint64_t>(extent);
        bytes += size * (p.first ? 3 : 1) + 4096;
    }
    return write_file(partial / (section + ".h5"), bytes, [&](hid_t file) {
        write_attribute(file, "format", std::string("maestro-section"));
        write_attribute(file, "version", kVersion);
        write_attribute(file, "section", section);
        write_attribute(file, "step", step);
        for (const auto& p : parameters)
            for (const auto& [group, values] :
                 {std::pair{kGroups[0], p.weight}, std::pair{kGroups[1], p.first},
                  std::pair{kGroups[2], p.second}})
                if (values) write_floats(file, fmt::format("{}/{}", group, p.name), p.shape, values);
    });
}

ManifestEntry write_train_state(const fs::path& partial, const TrainState& state) {
    const std::uint64_t bytes = state.rows.bytes() + 2 * state.deck.size() + (1 << 20);
    return write_file(partial / "train.h5", bytes, [&](hid_t file) {
        write_attribute(file, "format", std::string("maestro-train"));
        write_attribute(file, "version", kVersion);
        write_attribute(file, "step", state.step);
        write_attribute(file, "deck", state.deck);
        write_attribute(file, "settings", nlohmann::json(state.settings).dump());
        write_attribute(file, "samples", fmt::format("{:016x}", state.samples));
        write_rows(file, state.rows);
    });
}

fs::path finish_checkpoint(const fs::path& partial, std::span<const ManifestEntry> entries,
                           std::int64_t keep) {
    nlohmann::ordered_json json{
        {"format", "maestro-checkpoint"}, {"version", kVersion}, {"files", nlohmann::ordered_json::array()}};
    for (const auto& e : entries)
        json["files"].push_back(
            {{"file", e.file}, {"bytes", e.bytes}, {"xxh64", fmt::format("{:016x}", e.hash)}});
    {
        std::ofstream file(partial / "manifest.json");
        file << json.dump(2) << '\n';
        file.close();
        if (!file) failed(partial, "the manifest cannot be written");
    }
    sync(partial / "manifest.json");
    sync(partial);
    const fs::path final_path = partial.parent_path() / partial.stem();
    std::error_code error;
    if (fs::exists(final_path)) fs::remove_all(final_path, error);
    fs::rename(partial, final_path, error);
    if (error) failed(final_path, "cannot be renamed: " + error.message());
    sync(partial.parent_path());
    const fs::path latest = partial.parent_path() / "LATEST";
    {
        std::ofstream file(latest.string() + ".partial");
        file << final_path.filename().string() << '\n';
        file.close();
        if (!file) failed(latest, "cannot be written");
    }
    fs::rename(latest.string() + ".partial", latest);
    const auto all = list(partial.parent_path());
    const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(keep, 2));
    for (std::size_t i = kept; i < all.size(); ++i) fs::remove_all(all[i], error);
    return final_path;
}

void set_aside_newer(const fs::path& run, std::int64_t step) {
    for (const fs::path& path : list(run / "checkpoints")) {
        if (step_of(path) <= step) continue;
        const fs::path aside = path.string() + ".abandoned";
        std::error_code error;
        fs::remove_all(aside, error);
        fs::rename(path, aside, error);
        if (error) failed(path, "cannot be renamed: " + error.message());
    }
}

std::optional<fs::path> find_checkpoint(const fs::path& path) {
    if (fs::exists(path / "manifest.json")) {
        if (whole(path)) return path;
        return std::nullopt;
    }
    const auto all = list(path / "checkpoints");
    const auto at = std::find_if(all.begin(), all.end(), whole);
    return at == all.end() ? std::nullopt : std::optional(*at);
}

TrainState read_train_state(const fs::path& checkpoint) {
    const fs::path path = checkpoint / "train.h5";
    const Handle file = open_file(path, false);
    try {
        return {.step = read_integer_attribute(file, "step"),
                .deck = read_text_attribute(file, "deck"),
                .settings = nlohmann::json::parse(read_text_attribute(file, "settings")),
                .samples = std::stoull(read_text_attribute(file, "samples"), nullptr, 16),
                .rows = read_rows(file)};
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", path.string(), error.what()));
    } catch (const std::exception& error) {  // of json and stoull
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: not written by this program: {}", path.string(), error.what()));
    }
}

std::vector<float> read_parameter(const fs::path& checkpoint, const std::string& section,
                                  const std::string& name, const std::vector<std::int64_t>& shape,
                                  Stored what) {
    const fs::path path = checkpoint / (section + ".h5");
    try {
        const Handle file = open_file(path, false);
        return read_floats(file, fmt::format("{}/{}", kGroups[static_cast<int>(what)], name), shape);
    } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", path.string(), error.what()));
    }
}

bool has_parameter(const fs::path& checkpoint, const std::string& section, const std::string& name) {
    const Handle file = open_file(checkpoint / (section + ".h5"), false);
    return H5Lexists(file, kGroups[0], H5P_DEFAULT) > 0 &&
           H5Lexists(file, fmt::format("{}/{}", kGroups[0], name).c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> sections_of(const fs::path& checkpoint) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(checkpoint, error))
        if (entry.path().extension() == ".h5" && entry.path().stem() != "train")
            names.push_back(entry.path().stem().string());
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace maestro::io
