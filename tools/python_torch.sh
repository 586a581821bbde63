#!/usr/bin/env bash
# Makes a virtual environment with Python's torch, for tests of torchrun and of Python programs beside ours.
#   tools/python_torch.sh FOLDER            make FOLDER/python-torch-VERSION, once, from the wheels of tools/libtorch.sh
#   tools/python_torch.sh --where FOLDER    print where it is (or will be)
# --oldest before any of these: the oldest torch for which the backend of torch.distributed is built.
# It computes on CPUs alone. The wheel's other libraries want 3 GB of CUDA, of which nothing is ever called: stubs stand in for them.
set -euo pipefail

# What torch.distributed imports besides torch, and what its own tests import; the hash of torch's own wheel is checked by tools/libtorch.sh.
needed="\
typing_extensions==4.15.0 --hash=sha256:f0fa19c6845758ab08074a0cfa8b7aecb71c999ca73d62883bc25cc018c4e548
sympy==1.14.0 --hash=sha256:e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5
mpmath==1.3.0 --hash=sha256:a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c
expecttest==0.3.0 --hash=sha256:60f88103086e1754240b42175f622be83b6ffeac419434691ee5a5be819d0544
setuptools==81.0.0 --hash=sha256:fdd925d5c5d9f62e4b74b30d6dd7828ce236fd6ed998a08d81de62ce5a6310d6
filelock==4.3.1 --hash=sha256:79e43df8e9fe509cd83a3899a7c186c8077cbbe4d200a1ed3705c2f3bb6bc487
fsspec==2026.9.0 --hash=sha256:8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f
networkx==3.6.1 --hash=sha256:d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762
numpy==2.4.6 --hash=sha256:89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93"
# For its models, with what it imports. It asks for torch 2.14 or newer; there is none of 2.15.
torchvision="\
torchvision==0.29.2 --hash=sha256:0875f7a23bd298813240f716c56df44ce72ddb45146589442a38edd0e1f59637
pillow==13.0.0 --hash=sha256:a625df9a2a5597fa5e5266e01aefc82604bb85d291e3547981e863560d75da6c"

die() {
  echo "python_torch: $*" >&2
  exit 1
}

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
modules="torch.distributed.run, torch.nn.parallel" which=()
if [ "${1:-}" = --oldest ]; then
  which=(--oldest-python)
  shift
else
  needed+=$'\n'$torchvision modules+=", torchvision.models"
fi
where=
if [ "${1:-}" = --where ]; then where=1; shift; fi
folder=${1:-}
[ -n "$folder" ] || die "usage: tools/python_torch.sh [--oldest] [--where] FOLDER"
libtorch=$(dirname "$("$tools/libtorch.sh" "${which[@]}" --where "$folder")")
version=${libtorch##*-}
target=$(dirname "$libtorch")/python-torch-$version
if [ -n "$where" ]; then
  echo "$target"
  exit 0
fi
if [ -f "$target/complete" ] && [ "$(<"$target/complete")" = "$needed" ]; then exit 0; fi

# The wheel is for this Python alone. The system's is one that all users may run.
python=
for name in /usr/bin/python3 python3.11 python3; do
  if "$name" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then python=$name; break; fi
done
[ -n "$python" ] || die "the pinned wheel is for Python 3.11, which is not here"
pip=$(command -v pip3 || command -v pip) || die "pip is missing; install the Debian package python3-pip"

start=$SECONDS
echo "python_torch: making Python's torch $version: 1.4 GB in ${target#"$PWD/"}, 590 MB to download unless they are at hand" >&2
"$tools/libtorch.sh" "${which[@]}" --wheels "$folder"
download=$folder/download
rm -rf "$target"
"$python" -m venv --without-pip "$target"
site=$target/lib/python3.11/site-packages
install=("$pip" --python "$target/bin/python" install --quiet --no-deps --disable-pip-version-check)
{ "${install[@]}" "$download"/torch-"$version"-*.whl && "${install[@]}" --require-hashes -r /dev/stdin <<<"$needed"; } >&2 ||
  die "pip could not install torch $version and what it needs"
stubs=$site/nvidia/cu13/lib  # a folder in which the wheel's libraries look
unzip -q "$download"/nvidia_cuda_runtime-*.whl 'nvidia/cu13/lib/libcudart.so*' -d "$site"
unzip -q "$download"/nvidia_cuda_cupti-*.whl 'nvidia/cu13/lib/libcupti.so*' -d "$site"

# stub SONAME PATTERN: a library with the functions that torch's libraries want and that match, of the versions that they want.
stub() {
  local source=$work/stub.c versions=$work/stub.map
  {
    echo 'void abort(void);'
    awk -v pattern="$2" '{ name = $1; sub("@.*", "", name); if (name ~ pattern) print "void " name "(void) { abort(); }" }' "$work/wanted"
  } >"$source"
  awk -v pattern="$2" '
    { name = version = $1; sub("@.*", "", name) }
    name ~ pattern && sub(".*@", "", version) { names[version] = names[version] " " name ";" }
    END { for (version in names) print version " {" names[version] " };" }' "$work/wanted" >"$versions"
  local script=()
  [ -s "$versions" ] && script=("-Wl,--version-script=$versions")
  gcc -shared -fPIC -w -fno-builtin "-Wl,-soname,$1" "${script[@]}" "$source" -o "$stubs/$1" || die "no compiler could make the stub $1"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -D --undefined-only "$site"/torch/lib/*.so | awk 'NF > 1 { print $NF }' | sort -u >"$work/wanted"
stub libcublas.so.13 '^cublas([^L]|L[^t])'
stub libcublasLt.so.13 '^cublasLt'
stub libcudnn.so.9 '^cudnn'
stub libcufft.so.12 '^cufft'
stub libcufile.so.0 '^cuFile'
stub libcusolver.so.12 '^cusolver'
stub libcusparse.so.12 '^cusparse([^L]|L[^t])'
stub libcusparseLt.so.0 '^cusparseLt'
stub libnccl.so.2 '^p?nccl'
stub libnvrtc.so.13 '^nvrtc'
stub libnvshmem_host.so.3 '^nvshmem'

"$target/bin/python" -c "import $modules" >"$work/said" 2>&1 || {
  tail -n 3 "$work/said" >&2
  die "Python's torch $version does not load; its last words stand above"
}
echo "$needed" >"$target/complete"  # one that was made with less is made anew
rm -rf "$download"
echo "python_torch: $version is in place ($((SECONDS - start)) s)" >&2
