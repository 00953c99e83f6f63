#include "io/section_image.hpp"

#include <bit>

#include "base/adhash.hpp"
#include "base/check.hpp"
#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"

namespace maestro::io {

static_assert(std::endian::native == std::endian::little, "files hold floats as this machine does");

std::string file_of_section(const std::string& section) {
    return section + ".h5";
}

SectionImage describe_section(const std::string& section, std::int64_t step,
                              std::span<const StoredParameter> parameters, Pulse& pulse) {
    SectionImage described;
    std::vector<ArrayBytes> arrays;
    File file = File::held(file_of_section(section), pulse);
    write_attribute(file, "format", std::string("maestro-section"));
    write_attribute(file, "version", kFileVersion);
    write_attribute(file, "section", section);
    write_attribute(file, "step", step);
    for (const StoredParameter& p : parameters) {
        ArrayPlaces& at = described.places.emplace_back();
        for (std::size_t i = 0; i < at.size(); ++i) {
            if (i > 0 && !p.moments) continue;
            at[i] = make_floats(file, kStoredGroups[i], p.name, p.shape);
            MAESTRO_CHECK(at[i] % AdHash::kWord == 0, "{} begins at byte {}", p.name, at[i]);
            arrays.push_back({at[i], static_cast<std::uint64_t>(whole(p.shape).size()) * sizeof(float)});
        }
    }
    file.close();
    described.image = image_of(file_of_section(section), file.state(), std::move(arrays));
    return described;
}

}  // namespace maestro::io
