// Items of several kinds in a sample, and the encoders that read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/units.hpp"
#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {
namespace {

using testing::ElementsAre;

constexpr std::int32_t kSound = 38;
const Units kPictures(Units::Encoder{.reads = Item::Kind::picture, .side = 4, .unit = 4, .channels = 3});
const Units kSounds(Units::Encoder{.reads = Item::Kind::sound, .side = 10});
constexpr Item kPicture{5, 8}, kOtherPicture{4, 12}, kShortSound{1, 12, Item::Kind::sound},
    kLongSound{1, 21, Item::Kind::sound};

TEST(Units, OfAnEncoderAreThoseOfItsKindOfItem) {
    const std::vector<Item> items{kPicture, kLongSound, kOtherPicture};
    EXPECT_EQ(kPictures.sequences(items), 2);
    EXPECT_EQ(kSounds.sequences(items), 1);
    EXPECT_EQ(Units().sequences(items), 1);
    EXPECT_EQ(kPictures.outputs(items), 2 * 2 + 1 * 3);
    EXPECT_EQ(kSounds.outputs(items), 3);
    EXPECT_EQ(kPictures.rows(kPicture), 16);
    EXPECT_EQ(kPictures.rows(kLongSound), 0);
    EXPECT_EQ(kPictures.bytes(kPicture), 5 * 8 * 3);
    EXPECT_EQ(kSounds.bytes(kPicture), 0);
    EXPECT_EQ(kPictures.largest_like(kPicture), (Item{8, 8}));
    EXPECT_EQ(kPictures.largest_like(kLongSound), kLongSound);
    EXPECT_EQ(kPictures.outputs(kPictures.probe(3)), 9);
    EXPECT_EQ(kSounds.outputs(kSounds.probe(3)), 9);
    const std::vector both{kSounds, kPictures};
    EXPECT_EQ(expanded_tokens(10, items, both), 7 + 4 + 3 + 3);
    EXPECT_EQ(expanded_tokens(10, items, std::span(both).first(1)), 9 + 3);
    EXPECT_EQ(expanded_tokens(10, items, {}), 10);
}

TEST(Markers, AreTokensOfOneKindEach) {
    Markers markers(kMarker);
    EXPECT_FALSE(markers.kind_of(kSound));
    markers.set(Item::Kind::sound, kSound);
    EXPECT_EQ(markers.kind_of(kSound), Item::Kind::sound);
    EXPECT_EQ(markers.kind_of(kMarker), Item::Kind::picture);
    EXPECT_EQ(markers.of(Item::Kind::film), -1);
}

/// The same samples twice: with sounds among their items, or with pictures of as many rows instead.
Samples samples_with(std::int32_t marker, const Item& first, const Item& second) {
    Samples samples;
    samples.add({3, kMarker, 5, 7, marker, 11, 12, kMarker, 13}, {kPicture, first, kOtherPicture});
    samples.add({marker, 9, 2, kMarker, 30, 31}, {second, kPicture});
    samples.add({1, 2, 8, 4, 2, 17});
    return samples;
}

/// A language model whose inputs are the edges of these encoders. What they deliver for a row of an item is a
/// function of both.
class Reader {
public:
    Reader(const std::vector<Units>& encoders, const Markers& markers) : encoders_(encoders) {
        Role role{.section = "language", .inputs = {}, .loss_terms = {LossTerm{}}};
        role.markers = markers;
        role.compute = DType::f64;
        for (const Units& units : encoders)
            role.inputs.push_back(
                {.tensor = EdgeTensor::embeddings, .from = vision_spec(), .gradient = true, .units = units});
        module_ = make_module(*backend_, language_spec(kWidth, 32), role);
        fill_weights(*module_, "language");
    }

    /// Returns the loss, and appends the gradients of the rows, item by item, to `gradients`.
    double run(const Samples& samples, std::vector<double>& gradients) {
        Batch batch = samples.batch();
        batch.loss_scale = 1;
        std::vector<std::int64_t> rows(encoders_.size(), 0);  // by edge
        std::vector<std::vector<std::int64_t>> first_rows;    // by sample and edge
        std::vector<std::pair<std::size_t, Range>> places;    // by item: its edge and its rows there
        for (const SampleView& sample : batch.samples) {
            first_rows.push_back(rows);
            for (const ItemView& view : sample.items) {
                const std::size_t edge = reader_of(view.item.kind, encoders_).value();
                const std::int64_t end = rows[edge] + encoders_[edge].outputs(view.item);
                places.push_back({edge, {rows[edge], end}});
                rows[edge] = end;
            }
        }
        first_rows.push_back(rows);
        std::vector<Tensor> all, d_all;
        std::vector<std::vector<Tensor>> inputs(rows.size());
        for (std::size_t e = 0; e < rows.size(); ++e) {
            all.push_back(saved_.allocate(DType::f64, {rows[e], kWidth}));
            d_all.push_back(saved_.allocate(DType::f64, {rows[e], kWidth}));
            for (std::size_t s = 0; s + 1 < first_rows.size(); ++s)
                inputs[e].push_back(all[e].slice(first_rows[s][e], first_rows[s + 1][e]));
        }
        for (std::size_t i = 0; i < places.size(); ++i)
            for (std::int64_t x = 0; x < places[i].second.size() * kWidth; ++x)
                testing_support::write_element(
                    *backend_, all[places[i].first], places[i].second.begin * kWidth + x,
                    std::sin(0.7 * static_cast<double>(x) + static_cast<double>(i)));
        Result result;
        Tensor none;
        const auto state = module_->forward(batch, inputs, saved_, scratch_, none, result);
        module_->backward(*state, {}, d_all, scratch_);
        module_->collect(result);
        for (const auto& [edge, range] : places) {
            const auto read = testing_support::read_elements(*backend_, d_all[edge]);
            gradients.insert(gradients.end(), read.begin() + range.begin * kWidth,
                             read.begin() + range.end * kWidth);
        }
        return result.loss;
    }

private:
    static constexpr std::int64_t kWidth = 24;
    std::vector<Units> encoders_;
    std::unique_ptr<backend::Backend> backend_ = testing_support::make_device(1);
    backend::Arena saved_{*backend_, std::size_t{16} << 20}, scratch_{*backend_, std::size_t{16} << 20};
    std::unique_ptr<Module> module_;
};

/// Each item's rows are those that its encoder delivers, and get their gradients, in any order of the edges.
TEST(Items, OfTwoKindsComeFromTwoEncoders) {
    Markers markers(kMarker);
    markers.set(Item::Kind::sound, kSound);
    std::vector<double> expected;
    const double loss =
        Reader({kPictures}, Markers(kMarker)).run(samples_with(kMarker, {4, 8}, {12, 4}), expected);
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(24 * (4 + 2 + 3 + 3 + 4)));
    double norm = 0;
    for (const double g : expected) norm += g * g;
    EXPECT_GT(norm, 1e-6);
    for (const std::vector<Units>& encoders :
         {std::vector{kPictures, kSounds}, std::vector{kSounds, kPictures}}) {
        std::vector<double> gradients;
        EXPECT_EQ(Reader(encoders, markers).run(samples_with(kSound, kShortSound, kLongSound), gradients),
                  loss);
        EXPECT_EQ(gradients, expected);
    }
}

/// Without an encoder for sounds, their marker is a token; a marker of another kind than its item is refused.
TEST(Items, AreReadInTheOrderOfTheirMarkers) {
    Markers markers(kMarker);
    markers.set(Item::Kind::sound, kSound);
    const auto backend = testing_support::make_device(1);
    Role role{.section = "language", .inputs = {{EdgeTensor::embeddings, vision_spec()}}};
    role.loss_terms = {LossTerm{}};
    role.inputs[0].units = kPictures;
    role.markers = markers;
    const auto module = make_module(*backend, language_spec(24, 32), role);
    const Samples samples = samples_with(kSound, kShortSound, kLongSound);
    EXPECT_THAT(module->input_rows(samples.batch()), ElementsAre(ElementsAre(7, 4, 0)));
    Samples swapped;
    swapped.add({3, kSound, 5, kMarker}, {kPicture, kShortSound});
    EXPECT_THROW(module->input_rows(swapped.batch()), Error);
}

}  // namespace
}  // namespace maestro::model::test
