#include "model/units.hpp"

#include <algorithm>

#include "model/kind.hpp"

namespace maestro::model {

Units::Units(const ModelSpec& spec) : Units(kind_of(spec).units(spec)) {}

std::int64_t Units::sequences(std::span<const Item> items) const {
    if (!encodes()) return 1;
    return std::count_if(items.begin(), items.end(), [&](const Item& item) { return reads(item.kind); });
}

RowGrid Units::grid(const Item& item) const {
    if (!reads(item.kind)) return {};
    const int side = encoder_->side;
    return {(item.height + side - 1) / side, (item.width + side - 1) / side};
}

std::int64_t Units::outputs(std::span<const Item> items) const {
    std::int64_t rows = 0;
    for (const Item& item : items) rows += outputs(item);
    return rows;
}

std::int64_t Units::bytes(const Item& item) const {
    return reads(item.kind) ? std::int64_t{item.height} * item.width * encoder_->channels : 0;
}

Item Units::largest_like(const Item& item) const {
    if (!reads(item.kind)) return item;
    const RowGrid rows = grid(item);
    return {rows.height * encoder_->side, rows.width * encoder_->side, item.kind};
}

Item Units::probe(int side) const {
    return {side * encoder_->side, side * encoder_->side, encoder_->reads};
}

std::optional<std::size_t> reader_of(Item::Kind kind, std::span<const Units> encoders) {
    const auto reader = std::find_if(encoders.begin(), encoders.end(),
                                     [&](const Units& encoder) { return encoder.reads(kind); });
    if (reader == encoders.end()) return {};
    return static_cast<std::size_t>(reader - encoders.begin());
}

std::int64_t expanded_tokens(std::int64_t tokens, std::span<const Item> items,
                             std::span<const Units> encoders) {
    for (const Item& item : items)
        if (const auto reader = reader_of(item.kind, encoders)) tokens += encoders[*reader].outputs(item) - 1;
    return tokens;
}

}  // namespace maestro::model
