// Where the work of a GPU queues up: CUDA's cudaStream_t, without its headers.
#pragma once

struct CUstream_st;

namespace maestro {
using Stream = CUstream_st*;
}
