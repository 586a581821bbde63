# libtorch 2.x as an imported target, found by hand. find_package(Torch) is of no use here: it demands CUDA at
# configure time and picks up whichever libtorch the system has; libtorch.so would pull in CUDA at link time.
#
# tutti_find_libtorch(ROOT WHY): makes `tutti::libtorch` from the folder ROOT (it holds include/ and lib/) and sets
# TUTTI_LIBTORCH_VERSION; where that is not possible WHY is set to the reason, else to "".
# TUTTI_LIBTORCH_DEVICES says "with CUDA" or "CPU only". Where the folder holds libtorch_cuda.so, programs that link
# tutti::libtorch are linked with it, whether or not they name a symbol of it: its kernels make themselves known when it is
# loaded. Libraries are not: libtutti_torch serves programs with CUDA and without.
# An installed package includes this file with TUTTI_BUILT_WITH_LIBTORCH and TUTTI_BUILT_TORCH_ROOT set.
include_guard()

function(tutti_libtorch_version root result)
  set(${result} "" PARENT_SCOPE)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${root}/include/${header})
      file(STRINGS ${root}/include/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      if(numbers)
        list(JOIN numbers "." version)
        set(${result} ${version} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

function(tutti_find_libtorch root why)
  set(${why} "" PARENT_SCOPE)
  if(TARGET tutti::libtorch)
    return()
  endif()
  foreach(file include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
    if(NOT EXISTS ${root}/${file})
      set(${why} "${root} holds no ${file}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  tutti_libtorch_version(${root} version)
  if(NOT version MATCHES "^2\\.")
    set(${why} "${root} is libtorch '${version}', not 2.x" PARENT_SCOPE)
    return()
  endif()
  foreach(part c10 torch_cpu)
    add_library(tutti::libtorch_${part} SHARED IMPORTED GLOBAL)
    set_target_properties(tutti::libtorch_${part} PROPERTIES IMPORTED_LOCATION ${root}/lib/lib${part}.so)
  endforeach()
  add_library(tutti::libtorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(tutti::libtorch PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "tutti::libtorch_torch_cpu;tutti::libtorch_c10"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  set(TUTTI_LIBTORCH_VERSION ${version} PARENT_SCOPE)
  set(TUTTI_LIBTORCH_DEVICES "CPU only" PARENT_SCOPE)
  if(EXISTS ${root}/lib/libtorch_cuda.so)
    set(TUTTI_LIBTORCH_DEVICES "with CUDA" PARENT_SCOPE)
    set(words --push-state --no-as-needed ${root}/lib/libc10_cuda.so ${root}/lib/libtorch_cuda.so --pop-state
      --allow-shlib-undefined)  # NVIDIA's libraries may lie elsewhere: what is missing is said when a program starts
    list(JOIN words "$<COMMA>" words)
    set_property(TARGET tutti::libtorch PROPERTY
      INTERFACE_LINK_OPTIONS "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:LINKER:${words}>")
  endif()
endfunction()

# The folder to look in: -DTORCH_ROOT, the environment's, then the newest among `places`.
function(tutti_torch_root result places)
  set(found "${TORCH_ROOT}")
  if(NOT found)
    set(found "$ENV{TORCH_ROOT}")
  endif()
  if(NOT found)
    file(GLOB unpacked ${places})  # folders of data, not of sources
    list(SORT unpacked COMPARE NATURAL ORDER DESCENDING)
    if(unpacked)
      list(GET unpacked 0 found)
    endif()
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

if(TUTTI_BUILT_WITH_LIBTORCH)
  tutti_torch_root(tutti_torch_folder "${TUTTI_BUILT_TORCH_ROOT}")
  tutti_find_libtorch("${tutti_torch_folder}" tutti_torch_why)
  if(NOT tutti_torch_why STREQUAL "")
    message(FATAL_ERROR "tutti's component torch needs libtorch ${TUTTI_BUILT_WITH_LIBTORCH}: ${tutti_torch_why}; -DTORCH_ROOT=DIR names its folder with include/ and lib/")
  elseif(NOT TUTTI_LIBTORCH_VERSION STREQUAL TUTTI_BUILT_WITH_LIBTORCH)
    message(FATAL_ERROR "this tutti was built with libtorch ${TUTTI_BUILT_WITH_LIBTORCH}; ${tutti_torch_folder} is ${TUTTI_LIBTORCH_VERSION}, whose binary interface differs")
  endif()
endif()
