# What a build for GPUs adds: CUDA's libraries to `backend`, and the kernels that `ops` calls, kernels/*.cu, compiled by nvcc.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)  # the first version that supports it
        list(APPEND CMAKE_CUDA_ARCHITECTURES 100)
    endif()
endif()
enable_language(CUDA)
# CMake 3.25 does not know that the nvcc of CUDA 13 supports C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

target_compile_definitions(maestro_backend PUBLIC MAESTRO_CUDA)
target_link_libraries(maestro_backend PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS} PRIVATE CUDA::nvtx3)
target_link_options(maestro_backend INTERFACE -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR})  # cuBLASLt is loaded at run time
# Separate objects, which the linker leaves out of those tests that define the same functions.
file(GLOB alone CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cpu/*.cpp)
list(APPEND alone ${CMAKE_SOURCE_DIR}/src/backend/cuda/cublaslt.cpp ${CMAKE_SOURCE_DIR}/src/backend/fused_attention.cpp
    ${CMAKE_SOURCE_DIR}/src/base/log.cpp)
set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(MAESTRO_CUDNN)
    # The sources that include the front end are compiled as one, and without its JSON: its headers take nearly all of the time.
    add_library(maestro_cudnn_front OBJECT src/backend/cuda/cudnn_graph.cpp src/backend/cuda/cudnn_execution.cpp)
    set_target_properties(maestro_cudnn_front PROPERTIES UNITY_BUILD ON)
    target_compile_definitions(maestro_cudnn_front PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_compile_options(maestro_cudnn_front PRIVATE $<$<CONFIG:Release>:-O1>)
    target_include_directories(maestro_cudnn_front PRIVATE $<TARGET_PROPERTY:maestro_backend,INCLUDE_DIRECTORIES>)
    target_link_libraries(maestro_cudnn_front PRIVATE maestro_base maestro_cudnn maestro_flags)
    target_link_libraries(maestro_backend PRIVATE maestro_cudnn)
    target_sources(maestro_backend PRIVATE $<TARGET_OBJECTS:maestro_cudnn_front>)
endif()

file(GLOB MAESTRO_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu)
# Second forms, which the simulated runtime does not execute (kernels/forms.hpp).
file(GLOB MAESTRO_NVCC_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/nvcc/*.cu)
add_library(maestro_kernels_nvcc STATIC ${MAESTRO_KERNELS} ${MAESTRO_NVCC_KERNELS})
target_compile_definitions(maestro_kernels_nvcc PRIVATE MAESTRO_NVCC_FORMS)
target_link_libraries(maestro_kernels_nvcc PUBLIC CUDA::cudart_static PRIVATE maestro_kernels)
target_compile_options(maestro_kernels_nvcc PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall -Xptxas=-v)
# What ptxas reports of a kernel's registers and memory is written beside its object: scripts/cuda/kernel_table.py reads it.
set_property(TARGET maestro_kernels_nvcc PROPERTY CUDA_COMPILER_LAUNCHER
    ${CMAKE_CURRENT_LIST_DIR}/keep_ptxas.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
target_link_libraries(maestro_ops PUBLIC maestro_kernels_nvcc)

if(NOT TARGET maestro_collective)  # a build of parts
    return()
endif()
# NCCL is used for collectives and edges where it is found beside CUDA or on the system's paths. Without it GPUs exchange through
# host memory.
set(bundled ${CMAKE_SOURCE_DIR}/build/cudnn/python/nvidia/nccl)  # by scripts/gpu_check.sh --bundle-libraries
find_path(MAESTRO_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${bundled}/include)
find_library(MAESTRO_NCCL NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${bundled}/lib)
if(MAESTRO_NCCL_INCLUDE AND MAESTRO_NCCL)
    target_include_directories(maestro_transport SYSTEM PUBLIC ${MAESTRO_NCCL_INCLUDE})
    target_link_libraries(maestro_transport PUBLIC ${MAESTRO_NCCL})
    set(nccl_sources nccl/*.cpp)
else()
    message(STATUS "NCCL was not found (nccl.h, libnccl): GPUs will exchange through the host's memory. "
        "MAESTRO_NCCL_INCLUDE and MAESTRO_NCCL say where it is.")
    set(nccl_sources no_nccl.cpp)
endif()
foreach(folder transport collective)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/${nccl_sources})
    target_sources(maestro_${folder} PRIVATE ${sources})
endforeach()
