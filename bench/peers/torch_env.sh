#!/usr/bin/env bash
# Makes a virtual environment in FOLDER with the wheel of torch, for its CPU part alone, and prints its Python.
#   bench/peers/torch_env.sh FOLDER
# The wheel's Python module is linked against NVIDIA's libraries, 2.5 GB that a CPU never calls: four small libraries that
# define the missing functions stand for them.
set -euo pipefail

version=2.15.0
folder=${1:?usage: bench/peers/torch_env.sh FOLDER}
python=$folder/bin/python

if [ -f "$folder/complete" ]; then
  echo "$PWD/$python"
  exit 0
fi
{
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "torch_env: torch $version wants Python 3.11 or later"
    exit 1
  }
  python3 -m venv "$folder"
  "$python" -m pip install --quiet --no-deps "torch==$version"
  "$python" -m pip install --quiet filelock typing_extensions sympy networkx jinja2 fsspec numpy
  torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')

  # stand_in SONAME PATTERN FOLDER: defines every function of that name which torch wants.
  stand_in() {
    mkdir -p "$3"
    for library in cuda python cuda_linalg nvshmem cpu; do
      nm -D "$torch/lib/libtorch_$library.so" 2>/dev/null || true
    done | awk '$1 == "U" || $1 == "w" {print $2}' | sed 's/@.*//' | grep -E "$2" | sort -u |
      sed '1i void abort(void);
s/.*/void &(void) { abort(); }/' >"$folder/stand_in.c"
    gcc -shared -fPIC -w "-Wl,-soname,$1" "$folder/stand_in.c" -o "$3/$1"
  }
  # Folders that the wheel's RPATH names.
  stand_in libcufile.so.0 '^cuFile' "$torch/../nvidia/cu13/lib"
  stand_in libcusparseLt.so.0 '^cusparseLt' "$torch/../nvidia/cu13/lib"
  stand_in libnvshmem_host.so.3 '^nvshmem' "$torch/../nvidia/cu13/lib"
  stand_in libnccl.so.2 '^p?nccl' "$torch/../nvidia/nccl/lib"
  "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()'
  touch "$folder/complete"
} >&2
echo "$PWD/$python"
