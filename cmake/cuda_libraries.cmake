# What a build for GPUs takes of CUDA, found before the libraries of src/ are made: these know by it which files they have.
include(cmake/cuda_wheels.cmake)
include(cmake/cuda_toolkit.cmake)
maestro_find_cuda(12.4 REQUIRED)
include(cmake/cudnn.cmake)
