# Finds the directory of cuda.h. Only types and constants are taken from it, nothing is linked.
# It tries in order: GLAKE_CUDA_INCLUDE, a toolkit (CUDA_HOME, CUDA_PATH, /usr/local/cuda), the
# nvidia-cuda-runtime wheel. It sets GLAKE_CUDA_INCLUDE and GLAKE_CUDA_VERSION.

if(NOT GLAKE_CUDA_INCLUDE)
  set(candidates "")
  foreach(home "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
    if(home)
      list(APPEND candidates "${home}/include")
    endif()
  endforeach()
  if(Python_EXECUTABLE)
    # The newest is last in name order, so the list is reversed. CUDA 12 wheels have the headers in
    # nvidia/cuda_runtime.
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
              "import glob, sys
for entry in sys.path:
    for pattern in ('cu*[0-9]', 'cuda_runtime'):
        for found in sorted(glob.glob(entry + '/nvidia/' + pattern + '/include'), reverse=True):
            print(found)"
      OUTPUT_VARIABLE wheels
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" wheels "${wheels}")
    list(APPEND candidates ${wheels})
  endif()
  foreach(candidate ${candidates})
    if(EXISTS "${candidate}/cuda.h")
      set(GLAKE_CUDA_INCLUDE "${candidate}" CACHE PATH "Directory of cuda.h")
      break()
    endif()
  endforeach()
endif()

if(NOT GLAKE_CUDA_INCLUDE OR NOT EXISTS "${GLAKE_CUDA_INCLUDE}/cuda.h")
  message(FATAL_ERROR
    "cuda.h was not found. Any of these will do:\n"
    "  pip install nvidia-cuda-runtime       (headers only, no GPU or driver needed)\n"
    "  set CUDA_HOME to a CUDA toolkit       (12.0 or newer)\n"
    "  cmake -DGLAKE_CUDA_INCLUDE=<directory of cuda.h>\n"
    "Looked in: ${GLAKE_CUDA_INCLUDE} ${candidates}")
endif()

file(STRINGS "${GLAKE_CUDA_INCLUDE}/cuda.h" version_line REGEX "^#define CUDA_VERSION +[0-9]+")
string(REGEX MATCH "[0-9]+$" GLAKE_CUDA_VERSION "${version_line}")
if(NOT GLAKE_CUDA_VERSION OR GLAKE_CUDA_VERSION LESS 12000)
  message(FATAL_ERROR "${GLAKE_CUDA_INCLUDE}/cuda.h declares CUDA_VERSION "
    "${GLAKE_CUDA_VERSION}; glake is compiled against 12000 (CUDA 12.0) or newer. Set CUDA_HOME to "
    "a newer toolkit, or pass -DGLAKE_CUDA_INCLUDE.")
endif()
message(STATUS "cuda.h: ${GLAKE_CUDA_INCLUDE} (${GLAKE_CUDA_VERSION})")
