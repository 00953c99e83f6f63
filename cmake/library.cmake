# Flags of our own code, and maestro_library(folder links...): every .cpp of src/FOLDER as maestro_FOLDER.
add_library(maestro_flags INTERFACE)
target_compile_options(maestro_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)  # g++ 12 sees an overflow inside fmt that is none
if(MAESTRO_SANITIZE)
    target_compile_options(maestro_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
    target_link_options(maestro_flags INTERFACE -fsanitize=address,undefined)
endif()

# A folder's headers are reached through a directory of its own, which holds nothing but a link to the folder, so that a
# target sees the headers of what it links (and of what those link) and no others. Sets `door`.
function(maestro_door folder place)
    set(door ${CMAKE_BINARY_DIR}/include/${folder})
    file(MAKE_DIRECTORY ${door})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${place} ${door}/${folder} SYMBOLIC)
    set(door ${door} PARENT_SCOPE)
endfunction()

function(maestro_library folder)
    if(folder STREQUAL kernels)  # headers; what is behind them comes from nvcc, see cuda.cmake
        maestro_door(kernels kernels)
        add_library(maestro_kernels INTERFACE)
        target_include_directories(maestro_kernels INTERFACE ${door})
        target_link_libraries(maestro_kernels INTERFACE ${ARGN})
        return()
    endif()
    maestro_door(${folder} src/${folder})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
    if(MAESTRO_CUDA)
        list(FILTER sources EXCLUDE REGEX "/(no_gpus|no_nccl|nccl[^/]*).cpp$")  # cuda.cmake adds what stands for NCCL
        if(MAESTRO_CUDNN)
            list(FILTER sources EXCLUDE REGEX "/(no_cudnn|cudnn_graph|cudnn_execution).cpp$")  # cuda.cmake adds the two
        else()
            list(FILTER sources EXCLUDE REGEX "/cudnn_[^/]*$")
        endif()
    else()
        list(FILTER sources EXCLUDE REGEX "/(cuda|nccl|cudnn_|no_cudnn)[^/]*$")
    endif()
    if(DEFINED MAESTRO_LEFT_OUT)  # by builds of parts
        list(FILTER sources EXCLUDE REGEX "${MAESTRO_LEFT_OUT}")
    endif()
    add_library(maestro_${folder} STATIC ${sources})
    target_include_directories(maestro_${folder} PUBLIC ${door})
    target_link_libraries(maestro_${folder} PUBLIC ${ARGN} PRIVATE maestro_flags)
endfunction()

# What nearly every file includes.
set(MAESTRO_COMMON_HEADERS <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <span> <string> <string_view> <thread>
    <unordered_map> <vector> <fmt/format.h>)

# Precompiles, for the folder FIRST and once for the others, the common headers. g++ shares them only
# among the same options: OpenMP, which some folders need, then goes to all.
function(maestro_precompile first)
    target_link_libraries(maestro_flags INTERFACE OpenMP::OpenMP_CXX)
    target_precompile_headers(maestro_${first} PRIVATE ${MAESTRO_COMMON_HEADERS})
    foreach(folder ${ARGN})
        target_precompile_headers(maestro_${folder} REUSE_FROM maestro_${first})
    endforeach()
endfunction()
