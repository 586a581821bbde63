# ./dev build [PRESET]
preset=${1:-dev}
# shellcheck disable=SC2086
case "$preset" in
  release | dev) install_packages $packages_build $packages_torch libgtest-dev && use_libtorch ;;
  asan | tsan) install_packages $packages_build $packages_test ;;
  *) die 2 "unknown preset '$preset' (release, dev, asan, tsan)" ;;
esac
build "$preset"
