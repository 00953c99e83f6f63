#include "io/file_image.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace maestro::io {

namespace {

/// The bytes [begin, end) of the file. Pages that HDF5 has not written are zeros.
FileImage::Block block_of(const storage::DriverState& held, std::uint64_t begin, std::uint64_t end) {
    constexpr std::uint64_t kPage = storage::kPage;
    FileImage::Block block{begin, std::vector<std::byte>(end - begin)};
    for (auto page = held.pages.lower_bound(begin / kPage);
         page != held.pages.end() && page->first * kPage < end; ++page) {
        const std::uint64_t from = std::max(begin, page->first * kPage),
                            to = std::min(end, (page->first + 1) * kPage);
        std::memcpy(block.bytes.data() + (from - begin), page->second.data() + (from - page->first * kPage),
                    to - from);
    }
    return block;
}

}  // namespace

FileImage image_of(std::string file, const storage::DriverState& held, std::vector<ArrayBytes> arrays) {
    FileImage image{.file = std::move(file), .bytes = held.end, .blocks = {}};
    std::sort(arrays.begin(), arrays.end(),
              [](const ArrayBytes& a, const ArrayBytes& b) { return a.offset < b.offset; });
    arrays.push_back({held.end, 0});
    std::uint64_t at = 0;
    for (const ArrayBytes& array : arrays) {
        MAESTRO_CHECK(at <= array.offset, "{}: arrays overlap at byte {}", image.file, array.offset);
        if (at < array.offset) image.blocks.push_back(block_of(held, at, array.offset));
        at = array.offset + array.bytes;
    }
    return image;
}

}  // namespace maestro::io
