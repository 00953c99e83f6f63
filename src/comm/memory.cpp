#include "comm/memory.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace maestro::comm {

namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& path) {
    std::ifstream file(path);
    std::uint64_t value = 0;
    if (file >> value) return value;
    return std::nullopt;  // "max", or no such file
}

/// Of one control group: its limit less what it uses; nothing where it has no limit.
std::optional<std::uint64_t> left_in(const fs::path& group, const char* limit, const char* usage) {
    const auto most = number_in(group / limit), used = number_in(group / usage);
    if (!most || !used) return std::nullopt;
    return *most > *used ? *most - *used : 0;
}

}  // namespace

std::uint64_t available_memory() {
    std::uint64_t available = UINT64_MAX;
    std::ifstream info("/proc/meminfo");
    std::string key, unit;
    for (std::uint64_t kib = 0; info >> key >> kib; std::getline(info, unit))
        if (key == "MemAvailable:") available = kib * 1024;
    // "0::/path" names the group of version 2, "N:memory:/path" that of version 1; limits hold for all below.
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool two = controllers.empty();
        if (!two && controllers != "memory") continue;
        const fs::path root = two ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        fs::path below = fs::path(line.substr(second + 1)).relative_path();
        for (;; below = below.parent_path()) {
            const auto left = two ? left_in(root / below, "memory.max", "memory.current")
                                  : left_in(root / below, "memory.limit_in_bytes", "memory.usage_in_bytes");
            if (left) available = std::min(available, *left);
            if (below.empty()) break;
        }
    }
    return available;
}

Resident resident_memory() {
    Resident resident;
    std::ifstream status("/proc/self/status");
    std::string key, rest;
    while (status >> key) {
        if (key == "VmRSS:" || key == "VmHWM:") status >> (key == "VmRSS:" ? resident.now : resident.most);
        std::getline(status, rest);
    }
    return {resident.now * 1024, resident.most * 1024};
}

}  // namespace maestro::comm
