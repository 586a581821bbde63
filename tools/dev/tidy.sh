# ./dev tidy: the rules of the house, formatting, clang-tidy over the core.
# shellcheck disable=SC2086
install_packages $packages_build $packages_test $packages_backends
python3 tools/tidy.py
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror
# Only the commands of a build are wanted, not its files.
cmake --preset asan -B build/tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
python3 tools/clang_tidy.py --build build/tidy "$@"
