// Any bytes as weights: read or refused with an Error(bad_data), nothing else. The first byte of an input
// chooses: 'I', the rest is an index; 'H', the rest is a header behind two bytes with the number of bytes
// (0s) that follow it; anything else, the rest is the file.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "safetensors/index.hpp"
#include "safetensors/safetensors_file.hpp"

namespace {

/// A file without a name in any folder.
class MemoryFile {
public:
    explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("maestro-fuzz", 0)) {
        if (descriptor_ < 0 ||
            ::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
            std::abort();
    }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

private:
    int descriptor_;
};

/// Whether the call ends with an Error(bad_data).
template <class Call>
bool is_refused(Call&& call) {
    try {
        call();
        return false;
    } catch (const maestro::Error& error) {
        if (error.code() != maestro::ExitCode::bad_data || std::string_view(error.what()).size() > 2000)
            std::abort();
        return true;
    }
}

/// Reads all that can be read, in two ways.
void open_and_read(std::string_view bytes) {
    using namespace maestro;
    const MemoryFile memory(bytes);
    Pulse pulse;
    is_refused([&] {
        const safetensors::SafetensorsFile file(memory.path(), pulse);
        for (const auto& tensor : file.tensors()) {
            if (file.find(tensor.name) != &tensor || tensor.offset + tensor.bytes > bytes.size())
                std::abort();
            const auto count = static_cast<std::size_t>(tensor.elements);
            if (count > 8 * bytes.size()) std::abort();
            std::vector<float> values(count), one_by_one(count);
            if (is_refused([&] { file.read(tensor, Range{0, tensor.elements}, values.data(), pulse); }))
                continue;
            std::vector<Extent> extents;
            for (std::int64_t i = 0; i < tensor.elements; ++i) extents.push_back({i, i, 1});
            file.read(tensor, extents, one_by_one.data(), pulse);
            if (values != one_by_one) std::abort();
        }
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    if (bytes.starts_with('I')) {
        is_refused([&] { maestro::safetensors::parse_index(bytes.substr(1), "fuzz.json"); });
    } else if (bytes.starts_with('H') && size >= 3) {
        const std::string_view header = bytes.substr(3);
        std::string file;
        for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
        file.append(header).append(static_cast<std::size_t>(data[1] | data[2] << 8), '\0');
        open_and_read(file);
    } else {
        open_and_read(bytes.substr(size == 0 ? 0 : 1));
    }
    return 0;
}
