// Replaces CUDA's cuda_runtime.h where the host compiler compiles a kernel for the simulated runtime. Types
// and declarations of the runtime's functions come from the toolkit. Only dynamic shared memory is supported,
// see shared_memory.hpp.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#define __launch_bounds__(...)

#include "hosted/arithmetic.hpp"
#include "hosted/launch.hpp"
#include "hosted/threads.hpp"
