// How a model divides samples: into sequences, within which its attention stays, and into output rows. A
// model that reads text has one sequence for each sample, with a row for each token. An encoder has a
// sequence for each item of the kind that it reads, whose output rows take the place of the item's marker in
// a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "spec/item.hpp"

namespace maestro::model {

struct ModelSpec;

/// The output rows of an item: of a picture as they lie in it, of a sound 1 x rows.
struct RowGrid {
    int height = 0, width = 0;
    std::int64_t rows() const { return std::int64_t{height} * width; }
};

/// A plain value, made from a model. By default that of a model that reads text.
class Units {
public:
    /// What an encoder makes of an item of the kind that it reads.
    struct Encoder {
        Item::Kind reads = Item::Kind::picture;
        int side = 1;           ///< side x side pixels become an output row
        std::int64_t unit = 1;  ///< and `unit` rows within the encoder
        int channels = 1;       ///< bytes of a pixel
        bool operator==(const Encoder&) const = default;
    };
    Units() = default;
    explicit Units(const Encoder& encoder) : encoder_(encoder) {}
    explicit Units(const ModelSpec& spec);

    /// Whether the model is an encoder, which reads items and no text.
    bool encodes() const { return encoder_.has_value(); }
    /// Whether it is an encoder of this kind of item.
    bool reads(Item::Kind kind) const { return encodes() && encoder_->reads == kind; }
    /// Whether both are encoders of the same kind of item.
    bool reads_as(const Units& other) const { return encodes() && other.reads(encoder_->reads); }
    /// Consecutive rows within the model that become one output row. No two ranks share them.
    std::int64_t unit() const { return encodes() ? encoder_->unit : 1; }
    /// The sequences that a sample with these items has in the model.
    std::int64_t sequences(std::span<const Item> items) const;

    // Of an encoder. An item of another kind has no rows and no bytes.
    RowGrid grid(const Item& item) const;
    /// Output rows.
    std::int64_t outputs(const Item& item) const { return grid(item).rows(); }
    std::int64_t outputs(std::span<const Item> items) const;
    /// The rows within the encoder.
    std::int64_t rows(const Item& item) const { return unit() * outputs(item); }
    /// The bytes of the item as it is stored.
    std::int64_t bytes(const Item& item) const;
    /// Returns the item with the most bytes of those with the same rows.
    Item largest_like(const Item& item) const;
    /// Returns an item with side x side output rows, for measurements.
    Item probe(int side) const;

    bool operator==(const Units&) const = default;

private:
    std::optional<Encoder> encoder_;  ///< absent: the model reads text
};

/// Returns the tokens of a sample of `tokens`, markers included, after each marker is replaced by the output
/// rows that one of `encoders` makes of its item. The marker of an item that none of them reads remains one
/// token.
std::int64_t expanded_tokens(std::int64_t tokens, std::span<const Item> items,
                             std::span<const Units> encoders);
/// Returns the index of the encoder that reads this kind of item, or nothing.
std::optional<std::size_t> reader_of(Item::Kind kind, std::span<const Units> encoders);

}  // namespace maestro::model
