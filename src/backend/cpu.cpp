#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/backend.hpp"
#include "backend/cpu_gemm.hpp"

namespace maestro::backend {

namespace {

#if defined(__x86_64__)
constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;  // of the MXCSR register
#endif

using dnnl::memory;

/// bf16 products. oneDNN compiles one kernel a shape, which costs more than a product of this size, so the
/// one variable length (rows, or the summed length of a weight gradient) is cut into powers of two from
/// kLargest to kSmallest; what is left over is padded to the next power of two.
class Bf16Products {
public:
    void run(const Backend::Gemm& g) {
        const bool cut_k = g.transpose_a;  // a weight gradient: the rows are summed over
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
                part.b = static_cast<const bf16*>(g.b) + at * (g.transpose_b ? 1 : g.ldb);
                part.accumulate = g.accumulate || at > 0;
            } else {
                part.m = std::min(piece, left);
                part.y = static_cast<std::byte*>(g.y) + static_cast<std::size_t>(at * g.ldy) * size_of(g.out);
            }
            if (piece <= left || (cut_k && g.transpose_b))  // no operation asks for the latter
                execute(part);
            else if (cut_k)
                execute_padded_sum(part);
            else
                execute_padded_rows(part);
            at += piece;
        }
    }

private:
    static constexpr std::int64_t kLargest = 1024, kSmallest = 64;

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

/// What multiplies bf16, as far as oneDNN uses it.
const char* bf16_hardware() {
    switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::avx512_core_amx:
            return "matrix units";
        case dnnl::cpu_isa::avx512_core_bf16:
            return "dot products";
        default:
            return "emulation";
    }
}

/// Numbers below 1e-38 become zero on all threads of the rank: they take a hundred times longer to compute
/// with, and tiny softmax weights are many.
void flush_denormals() {
#if defined(__x86_64__)
#pragma omp parallel
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

class Cpu final : public Backend {
public:
    explicit Cpu(int threads) : threads_(threads) {
        MAESTRO_CHECK(threads >= 1, "{} threads", threads);
        omp_set_num_threads(threads);
        flush_denormals();
        openblas_set_num_threads(1);
    }
    std::string_view name() const override { return "cpu"; }
    std::string describe() const override {
        const dnnl_version_t* v = dnnl_version();
        return fmt::format("cpu: oneDNN {}.{}.{} (built with {}.{}.{}), {}, {} thread{} a rank, bf16 by {}",
                           v->major, v->minor, v->patch, DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
                           DNNL_VERSION_PATCH, openblas_get_config(), threads_, threads_ == 1 ? "" : "s",
                           bf16_hardware());
    }
    bool computes() const override { return true; }
    void* allocate(std::size_t bytes) override {
        const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
        void* pointer = rounded < bytes ? nullptr : std::aligned_alloc(64, rounded);
        if (!pointer)
            throw Error(ExitCode::device_memory,
                        fmt::format("cannot allocate {} MiB of memory", bytes >> 20));
        return pointer;
    }
    void release(void* pointer) noexcept override { std::free(pointer); }
    void gemm(const Gemm& g) override {
        const double elements =
            static_cast<double>(g.m * g.k + g.k * g.n) * static_cast<double>(size_of(g.in)) +
            static_cast<double>(g.m * g.n) * static_cast<double>(size_of(g.out));
        count(
            {2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k), elements});
        if (g.in == DType::bf16) {
            try {
                bf16_products_.run(g);
            } catch (const dnnl::error& error) {
                throw Error(ExitCode::broken_invariant, fmt::format("oneDNN: {}", error.what()));
            }
        } else {
            cpu_gemm(g);
        }
    }

private:
    int threads_;
    Bf16Products bf16_products_;
};

}  // namespace

void cpu_gemm(const Backend::Gemm& g, double alpha) {
    MAESTRO_CHECK(g.in == g.out, "product of {} into {}", name_of(g.in), name_of(g.out));
    if (g.in == DType::f32) {
        const auto status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k,
                                       static_cast<float>(alpha), static_cast<const float*>(g.a), g.lda,
                                       static_cast<const float*>(g.b), g.ldb, g.accumulate ? 1.0f : 0.0f,
                                       static_cast<float*>(g.y), g.ldy);
        MAESTRO_CHECK(status == dnnl_success, "dnnl_sgemm returned {}", static_cast<int>(status));
    } else {
        MAESTRO_CHECK(g.in == DType::f64, "no product of {}", name_of(g.in));
        cblas_dgemm(CblasRowMajor, g.transpose_a ? CblasTrans : CblasNoTrans,
                    g.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(g.m), static_cast<int>(g.n),
                    static_cast<int>(g.k), alpha, static_cast<const double*>(g.a), static_cast<int>(g.lda),
                    static_cast<const double*>(g.b), static_cast<int>(g.ldb), g.accumulate ? 1.0 : 0.0,
                    static_cast<double*>(g.y), static_cast<int>(g.ldy));
    }
}

std::unique_ptr<Backend> make_cpu(int threads) {
    return std::make_unique<Cpu>(threads);
}

}  // namespace maestro::backend
