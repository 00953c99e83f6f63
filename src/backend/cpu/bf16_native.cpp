#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "backend/cpu/bf16_gemm.hpp"

namespace maestro::backend {

namespace {

using dnnl::memory;

/// An instruction set is a mask of what it contains.
bool offers(dnnl::cpu_isa has, dnnl::cpu_isa wanted) {
    return (static_cast<int>(has) & static_cast<int>(wanted)) == static_cast<int>(wanted);
}

/// oneDNN compiles one kernel a shape, which costs more than a product of this size, so the one variable
/// length (rows, or the summed length of a weight gradient) is cut into powers of two from kLargest to
/// kSmallest; what is left over is padded to the next power of two.
class Native final : public Bf16Gemm {
public:
    const char* describe() const override {
        return offers(dnnl::get_effective_cpu_isa(), dnnl::cpu_isa::avx512_core_amx) ? "matrix units"
                                                                                     : "dot products";
    }
    void run(const Backend::Gemm& g) override {
        try {
            cut(g);
        } catch (const dnnl::error& error) {
            throw Error(ExitCode::broken_invariant, fmt::format("oneDNN: {}", error.what()));
        }
    }

private:
    static constexpr std::int64_t kLargest = 1024, kSmallest = 64;

    void cut(const Backend::Gemm& g) {
        const bool cut_k = g.transpose_a;  // a weight gradient: the rows are summed over
        if (cut_k && (g.transpose_b || g.out == DType::bf16)) {
            execute(g);  // no operation asks for it; partial sums would be rounded
            return;
        }
        const std::int64_t length = cut_k ? g.k : g.m;
        for (std::int64_t at = 0; at < length;) {
            const std::int64_t left = length - at;
            std::int64_t piece = kLargest;
            while (piece > left && piece > kSmallest) piece /= 2;
            Backend::Gemm part = g;
            const auto* a = static_cast<const bf16*>(g.a);
            part.a = a + at * g.lda;
            if (cut_k) {
                part.k = std::min(piece, left);
                part.b = static_cast<const bf16*>(g.b) + at * g.ldb;
                part.accumulate = g.accumulate || at > 0;
            } else {
                part.m = std::min(piece, left);
                part.y = static_cast<std::byte*>(g.y) + static_cast<std::size_t>(at * g.ldy) * size_of(g.out);
            }
            if (piece <= left)
                execute(part);
            else if (cut_k)
                execute_padded_sum(part);
            else
                execute_padded_rows(part);
            at += piece;
        }
    }

    static std::int64_t padded(std::int64_t length) {
        std::int64_t power = 8;
        while (power < length) power *= 2;
        return power;
    }
    /// `rows` rows of `columns` elements, then zeros up to `whole` rows, dense.
    static void* copy_padded(std::vector<std::byte>& to, const void* from, std::int64_t rows,
                             std::int64_t whole, std::int64_t columns, std::int64_t stride,
                             std::size_t element) {
        const std::size_t line = static_cast<std::size_t>(columns) * element;
        to.resize(std::max(to.size(), static_cast<std::size_t>(whole) * line));
        for (std::int64_t r = 0; r < rows; ++r)
            std::memcpy(to.data() + static_cast<std::size_t>(r) * line,
                        static_cast<const std::byte*>(from) + static_cast<std::size_t>(r * stride) * element,
                        line);
        std::memset(to.data() + static_cast<std::size_t>(rows) * line, 0,
                    static_cast<std::size_t>(whole - rows) * line);
        return to.data();
    }
    void execute_padded_sum(Backend::Gemm g) {
        const std::int64_t whole = padded(g.k);
        g.a = copy_padded(a_, g.a, g.k, whole, g.m, g.lda, sizeof(bf16));
        g.b = copy_padded(b_, g.b, g.k, whole, g.n, g.ldb, sizeof(bf16));
        g.lda = g.m;
        g.ldb = g.n;
        g.k = whole;
        execute(g);
    }
    void execute_padded_rows(Backend::Gemm g) {
        const std::int64_t rows = g.m, whole = padded(rows), stride = g.ldy;
        auto* const result = static_cast<std::byte*>(g.y);
        g.a = copy_padded(a_, g.a, rows, whole, g.k, g.lda, sizeof(bf16));
        g.y = copy_padded(y_, result, g.accumulate ? rows : 0, whole, g.n, stride, size_of(g.out));
        g.lda = g.k;
        g.ldy = g.n;
        g.m = whole;
        execute(g);
        const std::size_t line = static_cast<std::size_t>(g.n) * size_of(g.out);
        for (std::int64_t r = 0; r < rows; ++r)
            std::memcpy(result + static_cast<std::size_t>(r * stride) * size_of(g.out),
                        y_.data() + static_cast<std::size_t>(r) * line, line);
    }

    using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                           bool, bool, bool, bool>;
    struct Product {
        memory::desc a, b, y;
        dnnl::matmul primitive;
    };

    static memory::desc describe(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                                 bool transposed, memory::data_type type) {
        const memory::dims shape{rows, columns};
        const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
        return {shape, type, strides};
    }

    const Product& find(const Backend::Gemm& g) {
        const Key key{g.m,   g.n,           g.k,           g.lda,        g.ldb,
                      g.ldy, g.transpose_a, g.transpose_b, g.accumulate, g.out == DType::f32};
        const auto at = products_.find(key);
        if (at != products_.end()) return at->second;
        using type = memory::data_type;
        const auto a = describe(g.m, g.k, g.lda, g.transpose_a, type::bf16);
        const auto b = describe(g.k, g.n, g.ldb, g.transpose_b, type::bf16);
        const auto y = describe(g.m, g.n, g.ldy, false, g.out == DType::f32 ? type::f32 : type::bf16);
        dnnl::primitive_attr attributes;
        if (g.accumulate) {
            dnnl::post_ops sum;
            sum.append_sum(1.0f);
            attributes.set_post_ops(sum);
        }
        const dnnl::matmul::primitive_desc description({a, b, y}, attributes, engine_);
        return products_.emplace(key, Product{a, b, y, dnnl::matmul(description)}).first->second;
    }

    void execute(const Backend::Gemm& g) {
        const Product& product = find(g);
        const memory a(product.a, engine_, const_cast<void*>(g.a));
        const memory b(product.b, engine_, const_cast<void*>(g.b));
        const memory y(product.y, engine_, g.y);
        product.primitive.execute(stream_, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}});
        stream_.wait();
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    std::map<Key, Product> products_;
    std::vector<std::byte> a_, b_, y_;  ///< padded copies, of kSmallest rows at most
};

}  // namespace

std::unique_ptr<Bf16Gemm> make_bf16_native() {
    // Without these instructions oneDNN has no bf16 product at all (AVX2), or one (AVX-512) that is slower
    // than panels.
    if (!offers(dnnl::get_effective_cpu_isa(), dnnl::cpu_isa::avx512_core_bf16)) return nullptr;
    return std::make_unique<Native>();
}

}  // namespace maestro::backend
