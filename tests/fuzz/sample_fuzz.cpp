// Opens hostile sample files. The first byte of an input chooses: 'R', the rest is the file; else a small
// right file is changed by edits of ten bytes each (which array, where, value), so that checks behind HDF5's
// own are reached.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "data/sample_file.hpp"
#include "unit/data/sample_writer.hpp"

namespace {

using maestro::data_test::SampleArrays;

/// HDF5 wants a name, so files in memory without one do not do; /dev/shm is the next best.
class ShortLivedFile {
public:
    ShortLivedFile() : descriptor_(::mkstemp(path_.data())) {
        if (descriptor_ < 0) std::abort();
    }
    ~ShortLivedFile() {
        ::close(descriptor_);
        ::unlink(path_.c_str());
    }
    ShortLivedFile(const ShortLivedFile&) = delete;
    ShortLivedFile& operator=(const ShortLivedFile&) = delete;
    const std::string& path() const { return path_; }
    void write(const std::uint8_t* data, std::size_t size) const {
        if (::write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
    }

private:
    std::string path_ =
        std::string(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/maestro-fuzz-XXXXXX";
    int descriptor_;
};

template <class T>
void edit(std::vector<T>& values, std::size_t at, std::int64_t value) {
    if (value == -2 && !values.empty())
        values.pop_back();
    else if (at < values.size())
        values[at] = static_cast<T>(value);
    else if (values.size() < 1000)
        values.push_back(static_cast<T>(value));
}

void edit(SampleArrays& arrays, int which, std::size_t at, std::int64_t value) {
    switch (which % 16) {
        case 0:
            return edit(arrays.tokens, at, value);
        case 1:
            return edit(arrays.flags, at, value);
        case 2:
            return edit(arrays.sample_offsets, at, value);
        case 3:
            return edit(arrays.picture_offsets, at, value);
        case 4:
            return edit(arrays.picture_shape, at, value);
        case 5:
            return edit(arrays.pixel_offsets, at, value);
        case 6:
            return edit(arrays.pixels, at, value);
        case 7:
            return edit(arrays.checksum, at, value);
        case 8:
            arrays.vocabulary = value;
            return;
        case 9:
            arrays.marker = value;
            return;
        case 10:
            arrays.channels = value;
            return;
        case 11:
            arrays.version = value;
            return;
        case 12: {
            float weight;
            std::memcpy(&weight, &value, sizeof weight);
            if (at < arrays.loss_weight.size()) arrays.loss_weight[at] = weight;
            return;
        }
        case 13:
            return edit(arrays.pixel_checksum, at, value);
        case 14: {
            double weight;
            std::memcpy(&weight, &value, sizeof weight);
            if (at < arrays.weight.size()) arrays.weight[at] = weight;
            return;
        }
        default:
            arrays.identity = static_cast<std::uint64_t>(value);
    }
}

void open_and_read(const std::string& path) {
    try {
        const maestro::data::SampleFile file(path);
        maestro::data::Sample sample;
        for (std::int64_t i = 0; i < file.size(); ++i)
            for (const auto fields : {maestro::data::SampleFields::text, maestro::data::SampleFields::pixels})
                file.read(i, sample, fields);
    } catch (const maestro::Error& error) {
        if (error.code() != maestro::ExitCode::bad_data) std::abort();
    }
}

}  // namespace

/// HDF5 cannot free what it read of a file that it finds damaged.
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libhdf5";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const ShortLivedFile file;
    if (data[0] == 'R') {
        file.write(data + 1, size - 1);
    } else {
        constexpr std::size_t kEdit = 10;
        SampleArrays arrays = maestro::data_test::small_file();
        for (std::size_t i = 1; i + kEdit <= size; i += kEdit) {
            std::int64_t value;
            std::memcpy(&value, data + i + 2, sizeof value);
            edit(arrays, data[i], data[i + 1], value);
        }
        maestro::data_test::SampleFileWriter{}.write(file.path(), arrays);
    }
    open_and_read(file.path());
    return 0;
}
