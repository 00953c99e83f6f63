# maestro_find_cuda(ARGUMENT...): find_package(CUDAToolkit ARGUMENT...). CMake 3.25, which Debian 12 has, fails where a toolkit
# lacks the library nvToolsExt, as CUDA 13 does, unless the project declares that an older CMake is enough.
macro(maestro_find_cuda)
    set(maestro_asks_of_cmake ${CMAKE_MINIMUM_REQUIRED_VERSION})
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    find_package(CUDAToolkit ${ARGN})
    set(CMAKE_MINIMUM_REQUIRED_VERSION ${maestro_asks_of_cmake})
endmacro()
