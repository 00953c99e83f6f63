// The seam to a device. An operation (ops/) states what it needs and costs and hands over its CPU loop; what
// runs it, or only counts it, is decided here. Outside this folder nothing but what moves messages
// (collective, channel) asks which device there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "backend/clock.hpp"
#include "backend/fused_attention.hpp"
#include "backend/host_reader.hpp"
#include "base/stream.hpp"
#include "base/tensor.hpp"

namespace maestro::backend {

/// Was this built for GPUs?
#ifdef MAESTRO_CUDA
inline constexpr bool kCuda = true;
#else
inline constexpr bool kCuda = false;
#endif

/// What one operation costs: the counts that the cost model is made of.
struct Work {
    double flops = 0;          ///< floating-point operations, a multiply-add counts two
    double bytes = 0;          ///< bytes read and written, each tensor once
    double side = 0;           ///< smallest side of the products that it consists of; 0: element-wise
    DType dtype = DType::f32;  ///< of the products
    std::source_location where = std::source_location::current();  ///< the operation that says so
};

struct Counts {
    double flops = 0;
    double bytes = 0;
    double seconds = 0;  ///< by the device's rates; only meta counts them
    std::int64_t launches = 0;
};

/// What a device can do, to turn work into seconds: an operation takes `operation_s` and the longer of its
/// arithmetic and its memory traffic.
struct DeviceRates {
    struct GemmRate {
        double side = 1;                       ///< smallest side of the product
        double f32_flops = 0, bf16_flops = 0;  ///< per second
    };
    std::vector<GemmRate>
        gemm_rates;            ///< ascending sides; between them rates are interpolated over log(side)
    double element_flops = 0;  ///< per second, of element-wise operations
    double bytes = 0;          ///< per second, of memory
    double operation_s = 0;
    double seconds(const Work& work) const;
};

/// What decides how much memory operations take: of the device that meta stands for.
struct Traits {
    Traits(int threads_ = 1, bool shares_memory_ = true, int attention_architecture_ = 0)
        : threads(threads_), shares_memory(shares_memory_), attention_architecture(attention_architecture_) {}
    int threads;                 ///< that may run one operation
    bool shares_memory;          ///< with the host
    int attention_architecture;  ///< Backend::attention_architecture()
};

class Backend {
public:
    virtual ~Backend() = default;
    virtual std::string describe() const = 0;  ///< one line for the log: library versions, threads, isa
    /// True where kernels run; false where they are only counted (meta).
    virtual bool computes() const = 0;
    /// That may run one operation. One that keeps scratch per thread takes so many, here and in what is only
    /// counted, so that memory on paper is that of the device it stands for and not of the host that counts.
    virtual int threads() const = 0;
    /// Device memory, 64-byte aligned, uninitialized. Throws Error(device_memory). meta returns addresses
    /// that must not be touched.
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* pointer) noexcept = 0;

    /// Does the device use the host's memory? Then what the host gives is used where it lies, see
    /// to_device().
    virtual bool shares_memory() const = 0;
    /// Host memory to a tensor, in the order of operations; the source is free on return.
    virtual void upload(const void* source, const Tensor& target) = 0;
    /// A tensor to host memory; waits until it is there.
    virtual void download(const Tensor& source, void* target) = 0;
    /// The same for many that are read once, as operations given so far leave them: a GPU copies ahead of the
    /// reader, beside operations given later, by 16 MiB of pinned memory.
    virtual std::unique_ptr<DeviceToHostReader> read_to_host(std::vector<Tensor> tensors) = 0;

    /// y[m, n] (+)= op(a) * op(b): a is [m, k] or, transposed, [k, m]; b is [k, n] or [n, k]. dtypes: all
    /// f32, all f64, or a, b bf16 with y bf16 or f32. lda, ldb, ldy are row strides in elements.
    struct Gemm {
        const void* a;
        const void* b;
        void* y;
        std::int64_t m, n, k, lda, ldb, ldy;
        bool transpose_a, transpose_b, accumulate;
        DType in, out;
    };
    virtual void gemm(const Gemm& g) = 0;
    static Work work_of(const Gemm& g);
    /// What may be done with a product on its way to memory.
    struct Epilogue {
        const void* bias = nullptr;   ///< [n] of y's type: added to every row
        void* activated = nullptr;    ///< [m, n] of y's type: GELU of y, beside it
        void* column_sums = nullptr;  ///< [m] of y's type, with transpose_a: sums of a's columns
    };
    /// gemm() with an epilogue in the same pass. False, and nothing is done, where the device has none.
    virtual bool gemm_with(const Gemm& g, const Epilogue& epilogue) {
        static_cast<void>(g), static_cast<void>(epilogue);
        return false;
    }

    /// Of the GPU, as 90, if a library of the device has attention as one operation; else 0.
    virtual int attention_architecture() const { return 0; }
    /// That operation; null where there is none or nothing is computed.
    virtual FusedAttention* fused_attention() { return nullptr; }
    /// Where operations of a GPU queue up; null where they run on the host.
    virtual Stream stream() const { return nullptr; }
    /// The GPU, for ranks to compare: equal words mean the same one, whatever its number in a process. Empty
    /// where operations run on the host.
    virtual std::string gpu() const { return {}; }
    /// Tells when operations ran.
    virtual Clock& clock() { return host_clock_; }
    /// How the host waits for a device: until ready(), which asks it and returns at once. `what` is waited
    /// for. Unless set, the host sleeps in the device's library, without a deadline.
    using Wait = std::function<void(const std::function<bool()>& ready, const std::string& what)>;
    void set_wait(Wait wait) { wait_ = std::move(wait); }
    /// Counts `work` and runs cpu(), or queues up what kernel(stream) starts, or neither.
    template <class Cpu, class Kernel>
    void launch(const Work& work, Cpu&& cpu, Kernel&& kernel) {
        count(work);
        if (!computes()) return;
        if constexpr (kCuda) {
            if (const Stream queue = stream()) return kernel(queue);
        }
        cpu();
    }
    void count(const Work& work) {
        counts_.flops += work.flops;
        counts_.bytes += work.bytes;
        counts_.seconds += seconds_of(work);
        ++counts_.launches;
    }
    const Counts& counts() const { return counts_; }
    void reset_counts() { counts_ = {}; }

protected:
    virtual double seconds_of(const Work&) const { return 0; }
    const Wait& wait() const { return wait_; }

private:
    Counts counts_;
    Wait wait_;
    Clock host_clock_;
};

/// The CPU: oneDNN for products, OpenMP for the rest. `threads` >= 1 for this rank.
std::unique_ptr<Backend> make_cpu(int threads);
/// How a GPU multiplies.
struct GemmOptions {
    bool tf32 = false;      ///< f32 factors lose 13 of 23 bits, for speed
    bool autotune = false;  ///< of the library's proposals the fastest, by trial, and not its first
};
/// GPU number `device` of this process, in builds for GPUs. Error(device_memory), or what CUDA says.
std::unique_ptr<Backend> make_cuda(int device, GemmOptions gemm = {});
/// Counts work, memory and, by the rates, seconds of such a device; computes nothing.
std::unique_ptr<Backend> make_meta(DeviceRates rates = {}, Traits traits = {});

}  // namespace maestro::backend
