# ./dev coverage [NAME]: which lines the tests run, by folder of src; NAME: only the tests whose name contains it.
# shellcheck disable=SC2086
install_packages $packages_build $packages_test $packages_backends
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
build coverage
find build/coverage -name '*.gcda' -delete
# Nothing promises a time here, and a test that fails has run its lines all the same.
ctest --test-dir build/coverage -j "$(nproc)" --timeout 600 ${1:+-R "$1"} -LE "package|style" >build/coverage-tests.log 2>&1 ||
  say "some tests failed: build/coverage-tests.log"
grep -E "tests passed" build/coverage-tests.log
python3 tools/coverage.py build/coverage
