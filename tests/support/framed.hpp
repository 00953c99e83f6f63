// A matrix in the midst of other elements, wherever it begins: what an operation writes beside it shows.
#pragma once

#include <vector>

#include "support/tensors.hpp"

namespace maestro::testing_support {

class Framed {
public:
    static constexpr double kBeside = 777;  ///< exact in every type
    static constexpr std::int64_t kAfter = 5;

    /// [rows, columns] after so many elements, all poisoned.
    Framed(backend::Backend& b, backend::Arena& arena, DType type, std::int64_t rows, std::int64_t columns,
           std::int64_t before)
        : b_(b), all_(arena.allocate(type, {before + rows * columns + kAfter})), before_(before) {
        inner = all_.slice(before, before + rows * columns).reshape({rows, columns});
        put(std::vector<double>(static_cast<std::size_t>(inner.size()), std::nan("")));
    }
    void put(const std::vector<double>& values) {
        std::vector<std::byte> bytes(all_.bytes());
        Tensor host = all_;
        host.data = bytes.data();
        for (std::int64_t i = 0; i < all_.size(); ++i)
            set_element(host, i, inside(i) ? values[static_cast<std::size_t>(i - before_)] : kBeside);
        b_.upload(bytes.data(), all_);
    }
    /// Of the matrix; what is beside it is looked at.
    std::vector<double> take() {
        std::vector<std::byte> bytes(all_.bytes());
        b_.download(all_, bytes.data());
        Tensor host = all_;
        host.data = bytes.data();
        std::vector<double> values;
        for (std::int64_t i = 0; i < all_.size(); ++i)
            if (inside(i))
                values.push_back(element_of(host, i));
            else
                EXPECT_EQ(element_of(host, i), kBeside) << i << " beside " << inner.describe();
        return values;
    }

    Tensor inner;

private:
    bool inside(std::int64_t i) const { return i >= before_ && i < before_ + inner.size(); }
    backend::Backend& b_;
    Tensor all_;
    std::int64_t before_;
};

}  // namespace maestro::testing_support
