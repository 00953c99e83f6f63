#include "data/sample_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/checksum.hpp"
#include "data/container.hpp"

namespace maestro::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "sample files are little-endian and read as they are");

constexpr std::string_view kFormat = "maestro-samples";
constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kMostChannels = 4;
constexpr std::int64_t kTokenBytes = 9;  ///< id, weight and flags
constexpr std::array<std::string_view, 6> kMembers{"tokens", "loss_weight", "flags",
                                                   "pixels", "index",       "tokenizer_json"};

std::size_t as_size(std::int64_t value) {
    return static_cast<std::size_t>(value);
}

}  // namespace

SampleFile::SampleFile(const std::filesystem::path& name)
    : SampleFile(name, *std::make_unique<Pulse>()) {}  // lives until the constructor returns

SampleFile::SampleFile(const std::filesystem::path& name, Pulse& pulse)
    : Samples(name.string()), file_(name) {
    pulse.doing(fmt::format("reading {}", name.string()));
    const Container container(path(), file_.descriptor(), pulse);
    container.expect_group("/", kMembers);
    if (container.text("format") != kFormat)
        refuse(path(), "attribute 'format'", fmt::format("not '{}'; is this a sample file?", kFormat));
    if (const std::int64_t version = container.integer("version"); version != kVersion)
        refuse(path(), "attribute 'version'",
               fmt::format("{}, where this build reads {}; make the file again with the scripts/data of "
                           "this build",
                           version, kVersion));
    const auto in_range = [&](std::string_view attribute, std::int64_t low, std::int64_t high) {
        const std::int64_t value = container.integer(attribute);
        if (value < low || value > high)
            refuse(path(), fmt::format("attribute '{}'", attribute),
                   fmt::format("{} is outside [{}, {}]; make the file again", value, low, high));
        return static_cast<std::int32_t>(value);
    };
    vocabulary_ = in_range("vocabulary", 1, std::numeric_limits<std::int32_t>::max());
    marker_ = in_range("marker", 0, vocabulary_ - 1);
    channels_ = in_range("channels", 1, kMostChannels);
    tokenizer_ = container.text("tokenizer");
    if (tokenizer_ == "huggingface") {
        const Extent json = container.array("tokenizer_json", Element::u8);
        tokenizer_at_ = json.offset;
        tokenizer_bytes_ = json.rows;
    } else if (tokenizer_ != "bytes") {
        refuse(path(), "attribute 'tokenizer'",
               fmt::format("'{}'; allowed are 'bytes' and 'huggingface'", tokenizer_));
    }

    const Extent tokens = container.array("tokens", Element::i32);
    const Extent weights = container.array("loss_weight", Element::f32);
    const Extent flags = container.array("flags", Element::u8);
    const Extent pixels = container.array("pixels", Element::u8);
    if (weights.rows != tokens.rows)
        refuse_element(path(), "loss_weight", weights.rows, "not as long as 'tokens'");
    if (flags.rows != tokens.rows) refuse_element(path(), "flags", flags.rows, "not as long as 'tokens'");
    tokens_at_ = tokens.offset;
    weights_at_ = weights.offset;
    flags_at_ = flags.offset;
    pixels_at_ = pixels.offset;

    identity_ = container.unsigned_integer("identity");
    index_ = SampleIndex(container, file_, {vocabulary_, marker_, channels_, identity_}, tokens.rows,
                         pixels.rows, pulse);
    if (const auto stored = container.unsigned_integer("index_checksum"); stored != index_.checksum())
        refuse(
            path(), "attribute 'index_checksum'",
            fmt::format("{:016x}, but the index has {:016x}: the file was damaged or changed; make it again",
                        stored, index_.checksum()));
}

std::string SampleFile::tokenizer_json(Pulse& pulse) const {
    constexpr std::int64_t kMost = std::int64_t{64} << 20;
    if (tokenizer_bytes_ > kMost)
        refuse(path(), "tokenizer_json",
               fmt::format("{} bytes; a tokenizer has at most {}", tokenizer_bytes_, kMost));
    std::string text(as_size(tokenizer_bytes_), '\0');
    file_.read(text.data(), tokenizer_bytes_, tokenizer_at_, "tokenizer_json", pulse);
    return text;
}

/// Calls visit(first, last) for the samples of a share, in blocks of about 2^18 tokens.
template <class Visit>
void SampleFile::in_blocks(Share share, Pulse& pulse, Visit visit) const {
    constexpr std::int64_t kBlock = 1 << 18;
    const auto bound = [&](int index) {
        return size() / share.count * index + size() % share.count * index / share.count;
    };
    const auto& offsets = index_.sample_offsets_;
    const std::int64_t end = bound(share.index + 1);
    for (std::int64_t first = bound(share.index), last = first; first < end; first = last) {
        const std::int64_t start = offsets[as_size(first)];
        for (++last; last < end && offsets[as_size(last + 1)] - start <= kBlock;) ++last;
        visit(first, last);
        pulse.beat();
    }
}

std::span<std::int32_t> SampleFile::find_markers(Share share, Pulse& pulse) {
    pulse.doing(fmt::format("looking for picture markers in {}", path().string()));
    const auto& offsets = index_.sample_offsets_;
    std::vector<std::int32_t>& markers = index_.markers_;
    markers.assign(index_.items_.size(), 0);
    std::vector<std::int32_t> tokens;
    in_blocks(share, pulse, [&](std::int64_t first, std::int64_t last) {
        const std::int64_t begin = offsets[as_size(first)], count = offsets[as_size(last)] - begin;
        tokens.resize(as_size(count));
        file_.read(tokens.data(), count * 4, tokens_at_ + begin * 4, "tokens", pulse);
        for (std::int64_t i = first; i < last; ++i) {
            const auto text =
                std::span(tokens).subspan(as_size(offsets[as_size(i)] - begin), as_size(index_.tokens(i)));
            if (text.size() > as_size(std::numeric_limits<std::int32_t>::max()))
                refuse_element(path(), "index/sample_offsets", i, "a sample of more than 2^31 tokens");
            const auto found = static_cast<std::size_t>(std::count(text.begin(), text.end(), marker_));
            if (found != index_.items(i).size())
                refuse_element(path(), "tokens", offsets[as_size(i + 1)] - 1, wrong_markers(i, found));
            auto to = markers.begin() + index_.picture_offsets_[as_size(i)];
            for (std::size_t t = 0; t < text.size(); ++t)
                if (text[t] == marker_) *to++ = static_cast<std::int32_t>(t);
        }
    });
    return markers;
}

/// The error text for a sample that has not one marker per picture.
std::string SampleFile::wrong_markers(std::int64_t i, std::size_t markers) const {
    return fmt::format("sample {} has {} markers (token {}) and {} pictures", i, markers, marker_,
                       index_.items(i).size());
}

/// Reads and checks the text of sample i.
void SampleFile::read_text(std::int64_t i, Sample& sample, Pulse& pulse) const {
    const std::int64_t begin = index_.sample_offsets_[as_size(i)], count = index_.tokens(i);
    sample.tokens.resize(as_size(count));
    sample.weights.resize(as_size(count));
    sample.flags.resize(as_size(count));
    file_.read(sample.tokens.data(), count * 4, tokens_at_ + begin * 4, "tokens", pulse);
    file_.read(sample.weights.data(), count * 4, weights_at_ + begin * 4, "loss_weight", pulse);
    file_.read(sample.flags.data(), count, flags_at_ + begin, "flags", pulse);
    const double weight = check_text(i, sample);
    Checksum checksum;
    checksum.add(sample.tokens);
    checksum.add(sample.weights);
    checksum.add(sample.flags);
    if (checksum.value() != index_.checksums_[as_size(i)])
        refuse_element(
            path(), "index/checksum", i,
            fmt::format("sample {} at offset {} of 'tokens' does not match its checksum: damaged or changed",
                        i, begin));
    if (weight != index_.weight(i))
        refuse_element(
            path(), "index/loss_weight", i,
            fmt::format("{}, but the weights of sample {} add up to {}", index_.weight(i), i, weight));
}

/// Returns the sum of the weights.
double SampleFile::check_text(std::int64_t i, const Sample& text) const {
    const std::int64_t begin = index_.sample_offsets_[as_size(i)];
    const auto refuse_at = [&](std::string_view dataset, std::size_t t, std::string_view what) {
        refuse_element(path(), dataset, begin + static_cast<std::int64_t>(t), what);
    };
    std::size_t markers = 0;
    double sum = 0;
    for (std::size_t t = 0; t < text.tokens.size(); ++t) {
        const std::int32_t token = text.tokens[t];
        const float weight = text.weights[t];
        if (token < 0 || token >= vocabulary_)
            refuse_at("tokens", t,
                      fmt::format("token id {} of sample {} is outside the vocabulary of {}", token, i,
                                  vocabulary_));
        if (!std::isfinite(weight) || weight < 0)
            refuse_at("loss_weight", t,
                      fmt::format("{} in sample {} is not a finite number >= 0", weight, i));
        if ((t == 0 || token == marker_) && (weight > 0 || (text.flags[t] & kCountsForExactMatch) != 0))
            refuse_at(
                weight > 0 ? "loss_weight" : "flags", t,
                fmt::format("must be 0 at the first token and at markers, which nothing predicts (sample {})",
                            i));
        markers += token == marker_ ? 1 : 0;
        sum += weight;
    }
    if (markers != index_.items(i).size())
        refuse_at("tokens", text.tokens.size() - 1, wrong_markers(i, markers));
    return sum;
}

void SampleFile::replace_pictures(std::vector<std::int64_t> sources) {
    if (!sources_.empty()) index_.items_ = std::move(stored_items_);
    sources_ = std::move(sources);
    if (sources_.empty()) return;
    stored_items_ = index_.items_;
    MAESTRO_CHECK(sources_.size() == stored_items_.size(), "{} sources for {} pictures", sources_.size(),
                  stored_items_.size());
    for (std::size_t p = 0; p < sources_.size(); ++p)
        index_.items_[p] = stored_items_.at(as_size(sources_[p]));
}

void SampleFile::read(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const {
    if (sources_.empty()) return read_stored(i, sample, fields, pulse);
    read_stored(i, sample, has_text(fields) ? SampleFields::text : SampleFields::sizes, pulse);
    if (!has_pixels(fields)) return;
    const std::size_t first = as_size(index_.picture_offsets_[as_size(i)]);
    for (std::size_t j = 0; j < sample.items.size(); ++j)
        read_picture(sources_[first + j], sample.items[j], pulse);
}

/// Sets the pixels alone.
void SampleFile::read_picture(std::int64_t number, StoredItem& picture, Pulse& pulse) const {
    const auto& offsets = index_.picture_offsets_;
    const std::int64_t sample =
        std::upper_bound(offsets.begin(), offsets.end(), number) - offsets.begin() - 1;
    const std::int64_t begin = index_.pixel_offsets_[as_size(number)],
                       bytes = index_.pixel_offsets_[as_size(number + 1)] - begin;
    picture.data.resize(as_size(bytes));
    file_.read(picture.data.data(), bytes, pixels_at_ + begin, "pixels", pulse);
    Checksum checksum;
    checksum.add(picture.data);
    if (checksum.value() != index_.pixel_checksums_[as_size(number)])
        refuse_element(path(), "index/pixel_checksum", number,
                       fmt::format("picture {} of sample {} does not match its checksum: damaged or changed",
                                   number - offsets[as_size(sample)], sample));
}

void SampleFile::read_stored(std::int64_t i, Sample& sample, SampleFields fields, Pulse& pulse) const {
    MAESTRO_CHECK(i >= 0 && i < size(), "sample {} of {}", i, size());
    sample.id = i;
    if (has_text(fields)) {
        read_text(i, sample, pulse);
    } else {
        sample.tokens.clear();
        sample.weights.clear();
        sample.flags.clear();
    }
    const std::span<const Item> items = index_.items(i);
    sample.items.resize(items.size());
    for (std::size_t j = 0; j < items.size(); ++j) {
        StoredItem& picture = sample.items[j];
        picture.item = items[j];
        picture.data.clear();
        if (has_pixels(fields))
            read_picture(index_.picture_offsets_[as_size(i)] + static_cast<std::int64_t>(j), picture, pulse);
    }
}

std::int64_t SampleFile::bytes(std::int64_t i, SampleFields fields) const {
    std::int64_t total = has_text(fields) ? index_.tokens(i) * kTokenBytes : 0;
    for (const Item& p : index_.items(i))
        total += static_cast<std::int64_t>(sizeof(StoredItem)) +
                 (has_pixels(fields) ? std::int64_t{p.height} * p.width * channels_ : 0);
    return total;
}

}  // namespace maestro::data
