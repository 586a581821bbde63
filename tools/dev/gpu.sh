# ./dev gpu --prepare: builds what a machine with a GPU, and without our packages, needs, into build/gpu-carry.
# ./dev gpu [--budget SECONDS] [--only NAME] [--list]: there, from what was carried: runs it. Nothing is compiled or installed.
if [ "${1:-}" != --prepare ]; then
  [ -f build/gpu-carry/env.sh ] || die 1 "build/gpu-carry is missing: ./dev gpu --prepare makes it where there are packages; carry it here"
  # shellcheck source=/dev/null
  . build/gpu-carry/env.sh
  exec python3 tools/gpu.py --build build/gpu-carried --out "${OUT:-build/gpu}" "$@"
fi
# shellcheck disable=SC2086
install_packages $packages_build $packages_torch $packages_data $packages_bench libgtest-dev python3 xz-utils
tools/libtorch.sh --cuda third_party || exit 1
TORCH_ROOT=$(tools/libtorch.sh --cuda --where "$root/third_party")
export TORCH_ROOT
tools/nccl.sh third_party || exit 1
build_target=carried build carry
tools/gpu_carry.sh build/carry build/gpu-carry "$(tools/nccl.sh --where third_party)" || exit 1
say "build/gpu-carry: $(du -sh build/gpu-carry | cut -f1); on the other machine: ./dev gpu, or . build/gpu-carry/env.sh for anything else"
