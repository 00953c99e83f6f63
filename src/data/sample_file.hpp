// A file of samples (docs/file_formats.md): ragged arrays in HDF5. HDF5 is used in the constructor only, and
// is closed before it returns; samples are read past it, by pread, so reading needs no lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "data/raw_file.hpp"
#include "data/sample_index.hpp"

namespace maestro::data {

/// Bits of Sample::flags.
inline constexpr std::uint8_t kCountsForExactMatch = 1;

/// What read() brings of a sample; the rest is left empty. Sizes of pictures always come.
enum class Part {
    all,
    text,    ///< tokens, weights and flags
    pixels,  ///< of the pictures
};

/// A part of the samples: the index-th of `count` about equal ranges.
struct Share {
    int index = 0;
    int count = 1;
};

struct StoredPicture {
    int height = 0;
    int width = 0;
    std::vector<std::uint8_t> pixels;  ///< [height, width, channels]; empty under Part::text
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

class SampleFile {
public:
    /// Reads and checks the index alone; of a file of version 1, which does not have their weights there,
    /// also 9 bytes for each token of the share. Throws Error(input_missing) or Error(bad_data) with path,
    /// dataset, offset and what to do. Call from the thread that uses HDF5.
    explicit SampleFile(const std::filesystem::path& path, Share share = {});
    /// The same, saying now and then that it goes on.
    SampleFile(const std::filesystem::path& path, Share share, Pulse& pulse);

    const SampleIndex& index() const { return index_; }
    /// Of version 1 [N], the weights found in this share and 0 elsewhere: to be summed over those who hold
    /// the others. Of version 2 empty: every reader has all of them.
    std::span<double> weights() { return version_ == 1 ? std::span(index_.weights_) : std::span<double>(); }
    /// The file does not store apart where the markers stand: reads the tokens of a share of the samples. The
    /// result [M] has the positions found there and 0 elsewhere, to be summed over those who hold the others;
    /// then the index knows them. Throws Error(bad_data) where markers and pictures are not equally many, and
    /// Error(io_error).
    std::span<std::int32_t> find_markers(Share share, Pulse& pulse);
    /// From now on picture number p of the file (counted over all samples) is the one that is stored as
    /// number sources[p], in the index and in what read() returns. Empty: every picture is its own again.
    void replace_pictures(std::vector<std::int64_t> sources);
    std::int64_t size() const { return index_.size(); }
    /// Token ids are in [0, vocabulary).
    std::int32_t vocabulary() const { return vocabulary_; }
    /// The token that stands for a picture.
    std::int32_t marker() const { return marker_; }
    int channels() const { return channels_; }
    /// Of the contents, wherever the file lies and whatever its version.
    std::uint64_t identity() const { return identity_; }
    /// "bytes", or "huggingface" with the tokenizer in the file.
    const std::string& tokenizer() const { return tokenizer_; }
    const std::filesystem::path& path() const { return file_.path(); }

    /// Reads sample i into `sample`, whose memory is used again; compares checksums and checks ids, markers
    /// and weights. Of version 1, where one checksum spans a sample, all of it is read whatever the part. Any
    /// thread. Throws Error(bad_data) where the file has changed or was damaged, Error(io_error) where
    /// reading fails.
    void read(std::int64_t i, Sample& sample, Part part = Part::all) const;
    /// Bytes of the sample in memory once read.
    std::int64_t bytes(std::int64_t i, Part part) const;

private:
    /// Tokens of one sample or of neighbours.
    struct Text {
        std::span<const std::int32_t> tokens;
        std::span<const float> weights;
        std::span<const std::uint8_t> flags;
    };
    void read_header();
    void scan(Share share, Pulse& pulse);
    template <class Visit>
    void in_blocks(Share share, Pulse& pulse, Visit visit) const;
    std::string unlike(std::int64_t i, std::size_t markers) const;
    Text read_text(std::int64_t first, std::int64_t last, Sample& sample) const;
    double check_text(std::int64_t i, const Text& text) const;
    void compare(std::uint64_t checksum, std::int64_t i) const;
    void read_stored(std::int64_t i, Sample& sample, Part part) const;
    /// Picture number `number` of the file as it is stored.
    void read_picture(std::int64_t number, StoredPicture& picture) const;

    RawFile file_;
    std::int64_t version_ = 0;
    std::int32_t vocabulary_ = 0;
    std::int32_t marker_ = 0;
    int channels_ = 0;
    std::string tokenizer_;
    std::uint64_t identity_ = 0;
    SampleIndex index_;
    std::vector<std::int64_t> sources_;       ///< of replace_pictures()
    std::vector<PictureSize> stored_shapes_;  ///< of the index, where it has those of replaced pictures
    std::int64_t tokens_at_ = 0, weights_at_ = 0, flags_at_ = 0, pixels_at_ = 0;  ///< offsets in the file
};

}  // namespace maestro::data
