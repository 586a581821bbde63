#!/usr/bin/env bash
# A libtorch download that was cut, has a wrong hash or is missing is refused, named, and unpacks nothing.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
expect() { # expect TEXT [--oldest]: the tool must fail and say TEXT
  local text=$1
  shift
  if "$source/tools/libtorch.sh" "$@" --from "$work/wheels" "$work/out" 2>"$work/said"; then
    echo "it accepted bad wheels"; exit 1
  fi
  grep -q "$text" "$work/said" || { echo "expected '$text', it said:"; cat "$work/said"; exit 1; }
  [ ! -e "$(dirname "$("$source/tools/libtorch.sh" "$@" --where "$work/out")")" ] || { echo "something was unpacked"; exit 1; }
}
for which in "" --oldest; do
  rm -rf "$work/wheels"
  mkdir "$work/wheels"
  # shellcheck disable=SC2086
  expect "torch-.* is missing from" $which
  name=$(sed -n 's/^libtorch: \(torch-[^ ]*whl\) is missing.*/\1/p' "$work/said")
  head -c 1000 /dev/zero >"$work/wheels/$name"
  # shellcheck disable=SC2086
  expect "$name (1000 bytes) has SHA-256 .* expected" $which
done
[ "$("$source/tools/libtorch.sh" --where "$work")" != "$("$source/tools/libtorch.sh" --oldest --where "$work")" ]
