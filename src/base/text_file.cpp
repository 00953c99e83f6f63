#include "base/text_file.hpp"

#include <array>
#include <cstdio>
#include <memory>

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

}  // namespace maestro
