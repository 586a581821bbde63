#!/usr/bin/env bash
# Puts NCCL's library out of NVIDIA's Python wheel into FOLDER/nccl-VERSION: the version that serves several ranks on one GPU.
#   tools/nccl.sh [--from WHEELS] FOLDER    fetch (or take from the folder WHEELS), check, unpack
#   tools/nccl.sh --where FOLDER            print where the library is (or will be)
set -euo pipefail

usage="usage: tools/nccl.sh [--from WHEELS | --where] FOLDER"
version=2.30.7
hash=cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50
file=nvidia_nccl_cu13-$version-py3-none-manylinux_2_18_x86_64.whl

die() {
  echo "nccl: $*" >&2
  exit 1
}

from=
where=
while [ $# -gt 1 ]; do
  case "$1" in
    --from) from=$2; shift 2 ;;
    --where) where=1; shift ;;
    *) die "unknown option '$1'; $usage" ;;
  esac
done
folder=${1:-}
[ -n "$folder" ] || die "$usage"
target=$folder/nccl-$version
if [ -n "$where" ]; then
  echo "$target/libnccl.so.2"
  exit 0
fi
[ -f "$target/libnccl.so.2" ] && exit 0
[ "$(uname -m)" = x86_64 ] || die "no pinned wheel for $(uname -m)"

work=$folder/nccl-$version.tmp
rm -rf "$work"
mkdir -p "$work"
wheel=${from:-$work}/$file
if [ -z "$from" ]; then
  echo "nccl: fetching NCCL $version: 216 MB to download, 252 MB unpacked" >&2
  pip=$(command -v pip3 || command -v pip) || die "pip is missing; install the Debian package python3-pip"
  "$pip" download --quiet --no-deps --only-binary=:all: --platform manylinux_2_18_x86_64 -d "$work" "nvidia-nccl-cu13==$version" >&2 ||
    die "pip could not download nvidia-nccl-cu13==$version; run it again"
fi
[ -f "$wheel" ] || die "$file is missing from ${from:-$work}"
seen=$(sha256sum "$wheel" | cut -d' ' -f1)
if [ "$seen" != "$hash" ]; then
  bytes=$(stat -c %s "$wheel")
  rm -rf "$work"
  die "$file ($bytes bytes) has SHA-256 $seen, expected $hash: the download was cut or changed; nothing was unpacked. Run it again"
fi
unzip -q -j "$wheel" nvidia/nccl/lib/libnccl.so.2 -d "$work"
[ -n "$from" ] || rm "$wheel"
rm -rf "$target"
mv "$work" "$target"
echo "nccl: $version is in place" >&2
