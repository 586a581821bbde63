# tutti_test(NAME SOURCES a.cc ... [LINKS t ...] [LABELS l ...] [TIMEOUT s]): one GoogleTest program that
# sees the inside of the library; one ctest entry.
include_guard()
find_package(GTest REQUIRED)
function(tutti_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINKS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${TUTTI_WARNINGS})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE tutti_objects hwy::hwy fmt::fmt GTest::gtest GTest::gtest_main ${ARG_LINKS})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()
