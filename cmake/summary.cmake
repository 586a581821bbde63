# One table at the end of configure: component, state, why.
message(STATUS "tutti ${PROJECT_VERSION} (${TUTTI_COMMIT}), ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
get_property(tutti_summary GLOBAL PROPERTY TUTTI_SUMMARY)
foreach(line ${tutti_summary})
  message(STATUS "  ${line}")
endforeach()
