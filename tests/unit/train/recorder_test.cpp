// What ranks report of the terms of a loss.
#include "train/run/recorder.hpp"

#include <gmock/gmock.h>

namespace maestro::train {
namespace {

TEST(LossParts, AddUpBySectionAndTerm) {
    const std::vector<io::LossRow> rows =
        add_loss_parts({io::loss_row(4, 1, "forward_kl", 0.5), io::loss_row(4, 1, "cross_entropy", 1),
                        io::loss_row(4, 0, "balance", 0.125), io::loss_row(4, 1, "cross_entropy", 2),
                        io::loss_row(5, 1, "cross_entropy", 8), io::loss_row(4, 1, "forward_kl", 0.25)});
    std::vector<std::string> found;
    for (const io::LossRow& row : rows)
        found.push_back(fmt::format("{} {} {} {}", row.step, row.section, row.name.data(), row.value));
    EXPECT_THAT(found, testing::ElementsAre("4 0 balance 0.125", "4 1 cross_entropy 3", "4 1 forward_kl 0.75",
                                            "5 1 cross_entropy 8"));
    EXPECT_TRUE(add_loss_parts({}).empty());
}

}  // namespace
}  // namespace maestro::train
