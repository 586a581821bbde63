# Every option of the build, all prefixed TUTTI_.
option(BUILD_SHARED_LIBS "Build the library shared" ON)
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
set(TUTTI_WITH_TORCH AUTO CACHE STRING "The libtorch adaptor: AUTO, ON (fails if missing), OFF")
set(TORCH_ROOT "" CACHE PATH "A libtorch 2.x: its folder with include/ and lib/")
set(TUTTI_WITH_PYTHON AUTO CACHE STRING "The backend of Python's torch.distributed: AUTO, ON (fails if missing), OFF")
set(TUTTI_PYTHON "" CACHE FILEPATH "The Python interpreter whose torch that is")
option(TUTTI_WHEEL "Build what a Python wheel holds, and no more; pip turns it on" OFF)
option(TUTTI_FUZZ "Build the fuzzers (needs clang)" OFF)
option(TUTTI_WERROR "Warnings are errors; for those who work on Tutti itself" OFF)
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
option(TUTTI_COVERAGE "Count which lines run (g++); tools/coverage.py reads it" OFF)
set_property(CACHE TUTTI_WITH_TORCH TUTTI_WITH_PYTHON PROPERTY STRINGS AUTO ON OFF)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(TUTTI_WARNINGS -Wall -Wextra -Wshadow -Wswitch-enum $<$<BOOL:${TUTTI_WERROR}>:-Werror>
    # g++ 12 sees overlaps in std::string that are not there (its bug 105651).
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
endif()
if(TUTTI_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
  # A hundred programs, each with all of the library and its debug information.
  find_program(TUTTI_LLD NAMES ld.lld-14 ld.lld)
  if(TUTTI_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_link_options(--ld-path=${TUTTI_LLD})
  endif()
endif()

if(TUTTI_COVERAGE)
  add_compile_options(--coverage -fprofile-abs-path -fprofile-update=single)  # a count may be too low, but not 0
  add_library(tutti_coverage STATIC ${CMAKE_CURRENT_LIST_DIR}/coverage.cc)
  set_target_properties(tutti_coverage PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_link_options(--coverage -Wl,--wrap=_exit -Wl,--undefined=__wrap__exit)
  link_libraries(tutti_coverage)
endif()

# tutti_common_headers(TARGET <a.h> ...): headers the sanitizer builds compile once, which halves their time. The other
# builds leave it to ccache, which finds nothing again behind a precompiled header.
function(tutti_common_headers name)
  if(TUTTI_SANITIZE)
    target_precompile_headers(${name} PRIVATE ${ARGN})
  endif()
endfunction()
