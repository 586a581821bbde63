# How the programs of the tests are made. They are compiled quickly, not well: what is tested is the library, and
# that is optimised as ever. Headers cost more than they do: the common ones are compiled once (tests/CMakeLists.txt).
include_guard()
include(GoogleTest)
find_package(GTest REQUIRED)

# tutti_test_code(TARGET): code of the tests that sees the inside of the library.
function(tutti_test_code name)
  # No contraction: as the kernels.
  target_compile_options(${name} PRIVATE ${TUTTI_WARNINGS} -ffp-contract=off)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE tutti_objects hwy::hwy fmt::fmt GTest::gtest)
  target_precompile_headers(${name} REUSE_FROM tutti_test_headers)
endfunction()

# tutti_gpu_program(NAME TIMEOUT [device]): a GoogleTest program that `./dev gpu` takes to a machine with a GPU and runs there
# whole, with TUTTI_TEST_CUDA=real. device: it is nothing without a GPU.
function(tutti_gpu_program name timeout)
  add_dependencies(gpu_tests ${name})
  set_property(GLOBAL APPEND PROPERTY TUTTI_GPU_PROGRAMS "$<TARGET_FILE:${name}> ${timeout} ${ARGN}")
endfunction()

# tutti_test(NAME SOURCES a.cc ... [LINKS t ...] [LABEL l] [TIMEOUT s] [LAYOUTS l ...] [ALONE SUITE.TEST]): one GoogleTest
# program; one ctest entry per test, and one more per layout, NAME_LAYOUT.TEST, which finds the word in
# TUTTI_TEST_LAYOUT. ALONE: the test that runs beside no other. Labels: none for the core (runs under every sanitizer),
# `threads` (thread-ranks only: also under TSan), `torch`, `mpi`, `soak`, `package`, `gpu` (tutti_gpu_program).
function(tutti_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL;ALONE" "SOURCES;LINKS;LABELS;LAYOUTS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  tutti_test_code(${name})
  target_link_libraries(${name} PRIVATE GTest::gtest_main ${ARG_LINKS})
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
  if(gpu IN_LIST ARG_LABEL)
    tutti_gpu_program(${name} ${ARG_TIMEOUT} device)
  endif()
  set(beside_others)
  if(ARG_ALONE)
    set(beside_others TEST_FILTER "-${ARG_ALONE}")
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX "${name}." TEST_FILTER ${ARG_ALONE}
      TEST_LIST ${name}_alone_tests PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}" RUN_SERIAL ON)
  endif()
  foreach(layout "" ${ARG_LAYOUTS})
    set(prefix ${name})
    set(where)
    if(layout)
      string(APPEND prefix _${layout})
      set(where ENVIRONMENT TUTTI_TEST_LAYOUT=${layout})
    endif()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES TEST_PREFIX "${prefix}."
      ${beside_others} TEST_LIST ${prefix}_tests PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}" ${where})
  endforeach()
endfunction()

# tutti_torch_program(NAME a.cc ...): a program over libtorch, whose headers cost many times what the files say: one
# unit of them all.
function(tutti_torch_program name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${TUTTI_WARNINGS})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF UNITY_BUILD ON)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE tutti::torch)
endfunction()

# tutti_torch_test(NAME PROGRAM [VARIABLE=value ...]): a GoogleTest program over libtorch as one ctest entry: loading libtorch
# takes longer than most of its tests. No test of it may be skipped, which would not be seen.
function(tutti_torch_test name program)
  add_test(NAME ${name} COMMAND ${program})
  set_tests_properties(${name} PROPERTIES TIMEOUT 240 LABELS torch FAIL_REGULAR_EXPRESSION "  SKIPPED " ENVIRONMENT "${ARGN}")
endfunction()
