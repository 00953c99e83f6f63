#include "model/units.hpp"

#include "model/kind.hpp"

namespace maestro::model {

Units::Units(const ModelSpec& spec) : Units(kind_of(spec).units(spec)) {}

RowGrid Units::grid(const PictureSize& picture) const {
    return {(picture.height + side_ - 1) / side_, (picture.width + side_ - 1) / side_};
}

std::int64_t Units::outputs(std::span<const PictureSize> pictures) const {
    std::int64_t rows = 0;
    for (const PictureSize& picture : pictures) rows += outputs(picture);
    return rows;
}

std::int64_t expanded_tokens(std::int64_t tokens, std::span<const PictureSize> pictures,
                             const Units& encoder) {
    return encoder.encodes() ? tokens + encoder.outputs(pictures) - std::ssize(pictures) : tokens;
}

}  // namespace maestro::model
