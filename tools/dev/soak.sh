# ./dev soak NAME [--rounds N] [--seed S]
name=${1:-}
[ $# -gt 0 ] && shift
soaks=" kills disagreements orphans "
case "$soaks" in *" $name "*) ;; *) die 2 "unknown soak '$name' (${soaks## })" ;; esac
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch libgtest-dev
use_libtorch
build release
hold_lock
mkdir -p docs/evidence
"build/release/tests/soak/soak_$name" --out "docs/evidence/$name.json" "$@"
