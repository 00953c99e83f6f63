// CUDA's mathematical functions that the C library lacks, for scalars. CUDA's fast approximations are exact
// here, so the results of a kernel differ from those on a GPU in the last bits.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <bit>
#include <cmath>
#include <cstdlib>

// The C library declares these names but does not define them.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf

using std::abs;

inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline float __frsqrt_rn(float x) {
    return rsqrtf(x);
}
inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float __fdiv_rn(float x, float y) {
    return x / y;
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline float __fadd_rn(float x, float y) {
    return x + y;
}
inline float __fsub_rn(float x, float y) {
    return x - y;
}
inline float __fmul_rn(float x, float y) {
    return x * y;
}
inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
inline double __dadd_rn(double x, double y) {
    return x + y;
}
inline double __dmul_rn(double x, double y) {
    return x * y;
}
inline float __saturatef(float x) {
    return fminf(fmaxf(x, 0.0f), 1.0f);
}

inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
    return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return std::bit_cast<double>(x);
}
inline int __float2int_rn(float x) {
    return static_cast<int>(lrintf(x));
}
inline int __float2int_rz(float x) {
    return static_cast<int>(x);
}
inline int __double2int_rn(double x) {
    return static_cast<int>(lrint(x));
}
inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}

inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}

template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}

#define MAESTRO_HOSTED_MIN_MAX(T) \
    inline T min(T a, T b) {      \
        return b < a ? b : a;     \
    }                             \
    inline T max(T a, T b) {      \
        return a < b ? b : a;     \
    }
MAESTRO_HOSTED_MIN_MAX(int)
MAESTRO_HOSTED_MIN_MAX(unsigned)
MAESTRO_HOSTED_MIN_MAX(long)
MAESTRO_HOSTED_MIN_MAX(unsigned long)
MAESTRO_HOSTED_MIN_MAX(long long)
MAESTRO_HOSTED_MIN_MAX(unsigned long long)
#undef MAESTRO_HOSTED_MIN_MAX
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}

// Simulated threads run one at a time, so these need no atomic instructions. There are no atomics on floats,
// because sums would depend on the order of threads.
template <class T>
requires std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> T
atomicAdd(T* address, std::type_identity_t<T> value) {
    const T before = *address;
    *address = static_cast<T>(before + value);
    return before;
}
inline int atomicMax(int* address, int value) {
    const int before = *address;
    *address = max(before, value);
    return before;
}
inline int atomicMin(int* address, int value) {
    const int before = *address;
    *address = min(before, value);
    return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
