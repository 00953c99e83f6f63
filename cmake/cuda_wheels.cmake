# CUDA from the wheels of a Python environment instead of a toolkit: -DMAESTRO_CUDA_WHEELS=ENVIRONMENT. Wheels distribute a toolkit
# over site-packages/nvidia/* and lack the names libNAME.so that linkers look for. This makes a folder of links that looks like a
# toolkit.
set(MAESTRO_CUDA_WHEELS "" CACHE PATH "Python environment, or its site-packages, whose wheels have CUDA; empty: the system's alone")

# Makes links in `to` to everything in `from`; what exists already stays.
function(maestro_link_all from to)
    file(MAKE_DIRECTORY ${to})
    file(GLOB entries ${from}/*)
    foreach(entry ${entries})
        get_filename_component(name ${entry} NAME)
        if(NOT EXISTS ${to}/${name})
            file(CREATE_LINK ${entry} ${to}/${name} SYMBOLIC)
        endif()
    endforeach()
endfunction()

# Makes libNAME.so beside every libNAME.so.VERSION.
function(maestro_plain_names folder)
    file(GLOB libraries ${folder}/lib*.so.*)
    foreach(library ${libraries})
        string(REGEX REPLACE "\\.so\\..*$" ".so" plain ${library})
        if(NOT EXISTS ${plain})
            file(CREATE_LINK ${library} ${plain} SYMBOLIC)
        endif()
    endforeach()
endfunction()

function(maestro_cuda_from_wheels environment)
    set(toolkit ${CMAKE_BINARY_DIR}/cuda-wheels)
    file(REMOVE_RECURSE ${toolkit})
    file(GLOB sources ${environment}/lib/python3*/site-packages/nvidia/* ${environment}/nvidia/*)
    file(GLOB compiler ${environment}/lib/python3*/site-packages/nvidia/*/bin/nvcc ${environment}/nvidia/*/bin/nvcc)
    if(NOT compiler)  # PyTorch's wheels have no compiler: then the system's toolkit, and from the wheels what it lacks
        find_program(system_nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
        if(system_nvcc)
            file(REAL_PATH ${system_nvcc} system_nvcc)
            get_filename_component(system ${system_nvcc} DIRECTORY)
            get_filename_component(system ${system} DIRECTORY)
            list(PREPEND sources ${system})
        endif()
    endif()
    foreach(source ${sources})
        maestro_link_all(${source}/bin ${toolkit}/bin)
        maestro_link_all(${source}/include ${toolkit}/include)
        maestro_link_all(${source}/nvvm ${toolkit}/nvvm)
        maestro_link_all(${source}/lib64 ${toolkit}/lib64)
        maestro_link_all(${source}/lib ${toolkit}/lib64)
    endforeach()
    maestro_plain_names(${toolkit}/lib64)
    foreach(needed bin/nvcc nvvm/bin/cicc include/cuda_runtime.h include/crt/host_config.h include/cublasLt.h include/nvtx3/nvToolsExt.h
            lib64/libcudart_static.a lib64/libcublasLt.so)
        if(NOT EXISTS ${toolkit}/${needed})
            message(FATAL_ERROR "MAESTRO_CUDA_WHEELS: neither the wheels in ${environment} nor a system's toolkit has ${needed}; "
                "pip install \"cuda-toolkit[nvcc,nvvm,crt,cudart,cccl,cublas,nvtx]\" brings all, of one version (docs/cuda.md)")
        endif()
    endforeach()
    set(CUDAToolkit_ROOT ${toolkit} PARENT_SCOPE)
    set(CMAKE_CUDA_COMPILER ${toolkit}/bin/nvcc CACHE FILEPATH "from MAESTRO_CUDA_WHEELS" FORCE)
endfunction()

if(MAESTRO_CUDA_WHEELS)
    maestro_cuda_from_wheels(${MAESTRO_CUDA_WHEELS})
endif()
