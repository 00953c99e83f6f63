// A file of samples (docs/file_formats.md): ragged arrays in HDF5, checked as a whole when opened. HDF5 is
// used in the constructor only, and is closed before it returns; samples are read past it, by pread, so
// reading needs no lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/pulse.hpp"

namespace maestro::data {

/// Largest height or width of a picture, pixels.
inline constexpr int kLargestPicture = 4096;

/// Bits of Sample::flags.
inline constexpr std::uint8_t kCountsForExactMatch = 1;

/// What read() does with the pixels of pictures, besides comparing the checksum.
enum class Pixels { keep, check };

/// A part of the samples: the index-th of `count` about equal ranges.
struct Share {
    int index = 0;
    int count = 1;
};

struct PictureShape {
    int height = 0;
    int width = 0;
    bool operator==(const PictureShape&) const = default;
};

struct StoredPicture {
    int height = 0;
    int width = 0;
    std::vector<std::uint8_t> pixels;  ///< [height, width, channels]; empty under Pixels::check
};

/// A sample as stored: one marker token per picture. weights[i] and flags[i] belong to token i as a target;
/// they are 0 at the first token and at markers, which nothing predicts.
struct Sample {
    std::int64_t id = -1;
    std::vector<std::int32_t> tokens;
    std::vector<float> weights;
    std::vector<std::uint8_t> flags;
    std::vector<StoredPicture> pictures;
};

/// What is known of every sample without its data. Owned by the SampleFile.
class SampleIndex {
public:
    std::int64_t size() const { return static_cast<std::int64_t>(sample_offsets_.size()) - 1; }
    std::int64_t tokens(std::int64_t i) const { return at(sample_offsets_, i + 1) - at(sample_offsets_, i); }
    /// Sum of the sample's loss weights.
    double weight(std::int64_t i) const { return at(weights_, i); }
    std::span<const PictureShape> pictures(std::int64_t i) const {
        return std::span(shapes_).subspan(
            static_cast<std::size_t>(at(picture_offsets_, i)),
            static_cast<std::size_t>(at(picture_offsets_, i + 1) - at(picture_offsets_, i)));
    }

private:
    friend class SampleFile;
    template <class T>
    static T at(const std::vector<T>& values, std::int64_t i) {
        return values[static_cast<std::size_t>(i)];
    }
    std::vector<std::int64_t> sample_offsets_{0};   ///< [N + 1], tokens
    std::vector<std::int64_t> picture_offsets_{0};  ///< [N + 1], pictures
    std::vector<PictureShape> shapes_;              ///< [M]
    std::vector<std::int64_t> pixel_offsets_{0};    ///< [M + 1], bytes
    std::vector<std::uint64_t> checksums_;          ///< [N]
    std::vector<double> weights_;                   ///< [N]
};

class SampleFile {
public:
    /// Opens and checks everything but the checksums of the samples: reads the index, and 9 bytes for each
    /// token of the share. Weights of samples outside the share are 0 in weights(). Throws
    /// Error(input_missing) or Error(bad_data) with path, dataset, offset and what to do. Call from the
    /// thread that uses HDF5.
    explicit SampleFile(const std::filesystem::path& path, Share share = {});
    /// The same, saying now and then that it goes on.
    SampleFile(const std::filesystem::path& path, Share share, Pulse& pulse);
    ~SampleFile();
    SampleFile(const SampleFile&) = delete;
    SampleFile& operator=(const SampleFile&) = delete;

    const SampleIndex& index() const { return index_; }
    /// [N], the weights found in this share and 0 elsewhere: to be summed over those who hold the others.
    std::span<double> weights() { return index_.weights_; }
    std::int64_t size() const { return index_.size(); }
    /// Token ids are in [0, vocabulary).
    std::int32_t vocabulary() const { return vocabulary_; }
    /// The token that stands for a picture.
    std::int32_t marker() const { return marker_; }
    int channels() const { return channels_; }
    /// Of the contents, wherever the file lies: a checksum of the index, which holds those of the samples.
    std::uint64_t identity() const { return identity_; }
    /// "bytes", or "huggingface" with the tokenizer in the file.
    const std::string& tokenizer() const { return tokenizer_; }
    const std::filesystem::path& path() const { return path_; }

    /// Reads sample i into `sample`, whose memory is used again, and compares the checksum. Any thread.
    /// Throws Error(bad_data) where the file has changed or was damaged, Error(io_error) where reading fails.
    void read(std::int64_t i, Sample& sample, Pixels pixels = Pixels::keep) const;
    /// Bytes of the sample in memory once read.
    std::int64_t bytes(std::int64_t i, Pixels pixels) const;

private:
    void open();
    void read_header();
    void check_index(std::int64_t tokens, std::int64_t pictures, std::int64_t pixels) const;
    std::uint64_t index_checksum() const;
    /// Ids, markers and weights of every token of the share; fills the weights of the index.
    void scan_tokens(Share share, Pulse& pulse);
    [[noreturn]] void refuse_element(std::string_view dataset, std::int64_t element,
                                     std::string_view what) const;
    void pread_exactly(void* target, std::int64_t bytes, std::int64_t offset, std::string_view dataset) const;

    std::filesystem::path path_;
    int descriptor_ = -1;
    std::int32_t vocabulary_ = 0;
    std::int32_t marker_ = 0;
    int channels_ = 0;
    std::string tokenizer_;
    std::uint64_t identity_ = 0;
    SampleIndex index_;
    std::int64_t tokens_at_ = 0, weights_at_ = 0, flags_at_ = 0, pixels_at_ = 0;  ///< offsets in the file
};

}  // namespace maestro::data
