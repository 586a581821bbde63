# ./dev demo [-- ARGS]: from nothing to a trained model. Set-up, build and run are timed apart.
[ "${1:-}" = -- ] && shift
started=$SECONDS
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch $packages_data
use_libtorch
ready=$SECONDS
build_target=demo build demo
built=$SECONDS
ranks=$(nproc)
say "training on $ranks ranks: build/demo/cli/tutti run -n $ranks build/demo/examples/07_fashion_mnist/fashion_mnist $*"
build/demo/cli/tutti run -n "$ranks" build/demo/examples/07_fashion_mnist/fashion_mnist "$@"
say "set-up $((ready - started)) s, build $((built - ready)) s, training $((SECONDS - built)) s"
