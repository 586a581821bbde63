#!/usr/bin/env bash
# A libtorch download that was cut, has a wrong hash or is missing is refused, named, and unpacks nothing.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/wheels"
expect() { # expect TEXT: the tool must fail and say TEXT
  if "$source/tools/libtorch.sh" --from "$work/wheels" "$work/out" 2>"$work/said"; then
    echo "it accepted bad wheels"; exit 1
  fi
  grep -q "$1" "$work/said" || { echo "expected '$1', it said:"; cat "$work/said"; exit 1; }
  [ ! -e "$(dirname "$("$source/tools/libtorch.sh" --where "$work/out")")" ] || { echo "something was unpacked"; exit 1; }
}
expect "is missing from"
name=$(sed -n 's/^torch==.* \(torch-.*whl\)$/\1/p;s/^wheels="\\$//p' "$source/tools/libtorch.sh" | grep whl)
head -c 1000 /dev/zero >"$work/wheels/$name"
expect "(1000 bytes) has SHA-256 .* expected"
