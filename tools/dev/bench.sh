# ./dev bench peers [ARGS] | net [ARGS] | backends [ARGS] | neighbours [ARGS] | training [ARGS] | pytorch [ARGS] | init [ARGS] | micro [--before BUILD]
name=${1:-}
[ $# -gt 0 ] && shift
# shellcheck disable=SC2086
install_packages $packages_build $packages_bench libgtest-dev python3
hold_lock
case "$name" in
  peers) build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/run.py --build build/release "$@" ;;
  net)
    # shellcheck disable=SC2086
    install_packages $packages_net
    build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/net.py --build build/release "$@"
    ;;
  init)
    # shellcheck disable=SC2086
    install_packages $packages_backends $packages_torch
    tools/python_torch.sh third_party || true # without it torchrun is left out
    build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/init.py --build build/release "$@"
    ;;
  backends) build release -DTUTTI_BUILD_BENCH=ON && python3 bench/peers/overhead.py --build build/release "$@" ;;
  neighbours)
    build release -DTUTTI_BUILD_BENCH=ON -DTUTTI_WITH_TORCH=ON
    tools/python_torch.sh third_party && set -- --python "$(tools/python_torch.sh --where third_party)/bin/python" "$@"
    python3 bench/peers/neighbours.py --build build/release "$@"
    ;;
  training)
    # shellcheck disable=SC2086
    install_packages $packages_torch $packages_data $packages_net
    use_libtorch --keep
    tools/python_torch.sh "$root/third_party" || die 1 "Python's torch could not be had; without it: python3 bench/peers/training.py --only overlap,link"
    build release -DTUTTI_BUILD_BENCH=ON -DTUTTI_WITH_TORCH=ON
    python3 bench/peers/training.py --build build/release --python "$(tools/python_torch.sh --where "$root/third_party")/bin/python" "$@"
    ;;
  pytorch)
    # shellcheck disable=SC2086
    install_packages $packages_torch
    tools/python_torch.sh "$root/third_party" || die 1 "bench pytorch needs Python's torch, which could not be had"
    build release && python3 bench/peers/pytorch.py --build build/release --python "$(tools/python_torch.sh --where "$root/third_party")/bin/python" "$@"
    ;;
  micro)
    build release -DTUTTI_BUILD_BENCH=ON
    if [ "${1:-}" = --before ]; then # in turns: the machine changes from minute to minute
      for _ in 1 2 3 4 5; do
        echo "before: $("${2:?BUILD is missing}"/bench/micro/call_cost)"
        echo "now:    $(build/release/bench/micro/call_cost)"
      done
    else
      build/release/bench/micro/call_cost "$@"
    fi
    ;;
  *) die 2 "unknown bench '$name' (peers, net, backends, neighbours, training, pytorch, init, micro)" ;;
esac
