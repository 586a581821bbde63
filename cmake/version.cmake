# The version stands in project(); the commit is read at configure time.
find_package(Git QUIET)
set(TUTTI_COMMIT unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=10 HEAD
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE TUTTI_COMMIT_READ
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE TUTTI_COMMIT_RC)
  if(TUTTI_COMMIT_RC EQUAL 0)
    set(TUTTI_COMMIT ${TUTTI_COMMIT_READ})
  endif()
endif()
