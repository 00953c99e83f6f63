#include "train/checkpoint/checkpoint_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint_reader.hpp"
#include "storage/file.hpp"
#include "train/checkpoint/hash_sums.hpp"

namespace maestro::train {

namespace fs = std::filesystem;

namespace {

/// Collective. Rank 0's list.
std::vector<std::string> candidates_of(const comm::Communicator& world, const std::string& path) {
    std::string lines;
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        std::error_code unknown;
        const bool one =
            io::step_of_checkpoint(path) >= 0 || fs::exists(fs::path(path) / "manifest.json", unknown);
        if (one && fs::exists(path, unknown)) lines = path + '\n';
        if (!one)
            for (const fs::path& found : io::list_checkpoints(path)) lines += found.string() + '\n';
    });
    world.broadcast(lines);
    std::vector<std::string> candidates;
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);) candidates.push_back(line);
    return candidates;
}

/// Collective. What is wrong with the files of a checkpoint; empty: nothing. Each byte is read once.
std::string damage_of_files(const comm::Communicator& world, const fs::path& checkpoint,
                            const io::Manifest& manifest, Pulse& pulse) {
    std::vector<std::uint64_t> hashes(manifest.files.size(), 0);
    std::string wrong;
    comm::agree(world, [&] {
        wrong = io::damage_of_part(checkpoint, manifest, world.rank(), world.size(), hashes, pulse);
    });
    const std::vector<std::string> all = world.gather(wrong);
    const auto first = std::find_if(all.begin(), all.end(), [](const auto& what) { return !what.empty(); });
    wrong = first == all.end() ? "" : *first;
    const std::vector<std::uint64_t> sums = sums_on_first(world, hashes);
    if (world.rank() == 0 && wrong.empty()) wrong = io::damage_of(checkpoint, manifest, sums);
    world.broadcast(wrong);
    return wrong;
}

/// Collective. What is wrong with a checkpoint; empty: nothing.
std::string damage_of(const comm::Communicator& world, const fs::path& checkpoint, Pulse& pulse) {
    const fs::path path = checkpoint / "manifest.json";
    std::string text, wrong;
    io::Manifest manifest;
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        try {
            text = storage::read_text(path);
            manifest = io::parse_manifest(text, path);
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_data) throw;
            wrong = error.what();
            return;
        }
        io::check_version(checkpoint, manifest);
    });
    world.broadcast(wrong);
    if (!wrong.empty()) return wrong;
    world.broadcast(text);
    return damage_of_files(world, checkpoint, io::parse_manifest(text, path), pulse);
}

}  // namespace

FoundCheckpoint find_checkpoint(const comm::Communicator& world, const std::string& path, Pulse& pulse) {
    FoundCheckpoint found;
    for (const std::string& candidate : candidates_of(world, path)) {
        const std::string wrong = damage_of(world, candidate, pulse);
        if (wrong.empty()) {
            found.path = candidate;
            break;
        }
        found.damaged.push_back(candidate);
        found.reports.push_back(wrong);
    }
    return found;
}

std::string need_checkpoint(const comm::Communicator& world, const std::string& path, Pulse& pulse) {
    comm::agree(world, [&] {
        std::error_code unknown;
        if (world.rank() == 0 && !fs::exists(path, unknown))
            throw Error(
                ExitCode::input_missing,
                fmt::format("{}: there are no weights; train that deck first, or name a run or a checkpoint",
                            path));
    });
    const FoundCheckpoint found = find_checkpoint(world, path, pulse);
    if (found.path.empty())
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: no whole checkpoint there{}{}", path,
                                found.reports.empty() ? "" : "\n  ", fmt::join(found.reports, "\n  ")),
                    Scope::all_ranks);
    for (const std::string& report : found.reports)
        log::info("damaged and passed over, {} is read instead: {}", found.path, report);
    return found.path;
}

}  // namespace maestro::train
