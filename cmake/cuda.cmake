# What a build for GPUs adds: CUDA's libraries to `backend`, and kernels/*.cu by nvcc behind the headers that `ops` uses.
find_package(CUDAToolkit 12.4 REQUIRED)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
endif()
enable_language(CUDA)
# CMake 3.25 does not know that the nvcc of CUDA 13 speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

target_compile_definitions(maestro_backend PUBLIC MAESTRO_CUDA)
target_link_libraries(maestro_backend PUBLIC CUDA::cudart_static CUDA::cublasLt)

file(GLOB MAESTRO_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu)
add_library(maestro_kernels_nvcc STATIC ${MAESTRO_KERNELS})
target_link_libraries(maestro_kernels_nvcc PUBLIC CUDA::cudart_static PRIVATE maestro_kernels)
target_compile_options(maestro_kernels_nvcc PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall -Xptxas=-v)
# What ptxas says of a kernel's registers and memory lies beside its object: scripts/cuda/kernel_table.py reads it.
set_property(TARGET maestro_kernels_nvcc PROPERTY CUDA_COMPILER_LAUNCHER
    ${CMAKE_CURRENT_LIST_DIR}/keep_ptxas.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
target_link_libraries(maestro_ops PUBLIC maestro_kernels_nvcc)
