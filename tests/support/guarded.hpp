// Tensors at odd places of larger ones whose neighbours must stay as they are, and values exactly as a type
// has them.
#pragma once

#include <limits>
#include <vector>

#include "support/tensors.hpp"

namespace maestro::testing_support {

/// `value` as the type has it.
inline double rounded(DType type, double value) {
    double room = 0;
    const Tensor one(&room, type, {1});
    set_element(one, 0, value);
    return element_of(one, 0);
}

class GuardedTensors : public Tensors {
protected:
    using Tensors::Tensors;

    static constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();
    static constexpr double kGuard = 7;

    /// [rows, columns] of `value`, `shift` elements behind an aligned place.
    Tensor guarded(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift,
                   double value = kPoison) {
        const std::int64_t end = shift + rows * columns;
        const Tensor all = filled(type, {end + 40}, kGuard);
        guards_.push_back({all, shift, end});
        const Tensor inside(at(all, shift), type, {rows, columns});
        write(inside, std::vector<double>(static_cast<std::size_t>(inside.size()), value));
        return inside;
    }
    /// Standard normal values there.
    Tensor shifted(DType type, std::int64_t rows, std::int64_t columns, std::int64_t shift) {
        return Tensor(at(random(type, {shift + rows * columns}), shift), type, {rows, columns});
    }
    void write(const Tensor& tensor, const std::vector<double>& list) {
        std::vector<std::byte> bytes(tensor.bytes());
        Tensor host = tensor;
        host.data = bytes.data();
        for (std::int64_t i = 0; i < tensor.size(); ++i)
            set_element(host, i, list[static_cast<std::size_t>(i)]);
        if (tensor.size() > 0) b_.upload(bytes.data(), tensor);
    }
    /// The neighbours of all guarded tensors so far, which are then forgotten with all tensors.
    void expect_guards(const std::string& what) {
        for (const Guard& guard : guards_) {
            const std::vector<double> list = values(guard.all);
            for (std::int64_t i = 0; i < guard.all.size(); ++i) {
                const bool inside = i >= guard.begin && i < guard.end;
                EXPECT_TRUE(inside || list[static_cast<std::size_t>(i)] == kGuard)
                    << what << ", neighbour " << i;
            }
        }
        guards_.clear();
        arena_.reset();
    }
    /// Every element, exactly. The first that differs is named.
    void expect_equal(const Tensor& found, const std::vector<double>& expected, const std::string& what) {
        ASSERT_EQ(static_cast<std::size_t>(found.size()), expected.size()) << what;
        const std::vector<double> list = values(found);
        for (std::size_t i = 0; i < list.size(); ++i) ASSERT_EQ(list[i], expected[i]) << what << ", " << i;
    }

private:
    struct Guard {
        Tensor all;
        std::int64_t begin, end;
    };
    static void* at(const Tensor& tensor, std::int64_t element) {
        return static_cast<std::byte*>(tensor.data) +
               static_cast<std::size_t>(element) * size_of(tensor.dtype);
    }
    std::vector<Guard> guards_;
};

inline constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16};

}  // namespace maestro::testing_support
