// Writes sample files for tests, right by default and wrong where a test asks for it. Other folders' tests
// use it too.
#pragma once

#include <hdf5.h>
#include <xxhash.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace maestro::data_test {

/// HDF5 complains at exit about files too damaged to close.
inline const bool kQuietExit = H5dont_atexit() >= 0;

/// The arrays and attributes of a file. Fill with add(), change at will, then write().
struct SampleArrays {
    std::string format = "maestro-samples";
    std::string tokenizer = "bytes";
    std::int64_t version = 2, vocabulary = 260, marker = 256, channels = 1;
    std::vector<std::int32_t> tokens;
    std::vector<float> loss_weight;
    std::vector<std::uint8_t> flags;
    std::vector<std::int64_t> sample_offsets{0}, picture_offsets{0}, pixel_offsets{0};
    std::vector<std::int32_t> picture_shape;
    std::vector<std::uint8_t> pixels;
    std::vector<std::uint64_t> checksum, pixel_checksum;  ///< of the text of samples, and of pictures
    std::vector<double> weight;
    std::uint64_t identity = 0x123456789abcdef0;

    /// A sample; every picture is filled with its own bytes. The first token and markers get weight 0.
    void add(const std::vector<std::int32_t>& ids,
             const std::vector<std::array<std::int32_t, 2>>& shapes = {}) {
        const auto first = tokens.size();
        weight.push_back(0);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const bool silent = i == 0 || ids[i] == marker;
            tokens.push_back(ids[i]);
            loss_weight.push_back(silent ? 0.0f : 1.0f);
            flags.push_back(silent ? 0 : 1);
            weight.back() += loss_weight.back();
        }
        for (const auto& [height, width] : shapes) {
            picture_shape.insert(picture_shape.end(), {height, width});
            for (std::int64_t i = 0; i < height * width * channels; ++i)
                pixels.push_back(static_cast<std::uint8_t>(pixels.size() * 7));
            const auto begin = static_cast<std::size_t>(pixel_offsets.back());
            pixel_checksum.push_back(XXH64(pixels.data() + begin, pixels.size() - begin, 0));
            pixel_offsets.push_back(static_cast<std::int64_t>(pixels.size()));
        }
        sample_offsets.push_back(static_cast<std::int64_t>(tokens.size()));
        picture_offsets.push_back(static_cast<std::int64_t>(pixel_offsets.size()) - 1);
        std::string bytes;
        append(bytes, tokens, first);
        append(bytes, loss_weight, first);
        append(bytes, flags, first);
        checksum.push_back(XXH64(bytes.data(), bytes.size(), 0));
    }

    std::uint64_t index_checksum() const {
        std::string bytes;
        append(bytes, std::vector<std::int64_t>{vocabulary, marker, channels}, 0);
        append(bytes, std::vector<std::uint64_t>{identity}, 0);
        append(bytes, sample_offsets, 0);
        append(bytes, picture_offsets, 0);
        append(bytes, picture_shape, 0);
        append(bytes, pixel_offsets, 0);
        append(bytes, checksum, 0);
        append(bytes, weight, 0);
        append(bytes, pixel_checksum, 0);
        return XXH64(bytes.data(), bytes.size(), 0);
    }

    template <class T>
    static void append(std::string& bytes, const std::vector<T>& values, std::size_t first) {
        bytes.append(reinterpret_cast<const char*>(values.data() + first),
                     (values.size() - first) * sizeof(T));
    }
};

/// Two samples of text, and one with two pictures of different sizes.
inline SampleArrays small_file() {
    SampleArrays arrays;
    arrays.add({257, 'a', 'b', 258});
    arrays.add({257, 256, 'x', '\n', 256, 'y', 258}, {{5, 7}, {8, 3}});
    arrays.add({257, 'c', 258});
    return arrays;
}

class SampleFileWriter {
public:
    /// Left out altogether, or written by a test's own means.
    std::set<std::string> leave_out;
    std::map<std::string, std::function<void(hid_t file)>> instead;
    bool checksummed_metadata = true;

    void write(const std::filesystem::path& path, const SampleArrays& arrays) const {
        const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        if (checksummed_metadata) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
        const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
        H5Pclose(access);
        if (file < 0) throw std::runtime_error("cannot create " + path.string());
        text(file, "format", arrays.format);
        text(file, "tokenizer", arrays.tokenizer);
        number(file, "version", arrays.version);
        number(file, "vocabulary", arrays.vocabulary);
        number(file, "marker", arrays.marker);
        number(file, "channels", arrays.channels);
        number(file, "index_checksum", static_cast<std::int64_t>(arrays.index_checksum()), H5T_STD_U64LE);
        number(file, "identity", static_cast<std::int64_t>(arrays.identity), H5T_STD_U64LE);
        if (!skip("index")) H5Gclose(H5Gcreate2(file, "index", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        dataset(file, "tokens", H5T_STD_I32LE, arrays.tokens);
        dataset(file, "loss_weight", H5T_IEEE_F32LE, arrays.loss_weight);
        dataset(file, "flags", H5T_STD_U8LE, arrays.flags);
        dataset(file, "index/sample_offsets", H5T_STD_I64LE, arrays.sample_offsets);
        dataset(file, "index/picture_offsets", H5T_STD_I64LE, arrays.picture_offsets);
        dataset(file, "index/picture_shape", H5T_STD_I32LE, arrays.picture_shape, 2);
        dataset(file, "index/pixel_offsets", H5T_STD_I64LE, arrays.pixel_offsets);
        dataset(file, "pixels", H5T_STD_U8LE, arrays.pixels);
        dataset(file, "index/checksum", H5T_STD_U64LE, arrays.checksum);
        dataset(file, "index/loss_weight", H5T_IEEE_F64LE, arrays.weight);
        dataset(file, "index/pixel_checksum", H5T_STD_U64LE, arrays.pixel_checksum);
        for (const auto& [name, make] : instead) make(file);
        H5Fclose(file);
    }

private:
    bool skip(const std::string& name) const { return leave_out.count(name) > 0 || instead.count(name) > 0; }

    template <class T>
    void dataset(hid_t file, const char* name, hid_t type, const std::vector<T>& values,
                 hsize_t columns = 0) const {
        if (skip(name) || (std::string(name).starts_with("index/") && skip("index"))) return;
        const std::array<hsize_t, 2> shape{columns == 0 ? values.size() : values.size() / columns, columns};
        const hid_t space = H5Screate_simple(columns == 0 ? 1 : 2, shape.data(), nullptr);
        const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        if (!values.empty()) H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
        H5Dclose(set);
        H5Sclose(space);
    }
    void attribute(hid_t file, const char* name, hid_t type, const void* value) const {
        if (skip(name)) return;
        const hid_t space = H5Screate(H5S_SCALAR);
        const hid_t made = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(made, type, value);
        H5Aclose(made);
        H5Sclose(space);
    }
    void number(hid_t file, const char* name, std::int64_t value, hid_t type = H5T_STD_I64LE) const {
        attribute(file, name, type, &value);
    }
    void text(hid_t file, const char* name, const std::string& value) const {
        const hid_t type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, value.empty() ? 1 : value.size());
        attribute(file, name, type, value.c_str());
        H5Tclose(type);
    }
};

}  // namespace maestro::data_test
