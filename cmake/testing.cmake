# tutti_test(NAME SOURCES a.cc ... [LINKS t ...] [LABEL l] [TIMEOUT s]): one GoogleTest program that sees the
# inside of the library; one ctest entry per test. Labels: none for the core (runs under every sanitizer),
# `threads` (thread-ranks only: also under TSan), `torch`, `mpi`, `soak`, `package`.
include_guard()
include(GoogleTest)
find_package(GTest REQUIRED)
function(tutti_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL" "SOURCES;LINKS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  # No contraction: as the kernels. O1: the library is what is tested optimised; these compile a third faster.
  target_compile_options(${name} PRIVATE ${TUTTI_WARNINGS} -ffp-contract=off -O1)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE tutti_objects hwy::hwy fmt::fmt GTest::gtest GTest::gtest_main
    ${ARG_LINKS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  list(APPEND ARG_LABEL ${ARG_LABELS})
  if(NOT ARG_LABEL)
    set(ARG_LABEL core)
  endif()
  # gtest_discover_tests keeps one label only: several become one that `ctest -L` matches by part.
  list(JOIN ARG_LABEL . labels)
  if(labels MATCHES "threads|store|net")
    add_dependencies(thread_tests ${name})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES TEST_PREFIX "${name}."
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}")
endfunction()

# tutti_torch_program(NAME a.cc ...): a program over libtorch. Its headers cost half a minute per file: they are
# compiled once for all such programs of the tests.
function(tutti_torch_program name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${TUTTI_WARNINGS} -O0 -g1)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE tutti::torch)
  get_property(first GLOBAL PROPERTY TUTTI_FIRST_TORCH_PROGRAM)
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE <torch/torch.h>)
    set_property(GLOBAL PROPERTY TUTTI_FIRST_TORCH_PROGRAM ${name})
  endif()
endfunction()
