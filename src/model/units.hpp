// How a model divides samples: into sequences, within which its attention stays, and into output rows. A
// model that reads text has one sequence for each sample, with a row for each token. An encoder has a
// sequence for each picture, and the output rows of a picture take the place of its marker in a text.
#pragma once

#include <cstdint>
#include <span>

#include "spec/picture_size.hpp"

namespace maestro::model {

struct ModelSpec;

/// The output rows of a picture, in rows and columns as they lie in it.
struct RowGrid {
    int height = 0, width = 0;
    std::int64_t rows() const { return std::int64_t{height} * width; }
};

/// A plain value, made from a model. By default that of a model that reads text.
class Units {
public:
    Units() = default;
    /// Of an encoder: `side` x `side` pixels become an output row, and `unit` rows within the encoder.
    explicit Units(int side, std::int64_t unit) : side_(side), unit_(unit) {}
    explicit Units(const ModelSpec& spec);

    /// Whether the model is an encoder, which reads pictures and no text.
    bool encodes() const { return side_ > 0; }
    /// Consecutive rows within the model that become one output row. No two ranks share them.
    std::int64_t unit() const { return unit_; }

    // Of an encoder.
    RowGrid grid(const PictureSize& picture) const;
    /// Output rows.
    std::int64_t outputs(const PictureSize& picture) const { return grid(picture).rows(); }
    std::int64_t outputs(std::span<const PictureSize> pictures) const;
    /// The rows within the encoder.
    std::int64_t rows(const PictureSize& picture) const { return unit_ * outputs(picture); }
    /// The picture with `side` x `side` output rows.
    PictureSize square(int side) const { return {side * side_, side * side_}; }

    bool operator==(const Units&) const = default;

private:
    int side_ = 0;           ///< pixels of an output row, vertically and horizontally; 0: no encoder
    std::int64_t unit_ = 1;  ///< unit()
};

/// Returns the tokens of a sample of `tokens`, markers included, after each marker is replaced by the output
/// rows that `encoder` makes of its picture. Where it is none, a marker remains one token.
std::int64_t expanded_tokens(std::int64_t tokens, std::span<const PictureSize> pictures,
                             const Units& encoder);

}  // namespace maestro::model
