// The size of a picture, in pixels.
#pragma once

namespace maestro {

struct PictureSize {
    int height = 0;
    int width = 0;
    bool operator==(const PictureSize&) const = default;
};

}  // namespace maestro
