# Any LibTorch: OSCAR_TORCH_DIR, then CMAKE_PREFIX_PATH (a LibTorch archive, or a Python's site-packages), then the private
# folder that setup.sh fills. Unlike find_package(Torch) it asks for no CUDA toolkit: only libtorch_cpu and libc10 are linked.
set(OSCAR_TORCH_DIR "" CACHE PATH "Directory of LibTorch: the one with include/ and lib/")
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h
  HINTS ${OSCAR_TORCH_DIR} PATHS ${CMAKE_SOURCE_DIR}/.deps/libtorch/torch
  PATH_SUFFIXES include torch/include NO_CMAKE_FIND_ROOT_PATH)
get_filename_component(LibTorch_ROOT "${LibTorch_INCLUDE_DIR}" DIRECTORY)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run ./setup.sh, or point OSCAR_TORCH_DIR at a LibTorch")
if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # A PyPI wheel keeps the CUDA runtime that libtorch_cpu was linked with beside itself.
  file(GLOB cuda_runtime_dirs ${LibTorch_ROOT}/../nvidia/*/lib)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  # After the system's own directories: the wheel ships headers of another fmt than the one that is linked.
  target_compile_options(LibTorch::LibTorch INTERFACE "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}"
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(LibTorch::LibTorch INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})
  foreach(dir ${LibTorch_ROOT}/lib ${cuda_runtime_dirs})
    # DT_RPATH, not RUNPATH: libtorch_cpu's own dependencies are looked for there as well.
    target_link_options(LibTorch::LibTorch INTERFACE "LINKER:-rpath,${dir}" "LINKER:-rpath-link,${dir}")
  endforeach()
  target_link_options(LibTorch::LibTorch INTERFACE "LINKER:--disable-new-dtags")
  # Compiled with the C++ ABI of the library, or it would fail at link time with pages of undefined std::string.
  execute_process(COMMAND nm -DC ${LibTorch_C10_LIBRARY} OUTPUT_VARIABLE symbols ERROR_QUIET)
  if(symbols AND NOT symbols MATCHES "std::__cxx11::basic_string")
    message(FATAL_ERROR "${LibTorch_C10_LIBRARY}: built with the pre-C++11 ABI; use a LibTorch 2.6 or newer")
  endif()
endif()
