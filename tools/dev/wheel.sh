# ./dev wheel: builds the Python wheel into build/wheel and tries it in empty environments, without torch and with it.
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch git python3 python3-dev python3-venv binutils gcc
tools/python_torch.sh "$root/third_party" || die 1 "Python's torch could not be had; without it: python3 tests/python/wheel_test.py"
exec python3 tests/python/wheel_test.py --torch "$(tools/python_torch.sh --where "$root/third_party")" --out build/wheel "$@"
