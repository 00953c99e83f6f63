#include "data/sample_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/check.hpp"
#include "base/error.hpp"
#include "data/container.hpp"

namespace maestro::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "sample files are little-endian and read as they are");
static_assert(sizeof(PictureShape) == 8);

constexpr std::string_view kFormat = "maestro-samples";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostChannels = 4;
constexpr std::array<std::string_view, 6> kMembers{"tokens", "loss_weight", "flags",
                                                   "pixels", "index",       "tokenizer_json"};
constexpr std::array<std::string_view, 5> kIndexMembers{"sample_offsets", "picture_offsets", "picture_shape",
                                                        "pixel_offsets", "checksum"};

/// XXH64 with seed 0 over several arrays as if they were one.
class Checksum {
public:
    Checksum() : state_(XXH64_createState(), XXH64_freeState) { XXH64_reset(state_.get(), 0); }
    void add(const void* data, std::size_t bytes) {
        if (bytes > 0) XXH64_update(state_.get(), data, bytes);
    }
    template <class T>
    void add(const std::vector<T>& values) {
        add(values.data(), values.size() * sizeof(T));
    }
    std::uint64_t value() const { return XXH64_digest(state_.get()); }

private:
    std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state_;
};

std::size_t as_size(std::int64_t value) {
    return static_cast<std::size_t>(value);
}

}  // namespace

SampleFile::SampleFile(const std::filesystem::path& path, Share share)
    : SampleFile(path, share, *std::make_unique<Pulse>()) {}

SampleFile::SampleFile(const std::filesystem::path& path, Share share, Pulse& pulse) : path_(path) {
    pulse.doing(fmt::format("reading {}", path.string()));
    open();
    try {
        read_header();
        scan_tokens(share, pulse);
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

SampleFile::~SampleFile() {
    ::close(descriptor_);
}

void SampleFile::open() {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hold us up
    if (descriptor_ < 0)
        throw Error(
            ExitCode::input_missing,
            fmt::format("{}: {}; scripts/data/make_all.py makes the sample files of the decks in inputs/",
                        path_.string(), std::strerror(errno)));
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        refuse(path_, "file", "not a regular file; name a sample file made by scripts/data");
    }
}

void SampleFile::read_header() {
    const Container container(path_, descriptor_);
    container.expect_group("/", kMembers);
    container.expect_group("/index", kIndexMembers);
    if (container.text("format") != kFormat)
        refuse(path_, "attribute 'format'", fmt::format("not '{}'; is this a sample file?", kFormat));
    if (const auto version = container.integer("version"); version != kVersion)
        refuse(path_, "attribute 'version'",
               fmt::format(
                   "{}, where this build reads {}; make the file again with the scripts/data of this build",
                   version, kVersion));
    const auto in_range = [&](std::string_view name, std::int64_t low, std::int64_t high) {
        const std::int64_t value = container.integer(name);
        if (value < low || value > high)
            refuse(path_, fmt::format("attribute '{}'", name),
                   fmt::format("{} is outside [{}, {}]; make the file again", value, low, high));
        return static_cast<std::int32_t>(value);
    };
    vocabulary_ = in_range("vocabulary", 1, std::numeric_limits<std::int32_t>::max());
    marker_ = in_range("marker", 0, vocabulary_ - 1);
    channels_ = in_range("channels", 1, kMostChannels);
    tokenizer_ = container.text("tokenizer");
    if (tokenizer_ == "huggingface")
        container.array("tokenizer_json", Element::u8);
    else if (tokenizer_ != "bytes")
        refuse(path_, "attribute 'tokenizer'",
               fmt::format("'{}'; allowed are 'bytes' and 'huggingface'", tokenizer_));

    const auto load = [&]<class T>(std::string_view name, Element element, std::vector<T>& values,
                                   int columns = 0) {
        const Extent extent = container.array(name, element, columns);
        values.resize(as_size(extent.rows));  // bounded by the file's size
        pread_exactly(values.data(), extent.rows * static_cast<std::int64_t>(sizeof(T)), extent.offset, name);
    };
    load("index/sample_offsets", Element::i64, index_.sample_offsets_);
    load("index/picture_offsets", Element::i64, index_.picture_offsets_);
    load("index/picture_shape", Element::i32, index_.shapes_, 2);
    load("index/pixel_offsets", Element::i64, index_.pixel_offsets_);
    load("index/checksum", Element::u64, index_.checksums_);

    const Extent tokens = container.array("tokens", Element::i32);
    const Extent weights = container.array("loss_weight", Element::f32);
    const Extent flags = container.array("flags", Element::u8);
    const Extent pixels = container.array("pixels", Element::u8);
    if (weights.rows != tokens.rows) refuse_element("loss_weight", weights.rows, "not as long as 'tokens'");
    if (flags.rows != tokens.rows) refuse_element("flags", flags.rows, "not as long as 'tokens'");
    check_index(tokens.rows, static_cast<std::int64_t>(index_.shapes_.size()), pixels.rows);
    identity_ = index_checksum();
    if (const auto stored = container.unsigned_integer("index_checksum"); stored != identity_)
        refuse(
            path_, "attribute 'index_checksum'",
            fmt::format("{:016x}, but the index has {:016x}: the file was damaged or changed; make it again",
                        stored, identity_));
    tokens_at_ = tokens.offset;
    weights_at_ = weights.offset;
    flags_at_ = flags.offset;
    pixels_at_ = pixels.offset;
}

void SampleFile::check_index(std::int64_t tokens, std::int64_t pictures, std::int64_t pixels) const {
    // Offsets start at 0, rise by at least `step`, and end at `total`.
    const auto check_offsets = [&](std::string_view name, const std::vector<std::int64_t>& offsets,
                                   std::int64_t step, std::int64_t total) {
        if (offsets.empty() || offsets.front() != 0) refuse_element(name, 0, "must be 0");
        for (std::size_t i = 1; i < offsets.size(); ++i)
            if (offsets[i] > total || offsets[i] < 0 || offsets[i] - offsets[i - 1] < step)
                refuse_element(name, static_cast<std::int64_t>(i),
                               fmt::format("{} after {} is out of order, or beyond the {} there are",
                                           offsets[i], offsets[i - 1], total));
        if (offsets.back() != total)
            refuse_element(name, static_cast<std::int64_t>(offsets.size()) - 1,
                           fmt::format("ends at {} where there are {}", offsets.back(), total));
    };
    check_offsets("index/sample_offsets", index_.sample_offsets_, 1, tokens);
    if (size() < 1) refuse_element("index/sample_offsets", 0, "the file holds no samples");
    check_offsets("index/picture_offsets", index_.picture_offsets_, 0, pictures);
    if (index_.picture_offsets_.size() != index_.sample_offsets_.size())
        refuse_element("index/picture_offsets", static_cast<std::int64_t>(index_.picture_offsets_.size()),
                       "not as long as 'sample_offsets'");
    if (index_.checksums_.size() != as_size(size()))
        refuse_element("index/checksum", static_cast<std::int64_t>(index_.checksums_.size()),
                       "not one for each sample");
    check_offsets("index/pixel_offsets", index_.pixel_offsets_, 1, pixels);
    if (index_.pixel_offsets_.size() != index_.shapes_.size() + 1)
        refuse_element("index/pixel_offsets", static_cast<std::int64_t>(index_.pixel_offsets_.size()),
                       "not one more than 'picture_shape'");
    for (std::size_t j = 0; j < index_.shapes_.size(); ++j) {
        const auto [height, width] = index_.shapes_[j];
        if (height < 1 || width < 1 || height > kLargestPicture || width > kLargestPicture)
            refuse_element("index/picture_shape", static_cast<std::int64_t>(j),
                           fmt::format("a picture of {} x {}; sides are 1 to {} pixels", height, width,
                                       kLargestPicture));
        const std::int64_t bytes = std::int64_t{height} * width * channels_;
        if (index_.pixel_offsets_[j + 1] - index_.pixel_offsets_[j] != bytes)
            refuse_element("index/pixel_offsets", static_cast<std::int64_t>(j) + 1,
                           fmt::format("{} bytes for a picture of {} x {} x {}",
                                       index_.pixel_offsets_[j + 1] - index_.pixel_offsets_[j], height, width,
                                       channels_));
    }
}

std::uint64_t SampleFile::index_checksum() const {
    Checksum checksum;
    const std::array<std::int64_t, 3> header{vocabulary_, marker_, channels_};
    checksum.add(header.data(), sizeof header);
    checksum.add(index_.sample_offsets_);
    checksum.add(index_.picture_offsets_);
    checksum.add(index_.shapes_);
    checksum.add(index_.pixel_offsets_);
    checksum.add(index_.checksums_);
    return checksum.value();
}

void SampleFile::scan_tokens(Share share, Pulse& pulse) {
    constexpr std::int64_t kBlock = 1 << 18;
    const auto bound = [&](int index) {
        return size() / share.count * index + size() % share.count * index / share.count;
    };
    std::int64_t sample = bound(share.index), markers = 0;
    const std::int64_t start = index_.sample_offsets_[as_size(sample)],
                       end = index_.sample_offsets_[as_size(bound(share.index + 1))];
    const auto block = as_size(std::min(kBlock, end - start));
    std::vector<std::int32_t> tokens(block);
    std::vector<float> weights(block);
    std::vector<std::uint8_t> flags(block);
    index_.weights_.assign(as_size(size()), 0.0);
    for (std::int64_t begin = start; begin < end; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, end - begin);
        pread_exactly(tokens.data(), count * 4, tokens_at_ + begin * 4, "tokens");
        pread_exactly(weights.data(), count * 4, weights_at_ + begin * 4, "loss_weight");
        pread_exactly(flags.data(), count, flags_at_ + begin, "flags");
        pulse.beat();
        for (std::int64_t i = begin; i < begin + count; ++i) {
            const std::int32_t token = tokens[as_size(i - begin)];
            const float weight = weights[as_size(i - begin)];
            const bool first = i == index_.sample_offsets_[as_size(sample)];
            if (first) markers = 0;
            if (token < 0 || token >= vocabulary_)
                refuse_element("tokens", i,
                               fmt::format("token id {} of sample {} is outside the vocabulary of {}", token,
                                           sample, vocabulary_));
            if (!std::isfinite(weight) || weight < 0)
                refuse_element("loss_weight", i,
                               fmt::format("{} in sample {} is not a finite number >= 0", weight, sample));
            if ((first || token == marker_) &&
                (weight > 0 || (flags[as_size(i - begin)] & kCountsForExactMatch) != 0))
                refuse_element(
                    weight > 0 ? "loss_weight" : "flags", i,
                    fmt::format(
                        "must be 0 at the first token and at markers, which nothing predicts (sample {})",
                        sample));
            markers += token == marker_ ? 1 : 0;
            index_.weights_[as_size(sample)] += weight;
            if (i + 1 < index_.sample_offsets_[as_size(sample + 1)]) continue;
            if (markers != static_cast<std::int64_t>(index_.pictures(sample).size()))
                refuse_element("tokens", i,
                               fmt::format("sample {} has {} markers (token {}) and {} pictures", sample,
                                           markers, marker_, index_.pictures(sample).size()));
            ++sample;
        }
    }
}

void SampleFile::read(std::int64_t i, Sample& sample, Pixels pixels) const {
    MAESTRO_CHECK(i >= 0 && i < size(), "sample {} of {}", i, size());
    const std::int64_t begin = index_.sample_offsets_[as_size(i)], count = index_.tokens(i);
    sample.id = i;
    sample.tokens.resize(as_size(count));
    sample.weights.resize(as_size(count));
    sample.flags.resize(as_size(count));
    pread_exactly(sample.tokens.data(), count * 4, tokens_at_ + begin * 4, "tokens");
    pread_exactly(sample.weights.data(), count * 4, weights_at_ + begin * 4, "loss_weight");
    pread_exactly(sample.flags.data(), count, flags_at_ + begin, "flags");
    Checksum checksum;
    checksum.add(sample.tokens);
    checksum.add(sample.weights);
    checksum.add(sample.flags);
    const auto pictures = index_.pictures(i);
    sample.pictures.resize(pictures.size());
    for (std::size_t j = 0; j < pictures.size(); ++j) {
        const std::size_t at = as_size(index_.picture_offsets_[as_size(i)]) + j;
        auto& picture = sample.pictures[j];
        picture.height = pictures[j].height;
        picture.width = pictures[j].width;
        const std::int64_t bytes = index_.pixel_offsets_[at + 1] - index_.pixel_offsets_[at];
        picture.pixels.resize(pixels == Pixels::keep ? as_size(bytes) : 0);
        std::array<std::uint8_t, 1 << 14> block;
        const auto step = pixels == Pixels::keep ? bytes : static_cast<std::int64_t>(block.size());
        for (std::int64_t done = 0; done < bytes; done += step) {
            const std::int64_t part = std::min(step, bytes - done);
            std::uint8_t* const target = pixels == Pixels::keep ? picture.pixels.data() : block.data();
            pread_exactly(target, part, pixels_at_ + index_.pixel_offsets_[at] + done, "pixels");
            checksum.add(target, as_size(part));
        }
    }
    if (checksum.value() != index_.checksums_[as_size(i)])
        refuse_element(
            "checksum", i,
            fmt::format("sample {} at offset {} of 'tokens' does not match its checksum: damaged or changed",
                        i, begin));
}

std::int64_t SampleFile::bytes(std::int64_t i, Pixels pixels) const {
    std::int64_t total = index_.tokens(i) * 9;
    for (const PictureShape& p : index_.pictures(i))
        total += static_cast<std::int64_t>(sizeof(StoredPicture)) +
                 (pixels == Pixels::keep ? std::int64_t{p.height} * p.width * channels_ : 0);
    return total;
}

void SampleFile::refuse_element(std::string_view dataset, std::int64_t element, std::string_view what) const {
    refuse(path_, fmt::format("dataset '{}', element {}", dataset, element),
           fmt::format("{}; make the file again with scripts/data", what));
}

void SampleFile::pread_exactly(void* target, std::int64_t bytes, std::int64_t offset,
                               std::string_view dataset) const {
    auto* to = static_cast<char*>(target);
    while (bytes > 0) {
        const auto got = ::pread(descriptor_, to, as_size(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            throw Error(ExitCode::io_error,
                        fmt::format("{}: dataset '{}', byte {} of the file: {}; check the disk or the "
                                    "network file system",
                                    path_.string(), dataset, offset, std::strerror(errno)));
        if (got == 0)
            refuse(path_, fmt::format("dataset '{}', byte {} of the file", dataset, offset),
                   "the file has become shorter since it was opened; make it again and do not replace it "
                   "during a run");
        to += got;
        bytes -= got;
        offset += got;
    }
}

}  // namespace maestro::data
