# -DMAESTRO_PARTS=gpu-check builds the operations for GPUs and their checks, for scripts/gpu_check.sh. Needs CUDA and a compiler with
# OpenMP, but neither MPI nor HDF5 nor the CPU's libraries. Uses GoogleTest and fmt where they are installed.
set(MAESTRO_CUDA ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
target_compile_options(maestro_flags INTERFACE -Wno-error)  # compilers that were never tried may warn of other things

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt QUIET CONFIG)
find_package(GTest QUIET)
set(checks ${CMAKE_SOURCE_DIR}/tests/gpu_check)
if(NOT fmt_FOUND)
    add_library(fmt::fmt INTERFACE IMPORTED)
    target_include_directories(fmt::fmt INTERFACE ${checks}/stand_ins/fmt)
endif()
add_library(maestro_googletest INTERFACE)
if(GTest_FOUND)
    target_link_libraries(maestro_googletest INTERFACE GTest::gmock GTest::gtest_main)
else()
    target_include_directories(maestro_googletest INTERFACE ${checks}/stand_ins/googletest)
    target_sources(maestro_googletest INTERFACE ${checks}/stand_ins/googletest/gtest_main.cpp)
endif()
foreach(library fmt GTest)
    if(${library}_FOUND)
        message(STATUS "gpu-check: ${library} found")
    else()
        message(STATUS "gpu-check: ${library} not found, a stand-in takes its place")
    endif()
endforeach()

include(cmake/cuda_libraries.cmake)
set(MAESTRO_LEFT_OUT "/(log\\.cpp$|cpu/)")  # need spdlog, oneDNN, OpenBLAS
maestro_library(base fmt::fmt)
target_include_directories(maestro_base PRIVATE ${checks}/stand_ins/xxhash)
maestro_library(backend maestro_base OpenMP::OpenMP_CXX)
maestro_library(kernels maestro_base)
maestro_library(ops maestro_backend maestro_kernels)
include(cmake/cuda.cmake)

file(GLOB sources CONFIGURE_DEPENDS ${checks}/*.cpp)
add_executable(gpu_operations ${sources})
target_include_directories(gpu_operations PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(gpu_operations PRIVATE maestro_ops maestro_flags)

# The tests of operations, on the GPU.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/unit/ops/*_test.cpp)
list(FILTER sources EXCLUDE REGEX "attention_implementation_test")  # needs no GPU
add_executable(gpu_unit_ops ${sources} ${CMAKE_SOURCE_DIR}/tests/support/device_gpu.cpp ${checks}/plain_cpu.cpp)
target_include_directories(gpu_unit_ops PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_compile_definitions(gpu_unit_ops PRIVATE MAESTRO_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
target_link_libraries(gpu_unit_ops PRIVATE maestro_ops maestro_flags maestro_googletest)
