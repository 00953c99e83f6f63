// Takes the place of CUDA's cuda_runtime.h where the host's compiler compiles a kernel. Types and the calls'
// declarations are the toolkit's. Shared memory is dynamic only, declared as shared_memory.hpp says.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#define __launch_bounds__(...)

#include "hosted/arithmetic.hpp"
#include "hosted/launch.hpp"
#include "hosted/threads.hpp"
