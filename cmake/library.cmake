# Flags of our own code, and maestro_library(folder links...): every .cpp of src/FOLDER as maestro_FOLDER.
add_library(maestro_flags INTERFACE)
target_compile_options(maestro_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)  # g++ 12 sees an overflow inside fmt that is none
if(MAESTRO_SANITIZE)
    target_compile_options(maestro_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
    target_link_options(maestro_flags INTERFACE -fsanitize=address,undefined)
endif()

function(maestro_library folder)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
    if(sources)
        add_library(maestro_${folder} STATIC ${sources})
        target_include_directories(maestro_${folder} PUBLIC ${CMAKE_SOURCE_DIR}/src)
        target_link_libraries(maestro_${folder} PUBLIC ${ARGN} PRIVATE maestro_flags)
    else()
        add_library(maestro_${folder} INTERFACE)
        target_include_directories(maestro_${folder} INTERFACE ${CMAKE_SOURCE_DIR}/src)
        target_link_libraries(maestro_${folder} INTERFACE ${ARGN})
    endif()
endfunction()

# Precompiles, for the folder FIRST and once for the others, headers that nearly every file includes.
function(maestro_precompile first)
    target_precompile_headers(maestro_${first} PRIVATE <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <span>
        <string> <string_view> <thread> <unordered_map> <vector> <fmt/format.h>)
    foreach(folder ${ARGN})
        target_precompile_headers(maestro_${folder} REUSE_FROM maestro_${first})
    endforeach()
endfunction()
