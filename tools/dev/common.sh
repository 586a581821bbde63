# What every ./dev command shares: messages, packages, libtorch, building. Sourced, never run.

die() { # die CODE MESSAGE
  echo "dev: $2" >&2
  exit "$1"
}
say() { echo "dev: $*" >&2; }

# Packages by purpose. A purpose includes what stands before it only where the lists say so.
packages_build="g++ cmake ninja-build libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libssl-dev libhwloc-dev"
packages_torch="python3-pip unzip zlib1g-dev"
packages_data="dataset-fashion-mnist"
packages_test="libgtest-dev clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev lld-14 libboost-context-dev ccache make pkg-config git python3 python3-dev zsh fish groff-base"
packages_backends="openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev"
packages_launchers="munge slurmctld slurmd slurm-client"
packages_bench="$packages_backends libbenchmark-dev"
packages_hosts="iproute2 python3"
packages_net="$packages_hosts iperf3"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages NAME...: installs those that are missing, and says what and how much.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || die 1 "missing ${missing[*]}; this system has no apt-get: install them by hand"
  local start=$SECONDS log
  log=$(mktemp)
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; trying with the lists at hand"
  if ! as_root apt-get install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die 1 "apt-get could not install ${missing[*]}; its last lines stand above"
  fi
  say "$(grep -m1 -E '^Need to get' "$log" | sed 's/^Need to get/fetched/' || true) ($((SECONDS - start)) s)"
  rm -f "$log"
}

# The libtorch to build with: TORCH_ROOT, else third_party/, fetched if need be. --keep: of tools/libtorch.sh.
use_libtorch() { # use_libtorch [--keep]
  if [ -z "${TORCH_ROOT:-}" ]; then
    tools/libtorch.sh "$@" "$root/third_party" || exit 1
    TORCH_ROOT=$(tools/libtorch.sh --where "$root/third_party")
  fi
  export TORCH_ROOT
}

# Says how far the build that writes LOG has come: in place on a terminal, else every 30 s. Ends by itself with ./dev.
watch_build() { # watch_build LOG
  local steps="" second=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    second=$((second + 1))
    steps=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$1" 2>/dev/null | tail -n 1) || true
    [ -n "$steps" ] || continue
    if [ -t 2 ]; then
      printf '\rdev: %s \r' "$steps" >&2
    elif [ $((second % 30)) = 0 ]; then
      say "$steps"
    fi
  done
}

# build PRESET [CMAKE-ARGS...]: configures and builds the targets $build_target, or everything.
build() {
  local preset=$1 log start=$SECONDS watcher good=yes
  shift
  log=$root/build/$preset.log
  mkdir -p "$root/build"
  # With other warnings it is the same code: the demo and the package tests compile little anew.
  if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_IGNOREOPTIONS="-W*"
  fi
  say "building $preset (log: build/$preset.log)"
  : >"$log"
  watch_build "$log" &
  watcher=$!
  # shellcheck disable=SC2086
  { cmake --preset "$preset" "$@" && cmake --build "build/$preset" --target ${build_target:-all}; } >"$log" 2>&1 || good=no
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  if [ $good = no ]; then
    grep -E "error|FAILED|CMake Error" -A3 "$log" | head -n 40 >&2 || true
    die 1 "build of preset $preset failed; the whole log is build/$preset.log"
  fi
  say "built $preset ($((SECONDS - start)) s)"
}

# Bench and soak never run two at a time.
hold_lock() {
  mkdir -p "$root/build"
  exec 8>"$root/build/timing.lock"
  flock -n 8 || die 1 "another bench or soak holds build/timing.lock; two timing things at once measure nothing"
}
