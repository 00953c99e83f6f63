#include "base/text_file.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.hpp"

namespace maestro {

std::optional<std::string> read_text_file(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) return std::nullopt;
    std::string text;
    std::array<char, 1 << 16> block;
    while (const std::size_t got = std::fread(block.data(), 1, block.size(), file.get()))
        text.append(block.data(), got);
    if (std::ferror(file.get())) return std::nullopt;
    return text;
}

void write_text_file(const std::string& path, const std::string& text) {
    std::error_code unknown;
    const auto kind = std::filesystem::status(path, unknown).type();
    const bool plain =
        kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
    const std::string partial = plain ? path + ".partial" : path;
    const auto fail = [&](ExitCode code) {
        const std::string why = std::strerror(errno);
        if (plain) std::remove(partial.c_str());
        throw Error(code, fmt::format("{}: {}; give a path that can be written", path, why),
                    Scope::all_ranks);
    };
    errno = 0;
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    if (!file) fail(ExitCode::cannot_create);
    file << text;
    file.close();
    if (!file) fail(ExitCode::io_error);
    if (plain && std::rename(partial.c_str(), path.c_str()) != 0) fail(ExitCode::cannot_create);
}

}  // namespace maestro
