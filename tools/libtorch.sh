#!/usr/bin/env bash
# Puts libtorch into FOLDER/libtorch-VERSION: headers and CPU libraries out of the official Python wheel.
#   tools/libtorch.sh [--from WHEELS] FOLDER    fetch (or take from the folder WHEELS), check, unpack
#   tools/libtorch.sh --keep FOLDER             the same, and what was fetched stays in FOLDER/download
#   tools/libtorch.sh --wheels FOLDER           fetch into FOLDER/download and check; unpack nothing
#   tools/libtorch.sh --where FOLDER            print where it is (or will be)
# --oldest with any of these: the oldest version that Tutti is tested with. Wheels before it have another C++ ABI than Debian.
# --oldest-python with any of these: the oldest one for whose Python the backend of torch.distributed is built.
# --cuda with any of these: FOLDER/cuda-libtorch-VERSION, with the CUDA libraries that programs are linked with, and without
# those of NVIDIA's that they need to run: the version that GPU machines have as Python's torch (./dev gpu --prepare).
set -euo pipefail

usage="usage: tools/libtorch.sh [--oldest | --oldest-python | --cuda] [--from WHEELS | --keep | --wheels | --where] FOLDER"
version=2.15.0 python=3.11 kind=libtorch megabytes="555 MB to download, 550 MB unpacked"
wheels="\
torch==2.15.0                   48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl
nvidia-cuda-runtime==13.5.37    df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d nvidia_cuda_runtime-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
nvidia-cuda-cupti==13.5.25      9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650 nvidia_cuda_cupti-13.5.25-py3-none-manylinux_2_25_x86_64.whl"
oldest() {
  version=2.7.0 megabytes="875 MB to download, 490 MB unpacked"
  wheels="\
torch==2.7.0                     fd5cfbb4c3bbadd57ad1b27d56a28008f8d8753733411a140fcfb84d7f933a25 torch-2.7.0-cp311-cp311-manylinux_2_28_x86_64.whl
nvidia-cuda-runtime-cu12==12.6.77 a84d15d5e1da416dd4774cb42edf5e954a3e60cc945698dc1d5be02321c44dc8 nvidia_cuda_runtime_cu12-12.6.77-py3-none-manylinux2014_x86_64.whl
nvidia-cuda-cupti-cu12==12.6.80   a3eff6cdfcc6a4c35db968a06fcadb061cbc7d6dde548609a941ff8701b98b73 nvidia_cuda_cupti_cu12-12.6.80-py3-none-manylinux2014_x86_64.whl"
}
oldest_python() {
  version=2.11.0 megabytes="532 MB to download, 550 MB unpacked"
  wheels="\
torch==2.11.0                   7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
$(tail -n +2 <<<"$wheels")"
}
cuda() {
  version=2.11.0 python=3.12 kind=cuda-libtorch megabytes="531 MB to download, 960 MB unpacked"
  wheels="\
torch==2.11.0                   0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756 torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl"
}

die() {
  echo "libtorch: $*" >&2
  exit 1
}

from=
keep=
only_wheels=
where=
while [ $# -gt 1 ]; do
  case "$1" in
    --from) from=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    --wheels) keep=1 only_wheels=1; shift ;;
    --where) where=1; shift ;;
    --oldest) oldest; shift ;;
    --oldest-python) oldest_python; shift ;;
    --cuda) cuda; shift ;;
    *) die "unknown option '$1'; $usage" ;;
  esac
done
folder=${1:-}
[ -n "$folder" ] || die "$usage"
target=$folder/$kind-$version
if [ -n "$where" ]; then
  echo "$target/torch"
  exit 0
fi
[ -f "$target/complete" ] && [ -z "$only_wheels" ] && exit 0
[ "$(uname -m)" = x86_64 ] || die "no pinned wheel for $(uname -m); set TORCH_ROOT to a libtorch 2.x with include/ and lib/"

download=${from:-$folder/download}
mkdir -p "$download"
start=$SECONDS
if [ -z "$from" ]; then
  [ -n "$only_wheels" ] || echo "libtorch: fetching libtorch $version: $megabytes into ${target#"$PWD/"}" >&2
  pip=$(command -v pip3 || command -v pip) || die "pip is missing; install the Debian package python3-pip"
  echo "$wheels" | while read -r requirement _ file; do
    [ -f "$download/$file" ] && continue
    "$pip" download --quiet --no-deps --only-binary=:all: --python-version $python --implementation cp --abi cp${python/./} --abi none \
      --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
      -d "$download" "$requirement" >&2 ||
      die "pip could not download $requirement; run it again (what is complete is kept), or set TORCH_ROOT"
  done
fi
echo "$wheels" | while read -r _ hash file; do
  [ -f "$download/$file" ] || die "$file is missing from $download"
  seen=$(sha256sum "$download/$file" | cut -d' ' -f1)
  if [ "$seen" != "$hash" ]; then
    bytes=$(stat -c %s "$download/$file")
    [ -n "$from" ] || rm -f "$download/$file"
    die "$file ($bytes bytes) has SHA-256 $seen, expected $hash: the download was cut or changed; nothing was unpacked. Run it again"
  fi
done
[ -n "$only_wheels" ] && exit 0

rm -rf "$target.tmp"
mkdir -p "$target.tmp"
mapfile -t files < <(awk '{ print $3 }' <<<"$wheels")
libraries=('torch/lib/libtorch_cpu*' 'torch/lib/libc10.so' 'torch/lib/libgomp*')
[ $kind = libtorch ] || libraries+=('torch/lib/libtorch_cuda.so' 'torch/lib/libc10_cuda.so')
unzip -q "$download/${files[0]}" 'torch/include/*' "${libraries[@]}" -d "$target.tmp"
if [ $kind = libtorch ]; then
  unzip -q "$download/${files[1]}" 'nvidia/*/lib/libcudart.so*' -d "$target.tmp"
  unzip -q "$download/${files[2]}" 'nvidia/*/lib/libcupti.so*' -d "$target.tmp"
fi
touch "$target.tmp/complete"
rm -rf "$target"
mv "$target.tmp" "$target"
[ -n "$from$keep" ] || rm -rf "$download"
echo "libtorch: $version is in place ($((SECONDS - start)) s)" >&2
