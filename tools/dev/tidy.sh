# ./dev tidy: the rules of the house, formatting, clang-tidy over the core (build/asan gives the commands).
# shellcheck disable=SC2086
install_packages $packages_build $packages_test $packages_backends
python3 tools/tidy.py
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror
[ -f build/asan/compile_commands.json ] || build asan
python3 tools/clang_tidy.py --build build/asan "$@"
