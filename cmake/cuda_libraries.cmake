# The CUDA toolkit and cuDNN. They must be found before the libraries of src/ are made, whose lists of sources depend on them.
include(cmake/cuda_wheels.cmake)
include(cmake/cuda_toolkit.cmake)
maestro_find_cuda(12.4 REQUIRED)
include(cmake/cudnn.cmake)
