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
install_packages $packages_build $packages_torch $packages_data $packages_test $packages_backends $packages_launchers $packages_hosts
use_libtorch --keep
tools/python_torch.sh "$root/third_party" || say "Python's torch could not be had: the tests with it are skipped"
[ -n "$full" ] && export TUTTI_TEST_FULL=1
# Open MPI refuses root and more ranks than cores without these; CI is root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# run_tests PRESET [CTEST-ARGS]: keeps what they say.
run_tests() {
  local preset=$1
  shift
  say "testing $preset"
  $plainly ctest --test-dir "build/$preset" --output-on-failure --timeout 300 --output-junit "$results/$preset.xml" \
    "$@" >"$results/$preset.log" 2>&1 || grep -E "Failed|\*\*\*|Timeout|FAILED|error:" "$results/$preset.log" | head -n 60 || true
}

# build_beneath PRESET: builds it beside the tests of another, in the time that they leave: many of them wait.
build_beneath() {
  (
    chrt --idle --pid 0 "$BASHPID" 2>/dev/null || true
    build "$1" -DTUTTI_WERROR=ON
  ) &
  beneath=$!
}

if [ -n "$list" ]; then
  build release
  ctest --test-dir build/release -N | sed -n 's/^ *Test *#[0-9]*: //p'
  exit 0
fi
build release -DTUTTI_WERROR=ON
if [ -n "$name" ]; then
  run_tests release -R "$name"
elif [ -z "$sanitizers" ]; then
  run_tests release -j "$(($(nproc) + 1))"
else
  # Tests that measure promises about time run alone (RUN_SERIAL); of the others some only wait. Of layouts
  # that differ little one is run.
  release_thinned=(-E "^(backend_gloo|native)_halves\.")
  [ -z "$full" ] || release_thinned=()
  build_beneath asan
  run_tests release -j "$(($(nproc) + 1))" "${release_thinned[@]}"
  wait "$beneath" || exit 1
  # The run-times of clang 14 need address-space randomisation off on newer kernels.
  if setarch -R true 2>/dev/null; then plainly="setarch -R"; fi
  # Left to the release build: all layouts of native but one host and, under TSan, TCP alone (under ASan the tests of
  # hosts go that way), conformance of processes, whose forks cost most there, the prover of schedules, which only
  # counts, MPI's launchers, whose ranks spin, and soaks that mostly wait.
  thinned="^native_(halves|first_alone|interleaved|tags|schedule_prove)\.|^conformance\..*/processes_|^e2e_examples.*\.(openmpi|mpich)$|^e2e_foreign\.|^e2e_command_lines$|dev_hosts$|^soak_(flood|init|strangers|.*_fresh)$"
  asan_thinned=(-E "$thinned|^native_apart\.") tsan_thinned=(-E "$thinned")
  [ -z "$full" ] || asan_thinned=() tsan_thinned=()
  # Nothing promises a time there, and many tests wait: twice as many as cores.
  build_target=thread_tests build_beneath tsan
  ASAN_OPTIONS=detect_stack_use_after_return=1 run_tests asan -j "$((2 * $(nproc)))" -LE "torch|mpi|package|style" "${asan_thinned[@]}"
  wait "$beneath" || exit 1
  run_tests tsan -j "$((2 * $(nproc)))" -L "threads|store|net" "${tsan_thinned[@]}"
fi
if [ -n "$full" ] && [ -z "$name" ]; then
  tools/libtorch.sh --oldest "$root/third_party"
  oldest=$(tools/libtorch.sh --oldest --where "$root/third_party")
  TORCH_ROOT=$oldest build_target=torch_tests build oldest -DTUTTI_WERROR=ON
  run_tests oldest -j "$(($(nproc) + 1))" -R '^ddp_torch$|^ddp\.training$'
  # build_backend PRESET WERROR [--oldest]: the backend of torch.distributed for that torch, and its tests.
  build_backend() {
    local preset=$1 werror=$2
    shift 2
    tools/python_torch.sh "$@" "$root/third_party" || return 0
    build_target="tutti_c10d tutti_cli" build "$preset" "-DTUTTI_WERROR=$werror" "-DTUTTI_PYTHON=$(tools/python_torch.sh "$@" --where "$root/third_party")/bin/python"
    run_tests "$preset" -R '^python\.'
  }
  build_backend oldest-python ON --oldest
  build_backend asan-python OFF # g++ 12 sees uninitialised memory behind ASan's checks that is not there
fi
python3 tools/test_summary.py "$results"/*.xml
