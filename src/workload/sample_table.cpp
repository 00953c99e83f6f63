#include "workload/sample_table.hpp"

#include <algorithm>
#include <numeric>

namespace maestro::workload {

SampleTable::SampleTable(const data::SampleFile& file, const graph::SectionGraph& graph,
                         std::vector<model::Geometry> geometries, std::vector<model::Geometry> language)
    : vision_(std::move(geometries)), language_(std::move(language)) {
    MAESTRO_CHECK(vision_.size() == graph.sections.size() && language_.size() == vision_.size(),
                  "one geometry a section");
    const auto& index = file.index();
    shapes_.resize(static_cast<std::size_t>(file.size()));
    for (std::int64_t i = 0; i < file.size(); ++i) {
        auto& shape = shapes_[static_cast<std::size_t>(i)];
        shape.tokens = index.tokens(i);
        shape.weight = index.weight(i);
        const auto pictures = index.pictures(i);
        shape.pictures.assign(pictures.begin(), pictures.end());
    }
}

bool SampleTable::activates(std::int64_t sample, int section) const {
    return vision_[static_cast<std::size_t>(section)].patch == 0 || !shape(sample).pictures.empty();
}

std::int64_t SampleTable::length(std::int64_t sample, int section) const {
    const model::Geometry vision = vision_[static_cast<std::size_t>(section)];
    const std::int64_t rows = output_rows(sample, section);
    return vision.patch == 0 ? rows : rows * vision.merge * vision.merge;
}

std::int64_t SampleTable::output_rows(std::int64_t sample, int section) const {
    return rows_of(std::span(&shape(sample), 1), section);
}

std::int64_t SampleTable::rows_of(std::span<const model::SampleShape> batch, int section) const {
    const model::Geometry vision = vision_[static_cast<std::size_t>(section)];
    std::int64_t rows = 0;
    for (const model::SampleShape& shape : batch) {
        if (vision.patch == 0)
            rows += model::expanded_tokens(shape, language_[static_cast<std::size_t>(section)]);
        else
            for (const auto& p : shape.pictures) rows += model::picture_tokens(p.height, p.width, vision);
    }
    return rows;
}

std::vector<model::SampleShape> SampleTable::longest_micro_batch(int samples, int section) const {
    std::vector<std::int64_t> ids(shapes_.size());
    std::iota(ids.begin(), ids.end(), std::int64_t{0});
    const auto count = static_cast<std::ptrdiff_t>(std::min<std::int64_t>(samples, size()));
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](std::int64_t a, std::int64_t b) {
        return length(a, section) > length(b, section);
    });
    std::vector<model::SampleShape> longest;
    for (std::ptrdiff_t i = 0; i < count; ++i) longest.push_back(shape(ids[static_cast<std::size_t>(i)]));
    return longest;
}

std::vector<model::SampleShape> SampleTable::worst_micro_batch(int samples) const {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(samples, size()));
    const auto picture_rows = [&](const PictureSize& p) {
        std::int64_t rows = 0;
        for (const model::Geometry& g : vision_)
            if (g.patch > 0) rows += model::picture_tokens(p.height, p.width, g);
        return rows;
    };
    const auto rows_of = [&](const model::SampleShape& shape) {
        std::int64_t rows = 0;
        for (const auto& p : shape.pictures) rows += picture_rows(p);
        return rows;
    };
    std::vector<const model::SampleShape*> by_text, by_picture;
    for (const auto& shape : shapes_) by_text.push_back(&shape);
    by_picture = by_text;
    const auto longest = [&](auto& list, auto key) {
        std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count), list.end(),
                          [&](auto* a, auto* b) { return key(*a) > key(*b); });
    };
    longest(by_text, [](const model::SampleShape& s) { return s.tokens; });
    longest(by_picture, rows_of);
    std::vector<model::SampleShape> worst;
    for (std::size_t i = 0; i < count; ++i) {
        model::SampleShape shape = *by_picture[i];
        shape.tokens = std::max(shape.tokens, by_text[i]->tokens);
        worst.push_back(std::move(shape));
    }
    // The largest picture of the file bounds the attention of the vision section, whoever holds it.
    PictureSize largest;
    for (const auto& shape : shapes_)
        for (const auto& p : shape.pictures)
            if (picture_rows(p) > picture_rows(largest)) largest = p;
    if (largest.height > 0 && !worst.empty()) worst.front().pictures.push_back(largest);
    // The longest text may stand in a sample without pictures: none of its tokens is a marker.
    for (auto& shape : worst) shape.tokens += static_cast<std::int64_t>(shape.pictures.size());
    return worst;
}

}  // namespace maestro::workload
