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

/// Returns whether `isa` includes `wanted`. oneDNN's instruction sets are bit masks of their parts.
bool includes(dnnl::cpu_isa isa, dnnl::cpu_isa wanted) {
    return (static_cast<int>(isa) & static_cast<int>(wanted)) == static_cast<int>(wanted);
}

/// Multiplies a result by `factor`.
template <class PostOps>
void append_factor(PostOps& operations, float factor) {
    constexpr auto linear = dnnl::algorithm::eltwise_linear;
    if constexpr (requires { operations.append_eltwise(linear, factor, 0.0f); })
        operations.append_eltwise(linear, factor, 0.0f);
    else  // oneDNN 2
        operations.append_eltwise(1.0f, linear, factor, 0.0f);
}

/// oneDNN compiles a kernel for every shape, which takes longer than a GEMM of our sizes, and micro-batches
/// have ever new numbers of rows. So the one variable length (m, or k of a weight gradient) is split into
/// powers of two from kLargest down to kSmallest, and the rest is padded to the next power of two: a few
/// kernels serve all micro-batches.
///
/// GEMMs of groups are small, so that the costs of each part count: a matrix is packed again for each part of
/// m, and the result is read and written again for each part of k. Their parts are multiples of kSmallest,
/// and k is padded as a whole.
class Native final : public Bf16Gemm {
public:
    explicit Native(Bf16Use use) : groups_(use == Bf16Use::groups) {}
    const char* describe() const override {
        return includes(dnnl::get_effective_cpu_isa(), dnnl::cpu_isa::avx512_core_amx) ? "matrix units"
                                                                                       : "dot products";
    }
    void run(const Backend::Gemm& g) override {
        try {
            split(g);
        } catch (const dnnl::error& error) {
            throw Error(ExitCode::broken_invariant, fmt::format("oneDNN: {}", error.what()));
        }
    }

private:
    static constexpr std::int64_t kLargest = 1024, kSmallest = 64;

    void split(const Backend::Gemm& g) {
        const bool split_k = g.transpose_a;  // a weight gradient, which sums over the rows
        if (split_k && (g.transpose_b || g.out == DType::bf16)) {
            execute(g);  // not used by any operation; splitting k would round the partial sums
            return;
        }
        const std::int64_t length = split_k ? g.k : g.m;
        for (std::int64_t at = 0; at < length;) {
            const std::int64_t remaining = length - at;
            const std::int64_t block = block_of(remaining, split_k);
            Backend::Gemm part = g;
            const auto* a = static_cast<const bf16*>(g.a);
            part.a = a + at * g.lda;
            if (split_k) {
                part.k = std::min(block, remaining);
                part.b = static_cast<const bf16*>(g.b) + at * g.ldb;
                part.accumulate = g.accumulate || at > 0;
            } else {
                part.m = std::min(block, remaining);
                part.y = static_cast<std::byte*>(g.y) + static_cast<std::size_t>(at * g.ldy) * size_of(g.out);
            }
            if (block <= remaining)
                execute(part);
            else if (split_k)
                execute_padded_k(part);
            else
                execute_padded_m(part);
            at += block;
        }
    }

    /// The length of the next part. It is padded where it is larger than what remains.
    std::int64_t block_of(std::int64_t remaining, bool split_k) const {
        if (groups_) {
            const std::int64_t units = (remaining + (split_k ? kSmallest - 1 : 0)) / kSmallest;
            return std::clamp(units * kSmallest, kSmallest, kLargest);
        }
        std::int64_t block = kLargest;
        while (block > remaining && block > kSmallest) block /= 2;
        return block;
    }
    static std::int64_t padded(std::int64_t length) {
        if (length > kSmallest) return (length + kSmallest - 1) / kSmallest * kSmallest;
        std::int64_t power = 8;
        while (power < length) power *= 2;
        return power;
    }
    /// Copies `rows` rows of `columns` elements to `to`, without gaps, and adds zeros up to `padded_rows`
    /// rows.
    static void* copy_padded(std::vector<std::byte>& to, const void* from, std::int64_t rows,
                             std::int64_t padded_rows, std::int64_t columns, std::int64_t stride,
                             std::size_t element) {
        const std::size_t line = static_cast<std::size_t>(columns) * element;
        to.resize(std::max(to.size(), static_cast<std::size_t>(padded_rows) * line));
        for (std::int64_t r = 0; r < rows; ++r)
            std::memcpy(to.data() + static_cast<std::size_t>(r) * line,
                        static_cast<const std::byte*>(from) + static_cast<std::size_t>(r * stride) * element,
                        line);
        std::memset(to.data() + static_cast<std::size_t>(rows) * line, 0,
                    static_cast<std::size_t>(padded_rows - rows) * line);
        return to.data();
    }
    /// Zeros add nothing to a sum, so a padded k gives the same result.
    void execute_padded_k(Backend::Gemm g) {
        const std::int64_t k = padded(g.k);
        g.a = copy_padded(a_, g.a, g.k, k, g.m, g.lda, sizeof(bf16));
        g.b = copy_padded(b_, g.b, g.k, k, g.n, g.ldb, sizeof(bf16));
        g.lda = g.m;
        g.ldb = g.n;
        g.k = k;
        execute(g);
    }
    /// A padded m has more rows than y, so the result is computed in a copy.
    void execute_padded_m(Backend::Gemm g) {
        const std::int64_t rows = g.m, m = padded(rows), stride = g.ldy;
        auto* const result = static_cast<std::byte*>(g.y);
        g.a = copy_padded(a_, g.a, rows, m, g.k, g.lda, sizeof(bf16));
        g.y = copy_padded(y_, result, g.accumulate ? rows : 0, m, g.n, stride, size_of(g.out));
        g.lda = g.k;
        g.ldy = g.n;
        g.m = m;
        execute(g);
        const std::size_t line = static_cast<std::size_t>(g.n) * size_of(g.out);
        for (std::int64_t r = 0; r < rows; ++r)
            std::memcpy(result + static_cast<std::size_t>(r * stride) * size_of(g.out),
                        y_.data() + static_cast<std::size_t>(r) * line, line);
    }

    using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                           bool, bool, bool, bool, double>;
    struct Matmul {
        memory::desc a, b, y, scratch;
        dnnl::matmul primitive;
    };

    static memory::desc describe(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                                 bool transposed, memory::data_type type) {
        const memory::dims shape{rows, columns};
        const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
        return {shape, type, strides};
    }

    const Matmul& find(const Backend::Gemm& g) {
        const Key key{g.m,    g.n,           g.k,           g.lda,        g.ldb,
                      g.ldy,  g.transpose_a, g.transpose_b, g.accumulate, g.out == DType::f32,
                      g.alpha};
        const auto found = matmuls_.find(key);
        if (found != matmuls_.end()) return found->second;
        using type = memory::data_type;
        const auto a = describe(g.m, g.k, g.lda, g.transpose_a, type::bf16);
        const auto b = describe(g.k, g.n, g.ldb, g.transpose_b, type::bf16);
        const auto y = describe(g.m, g.n, g.ldy, false, g.out == DType::f32 ? type::f32 : type::bf16);
        dnnl::primitive_attr attributes;
        dnnl::post_ops operations;
        if (g.alpha != 1) append_factor(operations, static_cast<float>(g.alpha));
        if (g.accumulate) operations.append_sum(1.0f);
        attributes.set_post_ops(operations);
        // oneDNN's own scratch memory belongs to the thread that made a primitive. This object may be used by
        // another one later.
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        const dnnl::matmul::primitive_desc description({a, b, y}, attributes, engine_);
        return matmuls_
            .emplace(key, Matmul{a, b, y, description.scratchpad_desc(), dnnl::matmul(description)})
            .first->second;
    }

    void execute(const Backend::Gemm& g) {
        const Matmul& matmul = find(g);
        const memory a(matmul.a, engine_, const_cast<void*>(g.a));
        const memory b(matmul.b, engine_, const_cast<void*>(g.b));
        const memory y(matmul.y, engine_, g.y);
        scratch_.resize(std::max(scratch_.size(), matmul.scratch.get_size()));
        const memory scratch(matmul.scratch, engine_, scratch_.data());
        matmul.primitive.execute(
            stream_,
            {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}, {DNNL_ARG_SCRATCHPAD, scratch}});
        stream_.wait();
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    std::map<Key, Matmul> matmuls_;
    bool groups_;
    std::vector<std::byte> a_, b_, y_;  ///< padded copies, of kSmallest rows at most, for groups of kLargest
    std::vector<std::byte> scratch_;    ///< of all primitives
};

}  // namespace

std::unique_ptr<Bf16Gemm> make_bf16_native(Bf16Use use) {
    // Without these instructions oneDNN has no bf16 GEMM (AVX2), or one that is slower than panels (AVX-512).
    if (!includes(dnnl::get_effective_cpu_isa(), dnnl::cpu_isa::avx512_core_bf16)) return nullptr;
    return std::make_unique<Native>(use);
}

}  // namespace maestro::backend
