// The memory of micro-batches in flight: who has it, when it comes back, and what is refused.
#include "train/step/activation_slots.hpp"

#include <gmock/gmock.h>

#include <set>

#include "support/errors.hpp"

namespace maestro::train {
namespace {

using testing::HasSubstr;
using testing_support::error_of;

class ActivationSlotsTest : public testing::Test {
protected:
    static constexpr std::size_t kBytes = 4096;
    std::unique_ptr<backend::Backend> backend_ = backend::make_cpu(1);
    ActivationSlots slots_{*backend_, "vision", 3, kBytes};
};

TEST_F(ActivationSlotsTest, AreAsManyAsTheWindowAndNeverShared) {
    std::set<void*> memory;
    std::set<int> used;
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(slots_.any_free());
        const InFlight entry = slots_.take();
        used.insert(entry.slot);
        const Tensor t = slots_.memory(entry).allocate(DType::f32, {kBytes / 4});  // all of it is there
        memory.insert(t.data);
    }
    EXPECT_EQ(used.size(), 3u);
    EXPECT_EQ(memory.size(), 3u);
    EXPECT_FALSE(slots_.any_free());
    const auto thrown = error_of([&] { slots_.take(); });
    EXPECT_EQ(thrown.code, ExitCode::broken_invariant);
    EXPECT_THAT(thrown.what, HasSubstr("section vision: more than 3 micro-batches in flight"));
}

TEST_F(ActivationSlotsTest, ComeBackWithTheirMemoryEmpty) {
    for (int round = 0; round < 10; ++round) {
        const InFlight entry = slots_.take();
        EXPECT_EQ(slots_.memory(entry).mark(), 0u);
        slots_.memory(entry).allocate(DType::f32, {kBytes / 4});
        slots_.release(entry);
    }
    for (int i = 0; i < 3; ++i) slots_.take();  // none was lost
    EXPECT_FALSE(slots_.any_free());
}

struct Kept : model::Saved {
    explicit Kept(int number) : value(number) {}
    int value;
};

TEST_F(ActivationSlotsTest, KeepAMicroBatchUntilItIsExtracted) {
    InFlight entry = slots_.take();
    const int slot = entry.slot;
    entry.samples = {5, 3};
    entry.saved = std::make_unique<Kept>(42);
    EXPECT_FALSE(slots_.in_flight(7));
    slots_.keep(7, std::move(entry));
    EXPECT_TRUE(slots_.in_flight(7));
    EXPECT_FALSE(slots_.in_flight(slot == 0 ? 1 : 0)) << "micro-batches are not slots";
    EXPECT_THAT(error_of([&] { slots_.check_empty(); }).what,
                HasSubstr("section vision: 1 micro-batches without their backward"));

    const InFlight back = slots_.extract(7);
    EXPECT_EQ(back.slot, slot);
    EXPECT_THAT(back.samples, testing::ElementsAre(5, 3));
    EXPECT_EQ(dynamic_cast<Kept&>(*back.saved).value, 42);
    EXPECT_FALSE(slots_.in_flight(7));
    slots_.check_empty();
    slots_.take();
    slots_.take();
    EXPECT_FALSE(slots_.any_free()) << "its slot is used until release()";
    slots_.release(back);
    EXPECT_TRUE(slots_.any_free());
    EXPECT_EQ(slots_.take().slot, slot);

    const auto thrown = error_of([&] { slots_.extract(7); });
    EXPECT_EQ(thrown.code, ExitCode::broken_invariant);
    EXPECT_THAT(thrown.what, HasSubstr("section vision: backward of micro-batch 7 before its forward"));
}

TEST_F(ActivationSlotsTest, ReleaseThoseThatAreOver) {
    std::set<int> odd;
    for (const int micro_batch : {10, 11, 13}) {
        InFlight entry = slots_.take();
        if (micro_batch % 2 == 1) odd.insert(entry.slot);
        slots_.keep(micro_batch, std::move(entry));
    }
    std::set<int> asked;
    slots_.release_if([&](int micro_batch) {
        asked.insert(micro_batch);
        return micro_batch % 2 == 1;
    });
    EXPECT_THAT(asked, testing::ElementsAre(10, 11, 13));
    EXPECT_TRUE(slots_.in_flight(10));
    EXPECT_FALSE(slots_.in_flight(11) || slots_.in_flight(13));
    std::set<int> again = {slots_.take().slot};
    again.insert(slots_.take().slot);
    EXPECT_EQ(again, odd);
    EXPECT_FALSE(slots_.any_free());
    slots_.release_if([](int) { return true; });
    slots_.check_empty();
    EXPECT_TRUE(slots_.any_free());
}

TEST_F(ActivationSlotsTest, TellWhatIsTakenAndWhatWasEverInUse) {
    EXPECT_EQ(slots_.bytes(), 3 * kBytes);
    EXPECT_EQ(slots_.used_bytes(), 0u);
    for (const std::int64_t floats : {256, 16, 1024}) {  // of one slot, one after another: the most counts
        const InFlight entry = slots_.take();
        slots_.memory(entry).allocate(DType::f32, {floats});
        slots_.release(entry);
    }
    EXPECT_EQ(slots_.used_bytes(), 4096u);
    const InFlight one = slots_.take(), two = slots_.take();
    slots_.memory(two).allocate(DType::f32, {16});
    EXPECT_EQ(slots_.used_bytes(), 4096u + 64u) << "each slot adds its own";
    EXPECT_EQ(slots_.bytes(), 3 * kBytes);
}

}  // namespace
}  // namespace maestro::train
