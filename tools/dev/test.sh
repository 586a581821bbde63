# ./dev test [--full] [--list] [--no-sanitizers] [NAME]: installs, builds and runs everything once.
full= list= name= sanitizers=1 plainly=
while [ $# -gt 0 ]; do
  case "$1" in
    --full) full=1 ;;
    --list) list=1 ;;
    --no-sanitizers) sanitizers= ;;
    -*) die 2 "unknown option '$1'; ./dev --help" ;;
    *) name=$1 ;;
  esac
  shift
done

results=$root/build/results
rm -rf "$results"
mkdir -p "$results"
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch $packages_data $packages_test $packages_backends
use_libtorch
[ -n "$full" ] && export TUTTI_TEST_FULL=1
# Open MPI refuses root and more ranks than cores without these; CI is root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# suite PRESET [CTEST-ARGS]: builds a preset and runs its tests, keeping what they said.
suite() {
  local preset=$1
  shift
  build "$preset" -DTUTTI_WERROR=ON
  say "testing $preset"
  $plainly ctest --test-dir "build/$preset" --output-on-failure --timeout 300 --output-junit "$results/$preset.xml" \
    "$@" >"$results/$preset.log" 2>&1 || grep -E "Failed|\*\*\*|Timeout|FAILED|error:" "$results/$preset.log" | head -n 60 || true
}

if [ -n "$list" ]; then
  build release
  ctest --test-dir build/release -N | sed -n 's/^ *Test *#[0-9]*: //p'
  exit 0
fi
if [ -n "$name" ]; then
  suite release -R "$name"
else
  # Tests that measure promises about time run alone (RUN_SERIAL); of the others some only wait.
  suite release -j "$(($(nproc) + 1))"
  if [ -n "$sanitizers" ]; then
    # The run-times of clang 14 need address-space randomisation off on newer kernels.
    # Nothing promises a time there, and many tests wait: twice as many as cores.
    if setarch -R true 2>/dev/null; then plainly="setarch -R"; fi
    ASAN_OPTIONS=detect_stack_use_after_return=1 suite asan -j "$((2 * $(nproc)))" -LE "torch|mpi|package|style"
    build_target=thread_tests suite tsan -j "$((2 * $(nproc)))" -L "threads|store|net"
  fi
fi
python3 tools/test_summary.py "$results"/*.xml
