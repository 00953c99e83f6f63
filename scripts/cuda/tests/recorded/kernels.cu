// What ptxas.txt, sass.txt and elf.txt were recorded from, by the nvcc of CUDA 13.0:
// nvcc -std=c++20 -O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xptxas=-v -c
// kernels.cu and cuobjdump -sass, -elf, of which the lines that the parsers read and some others were kept.
#include <mma.h>
namespace {
template <class T>
__global__ void __launch_bounds__(128) packed(const T* from, T* to) {
    __shared__ T room[128];
    room[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = room[127 - threadIdx.x];
}
__global__ void indexed(const int* places, float* to) {
    float values[8];
    for (int i = 0; i < 8; ++i) values[places[i]] = to[i];
    to[threadIdx.x] = values[places[threadIdx.x]];
}
__global__ void __launch_bounds__(1024, 2) spilling(const float4* from, float4* to) {
    float4 values[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) values[i] = from[threadIdx.x + 1024 * i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 9; ++i) to[threadIdx.x + 1024 * (8 - i)] = values[i];
}
__global__ void __launch_bounds__(32) multiplied(const __half* a, const __half* b, float* c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> x;
    fragment<matrix_b, 16, 16, 16, __half, col_major> y;
    fragment<accumulator, 16, 16, 16, float> z;
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, b, 16);
    fill_fragment(z, 0.0f);
    mma_sync(z, x, y, z);
    store_matrix_sync(c, z, 16, mem_row_major);
}
}  // namespace
void start(void* a, void* b, void* c) {
    packed<<<1, 128>>>((const uint4*)a, (uint4*)b);
    packed<<<1, 128>>>((const unsigned char*)a, (unsigned char*)b);
    indexed<<<1, 8>>>((const int*)a, (float*)b);
    spilling<<<1, 1024>>>((const float4*)a, (float4*)b);
    multiplied<<<1, 32>>>((const __half*)a, (const __half*)b, (float*)c);
}
