// What the whole run knows of every sample without its data: lengths, pictures, weight, the rows it sends
// over each edge and the sections it activates. A view of the file's index by the sections' geometries.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "data/sample_file.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"

namespace maestro::workload {

class SampleTable {
public:
    /// `geometries[s]`: patches of section s where it is a vision section, else default; `language[s]`: the
    /// geometry by which section s expands picture markers. `file` must outlive the table.
    SampleTable(const data::SampleFile& file, const graph::SectionGraph& graph,
                std::vector<model::Geometry> geometries, std::vector<model::Geometry> language);

    std::int64_t size() const { return index_->size(); }
    /// A copy; what is asked for every sample of a file has functions of its own.
    model::SampleShape shape(std::int64_t sample) const;
    std::span<const PictureSize> pictures(std::int64_t sample) const { return index_->pictures(sample); }
    /// Tokens as stored, with one marker a picture.
    std::int64_t tokens(std::int64_t sample) const { return index_->tokens(sample); }
    /// Where the markers stand among them, as SampleIndex knows it.
    std::span<const std::int32_t> markers(std::int64_t sample) const { return index_->markers(sample); }
    /// Sum of the loss weights of its targets.
    double weight(std::int64_t sample) const { return index_->weight(sample); }
    /// Does the section read the pixels of pictures?
    bool sees_pixels(int section) const { return vision_[section].patch > 0; }
    /// Rows (patches, tokens) that become one row of the section's output.
    std::int64_t unit(int section) const {
        return sees_pixels(section) ? std::int64_t{vision_[section].merge} * vision_[section].merge : 1;
    }
    /// Does the sample have work for the section? A vision section: pictures; every other: always.
    bool activates(std::int64_t sample, int section) const;
    /// Tokens (language) or patches (vision) that the section processes.
    std::int64_t length(std::int64_t sample, int section) const;
    /// The rows that sequences of the section may have, each length once: a picture is one, or a text.
    std::set<std::int64_t> sequence_rows(int section) const;
    /// Rows that the section puts out for the sample.
    std::int64_t output_rows(std::int64_t sample, int section) const;
    /// Rows that a vision section puts out for a picture.
    std::int64_t rows_of(const PictureSize& picture, int section) const;
    /// The same for a micro-batch of these shapes.
    std::int64_t rows_of(std::span<const model::SampleShape> batch, int section) const;
    /// The `samples` that are longest in the section: no micro-batch of that size has more rows.
    std::vector<model::SampleShape> longest_micro_batch(int samples, int section) const;
    /// The sum over the `samples` that have most of something.
    std::int64_t most_of(int samples, const std::function<std::int64_t(std::int64_t)>& value) const;
    /// A micro-batch of `samples` that no other of that size exceeds: the i-th longest text with the i-th
    /// largest pictures of the file.
    std::vector<model::SampleShape> worst_micro_batch(int samples) const;

private:
    const data::SampleIndex* index_;
    std::vector<model::Geometry> vision_;
    std::vector<model::Geometry> language_;
};

}  // namespace maestro::workload
