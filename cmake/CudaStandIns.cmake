# The stand-ins for CUDA's libraries over simcuda (docs/real.md). They are in lib/cuda, with the sonames
# and version nodes of NVIDIA's libraries, so that a CUDA build of PyTorch loads them in their place.

set(runtime "${simcuda}/runtime")
add_custom_target(glake_cuda)

# add_standin(NAME FILE [NODE node] [DEFINES ...] SOURCES ...)
function(add_standin name file)
  cmake_parse_arguments(given "" "NODE" "SOURCES;DEFINES" ${ARGN})
  set(target "cuda_${name}")
  add_library(${target} SHARED ${given_SOURCES})
  target_compile_definitions(${target} PRIVATE ${given_DEFINES})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${runtime}/standins")
  target_link_libraries(${target} PRIVATE simcuda glake_options)
  target_link_options(${target} PRIVATE "LINKER:-soname,${file}")
  if(given_NODE)
    set(script "${CMAKE_CURRENT_BINARY_DIR}/cuda/${file}.map")
    file(CONFIGURE OUTPUT "${script}" CONTENT "${given_NODE} { global: *; };\n")
    target_link_options(${target} PRIVATE "LINKER:--version-script,${script}")
  endif()
  # The file is the soname itself: no links to files with longer names.
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME "${file}" SUFFIX "" NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/cuda"
    BUILD_RPATH "$ORIGIN/..;$ORIGIN" INSTALL_RPATH "$ORIGIN/..;$ORIGIN")
  add_dependencies(glake_cuda ${target})
  install(TARGETS ${target} LIBRARY DESTINATION lib/cuda COMPONENT python)
endfunction()

file(GLOB cudart_sources CONFIGURE_DEPENDS "${runtime}/cudart/*.cpp")
foreach(major 13 12)
  add_standin("cudart${major}" "libcudart.so.${major}" NODE "libcudart.so.${major}"
    DEFINES CUDART_MAJOR=${major} SOURCES ${cudart_sources})
  set_target_properties("cuda_cudart${major}" PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endforeach()

# The stand-ins of CUDA 12 are the same code under another name.
set(standins "${runtime}/standins")
foreach(row
    "cublas;libcublas.so.13" "cublas12;libcublas.so.12"
    "cublasLt;libcublasLt.so.13" "cublasLt12;libcublasLt.so.12"
    "cusparse;libcusparse.so.12" "cusolver;libcusolver.so.12" "cusolver11;libcusolver.so.11"
    "cufft;libcufft.so.12" "cufft11;libcufft.so.11"
    "nvrtc;libnvrtc.so.13" "nvrtc12;libnvrtc.so.12"
    "cupti;libcupti.so.13" "cupti12;libcupti.so.12")
  list(GET row 0 name)
  list(GET row 1 file)
  string(REGEX REPLACE "1[0-9]$" "" source "${name}")
  add_standin(${name} ${file} NODE ${file} SOURCES "${standins}/${source}.cpp")
endforeach()
file(GLOB cudnn_sources CONFIGURE_DEPENDS "${standins}/cudnn*.cpp")
add_standin(cudnn libcudnn.so.9 NODE libcudnn.so.9 SOURCES ${cudnn_sources})
add_standin(curand libcurand.so.10 NODE libcurand.so.10 SOURCES "${standins}/curand.cpp")
add_standin(cufile libcufile.so.0 SOURCES "${standins}/cufile.cpp")
file(GLOB nccl_sources CONFIGURE_DEPENDS "${runtime}/nccl/*.cpp")
add_standin(nccl libnccl.so.2 SOURCES ${nccl_sources})
set_target_properties(cuda_nccl PROPERTIES UNITY_BUILD ON)
# These are a list of names each. Every function returns the library's own "not supported":
# CUDA_ERROR_NOT_SUPPORTED, CUSPARSE_STATUS_NOT_SUPPORTED, NVSHMEMX_ERROR_NOT_SUPPORTED.
function(add_plain name file list status)
  add_standin(${name} ${file} ${ARGN} SOURCES "${standins}/plain.cpp"
    DEFINES "STANDIN_LIBRARY=\"${file}\"" "STANDIN_LIST=\"lists/${list}.def\""
            "STANDIN_UNSUPPORTED=${status}")
endfunction()
add_plain(cuda libcuda.so.1 cuda 801)
target_sources(cuda_cuda PRIVATE "${standins}/cuda.cpp")
add_plain(cusparseLt libcusparseLt.so.0 cusparseLt 10)
add_plain(nvshmem libnvshmem_host.so.3 nvshmem_host 3 NODE NVSHMEM)
target_link_options(cuda_cuda PRIVATE LINKER:--no-as-needed)  # what it is for: simcuda's symbols
# The runtime opens this one at run time and does not link it.
add_dependencies(cuda_cudart13 cuda_cuda)
add_dependencies(cuda_cudart12 cuda_cuda)

file(GLOB nvml_sources CONFIGURE_DEPENDS "${runtime}/nvml/*.cpp")
add_standin(nvml libnvidia-ml.so.1 SOURCES ${nvml_sources} ${topology_sources})
