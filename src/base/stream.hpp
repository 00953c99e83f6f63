// A queue of work for a GPU: CUDA's cudaStream_t, without CUDA's headers.
#pragma once

struct CUstream_st;

namespace maestro {
using Stream = CUstream_st*;
}
