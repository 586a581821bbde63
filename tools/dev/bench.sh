# ./dev bench peers [ARGS] | backends [ARGS] | micro
name=${1:-}
[ $# -gt 0 ] && shift
# shellcheck disable=SC2086
install_packages $packages_build $packages_bench libgtest-dev python3
hold_lock
case "$name" in
  peers) build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/run.py --build build/release "$@" ;;
  backends) build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/overhead.py --build build/release "$@" ;;
  micro) build release -DTUTTI_BUILD_BENCH=ON && build/release/bench/micro/call_cost "$@" ;;
  *) die 2 "unknown bench '$name' (peers, backends, micro)" ;;
esac
