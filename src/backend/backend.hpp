// The interface to a device. An operation (ops/) states its cost and provides a CPU loop and a GPU kernel;
// the backend runs one of them, or only counts the cost (meta, named after PyTorch's meta device). Three
// backends implement it: the CPU, CUDA GPUs, and meta.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/clock.hpp"
#include "backend/fused_attention.hpp"
#include "backend/host_reader.hpp"
#include "base/stream.hpp"
#include "base/tensor.hpp"

namespace maestro::backend {

/// Whether the program was built for GPUs.
#ifdef MAESTRO_CUDA
inline constexpr bool kCuda = true;
#else
inline constexpr bool kCuda = false;
#endif

/// The cost of one operation, from which the cost model is built.
struct Work {
    double flops = 0;          ///< floating-point operations; a multiply-add counts as two
    double bytes = 0;          ///< bytes read and written, each tensor once
    double side = 0;           ///< smallest of m, n and k of its GEMMs; 0: an element-wise operation
    DType dtype = DType::f32;  ///< input type of its GEMMs
    std::source_location where = std::source_location::current();  ///< the operation
    /// Operations that have separate rates, where a device has any.
    enum class Kind { other, attention, attention_backward, grouped_gemm } kind = Kind::other;
    double length = 0;  ///< of attention: how many keys the sequences have, as a mean over the queries
};

/// What the host computes within a task while the device waits: in layers with experts, where rows go.
struct HostWork {
    double rows = 0;     ///< whose way to the ranks of their experts is planned: those of all these ranks
    double choices = 0;  ///< that are sorted by expert
};

/// The cost of all operations since the last reset.
struct Counts {
    double flops = 0;
    double bytes = 0;
    double seconds = 0;  ///< by the device's rates; counted by the meta backend only
    std::int64_t launches = 0;
    /// Of `seconds`: until the host last waited for the device, and since then those of the device and those
    /// in which the host launches its operations. Both work at the same time, so that the longer counts.
    double until_wait_s = 0, device_s = 0, host_s = 0;
};

/// The roofline of a device, which turns work into seconds: an operation takes `operation_s` plus the longer
/// of its arithmetic and its memory traffic (Williams et al., CACM 2009). Meanwhile the host launches others:
/// a task takes the longer of what all its operations take and of all launches.
struct DeviceRates {
    /// The rate of GEMMs whose smallest of m, n and k is `side`.
    struct GemmRate {
        double side = 1;
        double f32_flops = 0, bf16_flops = 0;  ///< per second; f64 has no rates
        bool operator==(const GemmRate&) const = default;
    };
    std::vector<GemmRate>
        gemm_rates;  ///< by ascending side; rates between them are interpolated over log(side)
    /// The same of grouped GEMMs. Empty: they are as fast as single ones.
    std::vector<GemmRate> grouped_rates = {};
    /// The rates of attention with this head size over sequences of this length, forward and backward.
    struct AttentionRate {
        double head_dim = 1, length = 1;
        double f32_flops = 0, bf16_flops = 0, backward_f32_flops = 0, backward_bf16_flops = 0;
        bool operator==(const AttentionRate&) const = default;
    };
    /// By ascending head size and length; those of the nearest head size (by its logarithm) are interpolated
    /// over log(length). Empty: as GEMMs with the head size as a side.
    std::vector<AttentionRate> attention_rates = {};
    double element_flops = 0;  ///< FLOP/s of element-wise operations
    double bytes = 0;          ///< memory bandwidth, bytes per second
    double operation_s = 0;    ///< overhead of starting one operation, on the device
    double launch_s = 0;       ///< of the host, to launch it
    /// How many rows the experts of the rank with most get over the mean, where ranks share experts.
    double expert_imbalance = 1;
    double expert_row_s = 0, expert_choice_s = 0;  ///< of the host, for each of HostWork
    double seconds(const Work& work) const;
    double seconds(const HostWork& work) const {
        return work.rows * expert_row_s + work.choices * expert_choice_s;
    }
    bool operator==(const DeviceRates&) const = default;
};

/// The properties of a device on which the memory of operations depends. The meta backend is given those of
/// the device that it stands for.
struct Traits {
    Traits(int threads_ = 1, bool shares_memory_ = true, AttentionSupport attention_ = {})
        : threads(threads_), shares_memory(shares_memory_), attention(attention_) {}
    int threads;                 ///< Backend::threads()
    bool shares_memory;          ///< Backend::shares_memory()
    AttentionSupport attention;  ///< Backend::attention_support()
    bool operator==(const Traits&) const = default;
};

/// One device. Operations run in the order in which they are called; on a GPU they are asynchronous. Not
/// thread-safe.
class Backend {
public:
    virtual ~Backend() = default;
    virtual std::string describe() const = 0;  ///< one line for the log: library versions, threads, ISA
    /// Whether operations run. False on the meta backend, where they are only counted.
    virtual bool computes() const = 0;
    /// Returns the number of threads that may run one operation. Operations with scratch memory per thread
    /// allocate for this many. The meta backend returns that of the device which it stands for, so that
    /// planned memory does not depend on the host that plans it.
    virtual int threads() const = 0;
    /// Allocates uninitialized device memory, aligned to 64 bytes. Throws Error(device_memory). The addresses
    /// of the meta backend must not be accessed.
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* pointer) noexcept = 0;

    /// Whether the device uses the host's memory. Then host data is used in place, see to_device().
    virtual bool shares_memory() const = 0;
    /// Copies host memory to a tensor, in the order of operations. The source may be reused on return.
    virtual void upload(const void* source, const Tensor& target) = 0;
    /// Copies a tensor to host memory and waits for the copy.
    virtual void download(const Tensor& source, void* target) = 0;
    /// Like download() for many tensors that are read once, with the values that the operations called so far
    /// leave in them. A GPU copies ahead of the reader, concurrently with later operations, through 16 MiB of
    /// pinned memory.
    virtual std::unique_ptr<DeviceToHostReader> read_to_host(std::vector<Tensor> tensors) = 0;

    /// y[m, n] (+)= alpha op(a) op(b). a is [m, k] or, transposed, [k, m]; b is [k, n] or, transposed, [n,
    /// k]. Types: all f32, all f64, or a and b bf16 with y bf16 or f32. lda, ldb and ldy are row strides in
    /// elements.
    struct Gemm {
        const void* a;
        const void* b;
        void* y;
        std::int64_t m, n, k, lda, ldb, ldy;
        bool transpose_a, transpose_b, accumulate;
        DType in, out;
        double alpha = 1;
    };
    virtual void gemm(const Gemm& g) = 0;
    static Work work_of(const Gemm& g);
    /// Operations that a device may fuse into a GEMM (cuBLASLt's epilogues). Arrays have y's type.
    struct Epilogue {
        const void* bias = nullptr;   ///< [n]: added to every row of y
        void* activated = nullptr;    ///< [m, n]: receives GELU of y, in its tanh approximation
        void* column_sums = nullptr;  ///< [m], with transpose_a: receives the sums of a's columns
        /// [m, n], rows like y's: with `accumulate` alone, the GEMM adds to this and not to what y holds.
        const void* addend = nullptr;
    };
    /// Runs gemm() with an epilogue in the same pass. Returns false without doing anything where the device
    /// has none.
    virtual bool gemm_with(const Gemm& g, const Epilogue& epilogue) {
        static_cast<void>(g), static_cast<void>(epilogue);
        return false;
    }

    /// A GEMM for each of several groups of rows, each with its own weight matrix [outputs, inputs]. Group e
    /// has the rows [begin[e], begin[e + 1]) of the N rows, possibly none. The weight matrices lie one after
    /// another. All matrices are dense; types as in Gemm.
    struct GroupedGemm {
        enum class Form {
            output,          ///< y[N, outputs] = a[N, inputs] b^T, with the weights b
            input_gradient,  ///< y[N, inputs] = a[N, outputs] b, with the weights b
            weight_gradient  ///< y += a[N, outputs]^T b[N, inputs], of the shape of the weights
        };
        Form form;
        const void* a;
        const void* b;
        void* y;
        std::span<const std::int64_t> begin;  ///< in host memory: ascending from 0 to N
        std::int64_t inputs, outputs;
        DType in, out;
        std::size_t groups() const { return begin.size() - 1; }
        Gemm of_group(std::size_t group) const;  ///< with as many rows as the group has, possibly none
    };
    virtual void grouped_gemm(const GroupedGemm& g) = 0;
    /// The sum of the groups with rows. `side` is the smallest of the inputs, the outputs and the mean number
    /// of rows of these groups.
    static Work work_of(const GroupedGemm& g);

    /// Returns what the library has that computes attention as one fused operation.
    virtual AttentionSupport attention_support() const { return {}; }
    /// Returns the fused operation. Null where the device has none, and on the meta backend.
    virtual FusedAttention* fused_attention() { return nullptr; }
    /// Returns the CUDA stream of the GPU's operations. Null where operations run on the host.
    virtual Stream stream() const { return nullptr; }
    /// Returns an identity of the GPU that ranks can compare: it is the same for every process that uses this
    /// GPU, whatever its device number there. Empty where operations run on the host.
    virtual std::string gpu() const { return {}; }
    /// Returns the clock that tells when operations ran.
    virtual Clock& clock() { return host_clock_; }
    /// How the host waits for the device: until ready(), which polls it without blocking, returns true.
    /// `what` names what it waits for. Unless a function is set, the host blocks in the device's library,
    /// without a deadline.
    using Wait = std::function<void(const std::function<bool()>& ready, const std::string& what)>;
    void set_wait(Wait wait) { wait_ = std::move(wait); }
    /// Counts `work` and, where the backend computes, runs cpu() or launches kernel(stream).
    template <class Cpu, class Kernel>
    void launch(const Work& work, Cpu&& cpu, Kernel&& kernel) {
        count(work);
        if (!computes()) return;
        if constexpr (kCuda) {
            if (const Stream queue = stream()) {
                kernel(queue);
                return queued(1);
            }
        }
        cpu();
    }
    void count(const Work& work) {
        counts_.flops += work.flops;
        counts_.bytes += work.bytes;
        counts_.device_s += work_factor_ * seconds_of(work);
        counts_.host_s += launch_s();
        ++counts_.launches;
        sum_seconds();
    }
    void count(const HostWork& work) {
        if (launch_s() > 0) {  // the device has computed what was launched, and waits for more
            counts_.until_wait_s = counts_.seconds + seconds_of(work);
            counts_.device_s = counts_.host_s = 0;
        } else {
            counts_.device_s += seconds_of(work);
        }
        sum_seconds();
    }
    /// While it exists, seconds are those of the rank whose experts have the most rows, for which the others
    /// wait.
    class FullestExperts {
    public:
        explicit FullestExperts(Backend& backend) : backend_(backend) {
            backend_.work_factor_ = backend_.expert_imbalance();
        }
        ~FullestExperts() { backend_.work_factor_ = 1; }
        FullestExperts(const FullestExperts&) = delete;
        FullestExperts& operator=(const FullestExperts&) = delete;

    private:
        Backend& backend_;
    };
    const Counts& counts() const { return counts_; }
    void reset_counts() { counts_ = {}; }

    /// Called when about so many kernels were queued for the device: by launch() and gemm() for one or a few
    /// kernels, and by operations of many kernels between them. May wait for earlier ones.
    virtual void queued(std::int64_t kernels) { static_cast<void>(kernels); }

protected:
    virtual double seconds_of(const Work&) const { return 0; }
    virtual double seconds_of(const HostWork&) const { return 0; }
    virtual double launch_s() const { return 0; }
    virtual double expert_imbalance() const { return 1; }
    const Wait& wait() const { return wait_; }

private:
    void sum_seconds() {
        counts_.seconds = counts_.until_wait_s + std::max(counts_.device_s, counts_.host_s);
    }
    Counts counts_;
    double work_factor_ = 1;
    Wait wait_;
    Clock host_clock_;
};

/// Returns the CPU with `threads` >= 1 threads for this rank. It uses oneDNN for GEMMs and OpenMP for the
/// rest.
std::unique_ptr<Backend> make_cpu(int threads);
/// How a GPU computes GEMMs.
struct GemmOptions {
    bool tf32 = false;      ///< f32 inputs are rounded to TF32, 10 bits of mantissa, which is faster
    bool autotune = false;  ///< benchmark cuBLASLt's heuristic candidates instead of taking its first
};
/// Returns GPU number `device` of this process, in builds for GPUs. Throws Error(device_memory), or an Error
/// with the message of CUDA.
std::unique_ptr<Backend> make_cuda(int device, GemmOptions gemm = {});
/// Returns a backend that computes nothing and counts the work, the memory and, by the rates, the seconds
/// that a device with these traits would take.
std::unique_ptr<Backend> make_meta(DeviceRates rates = {}, Traits traits = {});

}  // namespace maestro::backend
