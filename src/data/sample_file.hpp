// A file of samples (docs/file_formats.md): ragged arrays in HDF5. The constructor alone uses HDF5 and closes
// it before it returns. Samples are read by pread from where their arrays lie, so reading needs no lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "data/raw_file.hpp"
#include "data/samples.hpp"

namespace maestro::data {

/// A part of the samples: the index-th of `count` ranges of about equal size.
struct Share {
    int index = 0;
    int count = 1;
};

class SampleFile final : public Samples {
public:
    /// Reads and checks the index. Throws Error(input_missing), Error(bad_data) or Error(io_error) with path,
    /// dataset, offset and what to do. Call from the thread that uses HDF5. Beats on the way.
    SampleFile(const std::filesystem::path& name, Pulse& pulse);
    explicit SampleFile(const std::filesystem::path& name);  ///< without a pulse

    /// Finds the positions of picture markers, which only the text has, in a share of the samples. Returns
    /// [M], the positions in this share and 0 elsewhere, to be summed in place over the processes that read
    /// the other shares; then the index has them all. Throws Error(bad_data) if a sample has not one marker
    /// per picture, and Error(io_error).
    std::span<std::int32_t> find_markers(Share share, Pulse& pulse);
    /// From now on picture number p of the file (counted over all samples) is the one that is stored as
    /// number sources[p], in the index and in what read() returns. Empty: every picture is its own again.
    void replace_pictures(std::vector<std::int64_t> sources);
    /// Token ids are in [0, vocabulary).
    std::int32_t vocabulary() const { return vocabulary_; }
    Markers markers() const override { return Markers(marker_); }
    int channels() const { return channels_; }
    std::optional<ContentRange> contents() const override { return ContentRange{vocabulary_, channels_}; }
    /// Identifies the contents, independent of the path.
    std::uint64_t identity() const override { return identity_; }
    /// "bytes", or "huggingface" with the tokenizer in the file.
    const std::string& tokenizer() const { return tokenizer_; }
    /// The text of the tokenizer.json; only with the tokenizer "huggingface". Throws as read() does, and
    /// Error(bad_data) where it is larger than any tokenizer.
    std::string tokenizer_json(Pulse& pulse) const;
    const std::filesystem::path& path() const { return file_.path(); }

    /// Reads sample i into `sample`, whose memory is reused; compares checksums and checks ids, markers and
    /// weights. Any thread. Throws Error(bad_data) if the file has changed or is damaged, Error(io_error) if
    /// reading fails and fails again. Beats after every MiB.
    void read(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const override;
    void read(std::int64_t i, Sample& sample, SampleFields fields = SampleFields::all) const {
        Pulse silent;
        read(i, sample, fields, silent);
    }
    std::int64_t bytes(std::int64_t i, SampleFields fields) const override;

private:
    template <class Visit>
    void in_blocks(Share share, Pulse& pulse, Visit visit) const;
    std::string wrong_markers(std::int64_t i, std::size_t markers) const;
    void read_text(std::int64_t i, Sample& sample, Pulse& pulse) const;
    double check_text(std::int64_t i, const Sample& text) const;
    void read_stored(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const;
    /// Picture number `number` of the file as it is stored.
    void read_picture(std::int64_t number, StoredItem& picture, Pulse& pulse) const;

    RawFile file_;
    std::int32_t vocabulary_ = 0;
    std::int32_t marker_ = 0;
    int channels_ = 0;
    std::string tokenizer_;
    std::int64_t tokenizer_at_ = 0, tokenizer_bytes_ = 0;  ///< of the tokenizer.json
    std::uint64_t identity_ = 0;
    std::vector<std::int64_t> sources_;  ///< of replace_pictures()
    std::vector<Item> stored_items_;     ///< of the index, where it has those of replaced pictures
    std::int64_t tokens_at_ = 0, weights_at_ = 0, flags_at_ = 0, pixels_at_ = 0;  ///< offsets in the file
};

}  // namespace maestro::data
