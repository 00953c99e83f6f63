# Finds cuDNN 9 and the headers of its front end (cudnn_frontend.h) in MAESTRO_CUDNN_ROOT, in CUDA's folders, in the system's, or in
# the wheels of a Python environment (nvidia-cudnn-cu13 or -cu12, nvidia-cudnn-frontend), that of MAESTRO_CUDA_WHEELS too. Sets
# MAESTRO_CUDNN and makes the target maestro_cudnn. The program loads the library when it opens a GPU, and starts without it.
set(MAESTRO_CUDNN_ROOT "" CACHE PATH "A folder with cuDNN or its front end, or a Python environment with their wheels")
find_program(MAESTRO_PYTHON NAMES python3)
set(packages "")
file(GLOB wheels LIST_DIRECTORIES ON ${MAESTRO_CUDNN_ROOT}/lib/python3*/site-packages ${MAESTRO_CUDA_WHEELS}/lib/python3*/site-packages
    ${CMAKE_SOURCE_DIR}/build/cudnn/python)
list(APPEND wheels ${MAESTRO_CUDA_WHEELS})
if(MAESTRO_PYTHON)
    execute_process(COMMAND ${MAESTRO_PYTHON} -c "import site, sys; print(';'.join([p for p in sys.path if 'packages' in p]), end='')"
        OUTPUT_VARIABLE packages ERROR_QUIET)
endif()
list(PREPEND packages ${wheels})
set(headers "")
set(libraries "")
foreach(folder ${packages})
    list(APPEND headers ${folder}/include ${folder}/nvidia/cudnn/include)
    list(APPEND libraries ${folder}/nvidia/cudnn/lib)
endforeach()

find_path(MAESTRO_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${MAESTRO_CUDNN_ROOT}/include ${headers})
find_path(MAESTRO_CUDNN_INCLUDE cudnn_version.h HINTS ${MAESTRO_CUDNN_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS} ${headers})
find_file(MAESTRO_CUDNN_LIBRARY libcudnn.so.9
    HINTS ${MAESTRO_CUDNN_ROOT}/lib ${MAESTRO_CUDNN_ROOT}/lib64 ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib ${libraries}
    PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib /usr/lib64 /usr/local/cuda/lib /usr/local/cuda/lib64)

set(version 0)
if(MAESTRO_CUDNN_INCLUDE)
    file(STRINGS ${MAESTRO_CUDNN_INCLUDE}/cudnn_version.h lines REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCHLEVEL ([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
endif()
set(MAESTRO_CUDNN OFF)
if(NOT MAESTRO_CUDNN_FRONTEND_INCLUDE OR NOT MAESTRO_CUDNN_LIBRARY)
    message(STATUS "cuDNN: no cudnn_frontend.h or no libcudnn.so.9 (MAESTRO_CUDNN_ROOT): attention by Maestro's kernels alone")
elseif(version VERSION_LESS 9.18)
    message(STATUS "cuDNN: ${version} in ${MAESTRO_CUDNN_INCLUDE} is older than 9.18: attention by Maestro's kernels alone")
else()
    set(MAESTRO_CUDNN ON)
    message(STATUS "cuDNN: ${version}, front end in ${MAESTRO_CUDNN_FRONTEND_INCLUDE}")
    add_library(maestro_cudnn INTERFACE)
    target_include_directories(maestro_cudnn SYSTEM INTERFACE ${MAESTRO_CUDNN_FRONTEND_INCLUDE} ${MAESTRO_CUDNN_INCLUDE}
        ${CUDAToolkit_INCLUDE_DIRS})
    # The paths of the library, and of the runtime that the front end loads. Where they no longer exist when the program runs,
    # it looks for libraries of these names.
    get_filename_component(folder ${MAESTRO_CUDNN_LIBRARY} DIRECTORY)
    set(runtime ${CUDAToolkit_LIBRARY_DIR}/libcudart.so.${CUDAToolkit_VERSION_MAJOR})
    target_compile_definitions(maestro_cudnn INTERFACE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
        MAESTRO_CUDNN_LIBRARY="${MAESTRO_CUDNN_LIBRARY}" MAESTRO_CUDART_LIBRARY="${runtime}")
    target_link_options(maestro_cudnn INTERFACE -Wl,-rpath,${folder} -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR})
    target_link_libraries(maestro_cudnn INTERFACE ${CMAKE_DL_LIBS})
endif()
