# The flags of our code, and maestro_library(FOLDER LINKS...), which makes the library maestro_FOLDER from all .cpp files below
# src/FOLDER. A slash in FOLDER becomes an underscore: train/step is maestro_train_step.
add_library(maestro_flags INTERFACE)
target_compile_options(maestro_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
    # g++ 12 warns wrongly of an overflow inside fmt and of overlaps in std::string (gcc.gnu.org/PR105651)
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow -Wno-restrict>)
if(MAESTRO_SANITIZE)
    target_compile_options(maestro_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
    target_link_options(maestro_flags INTERFACE -fsanitize=address,undefined)
endif()

if(MAESTRO_UNITY)
    # In a unity build g++ takes the unnamed namespaces of the sources for those of a header.
    target_compile_options(maestro_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

# With MAESTRO_UNITY the sources of `target` are compiled in batches. The libraries are position-independent code, in which g++ does not
# inline a function of one source in another (it might be interposed): results are those of a build of single sources.
function(maestro_unity target)
    if(MAESTRO_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    endif()
endfunction()

# Each folder gets a separate include directory, which contains nothing but a link to the folder: a target finds the headers of
# what it links (and of what those link) and no others. Sets `include_directory`.
function(maestro_include_directory name folder place)
    set(directory ${CMAKE_BINARY_DIR}/include/${name})
    cmake_path(GET folder PARENT_PATH parent)
    file(MAKE_DIRECTORY ${directory}/${parent})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${place} ${directory}/${folder} SYMBOLIC)
    set(include_directory ${directory} PARENT_SCOPE)
endfunction()

function(maestro_library folder)
    string(REPLACE "/" "_" name ${folder})
    if(folder STREQUAL kernels)  # headers alone; cuda.cmake compiles the kernels
        maestro_include_directory(kernels kernels kernels)
        add_library(maestro_kernels INTERFACE)
        target_include_directories(maestro_kernels INTERFACE ${include_directory})
        target_link_libraries(maestro_kernels INTERFACE ${ARGN})
        return()
    endif()
    maestro_include_directory(${name} ${folder} src/${folder})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
    # The subfolders `cuda` and `nccl` contain what needs these libraries; no_cuda.cpp, no_nccl.cpp and no_cudnn.cpp replace it in
    # builds without them. cuda.cmake adds the sources that need NCCL and cuDNN.
    list(FILTER sources EXCLUDE REGEX "/nccl/")
    if(MAESTRO_CUDA)
        list(FILTER sources EXCLUDE REGEX "/(no_cuda|no_nccl).cpp$")
        if(MAESTRO_CUDNN)
            list(FILTER sources EXCLUDE REGEX "/(no_cudnn|cudnn_graph|cudnn_execution).cpp$")
        else()
            list(FILTER sources EXCLUDE REGEX "/cudnn_[^/]*$")
        endif()
    else()
        list(FILTER sources EXCLUDE REGEX "/cuda/")
    endif()
    if(DEFINED MAESTRO_LEFT_OUT)  # set by builds of parts
        list(FILTER sources EXCLUDE REGEX "${MAESTRO_LEFT_OUT}")
    endif()
    add_library(maestro_${name} STATIC ${sources})
    maestro_unity(maestro_${name})
    target_include_directories(maestro_${name} PUBLIC ${include_directory})
    target_link_libraries(maestro_${name} PUBLIC ${ARGN} PRIVATE maestro_flags)
endfunction()

# The headers that nearly every file includes.
set(MAESTRO_COMMON_HEADERS <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <span> <string> <string_view> <thread>
    <unordered_map> <vector> <fmt/format.h>)

# Precompiles the common headers in the folder FIRST, for all folders. g++ shares precompiled headers only among sources that are
# compiled with the same options, so all folders get OpenMP, which some need.
function(maestro_precompile first)
    target_link_libraries(maestro_flags INTERFACE OpenMP::OpenMP_CXX)
    target_precompile_headers(maestro_${first} PRIVATE ${MAESTRO_COMMON_HEADERS})
    foreach(folder ${ARGN})
        target_precompile_headers(maestro_${folder} REUSE_FROM maestro_${first})
    endforeach()
endfunction()
