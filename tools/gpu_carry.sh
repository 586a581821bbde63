#!/usr/bin/env bash
# tools/gpu_carry.sh BUILD FOLDER NCCL: gathers in FOLDER what `./dev gpu` needs on a machine with a GPU, CUDA and Python's torch,
# and without our packages: BUILD's programs and libraries, Debian's libraries that they load, Open MPI, Fashion-MNIST, and the
# library NCCL with code for one kind of GPU (TUTTI_GPU_KIND, sm_90).
set -euo pipefail

build=$1 folder=$2 nccl=$3 kind=${TUTTI_GPU_KIND:-sm_90}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage=$build/stage
rm -rf "$stage" "$folder"
mkdir -p "$stage/lib" "$stage/absent" "$folder/data"

# take FILE PATH: a program or library, without what only a debugger reads.
take() {
  mkdir -p "$(dirname "$stage/$2")"
  cp -L "$1" "$stage/$2"
  chmod u+w "$stage/$2"
  strip --strip-unneeded "$stage/$2"
}

# Programs, where the build has them: scripts that are given a build folder find them.
for program in "$build"/cli/tutti "$build"/bench/*/* "$build"/tests/*/*_rank "$build"/examples/0[6-9]_*/*; do
  case "$program" in *mpich*) continue ;; esac
  if [ -f "$program" ] && [ -x "$program" ]; then take "$program" "${program#"$build/"}"; fi
done
while read -r program words; do
  [ -n "$program" ] || continue
  path=${program#"$PWD/$build/"}
  take "$program" "$path"
  echo "$path $words"
done <"$build/gpu_programs.txt" >"$stage/gpu_programs.txt"
for library in "$build"/libtutti.so "$build"/src/ddp/torch/libtutti_torch.so; do
  take "$library" "lib/$(objdump -p "$library" | awk '/SONAME/ { print $2 }')"
done
for plugin in "$build"/libtutti_backend_*.so; do
  case "$plugin" in *mpich*) ;; *) take "$plugin" "lib/$(basename "$plugin")" ;; esac
done

# Open MPI of this system, without the parts for networks.
components=$(dirname "$(find /usr/lib -path '*/openmpi3/mca_btl_vader.so')")
[ -f "$components/mca_btl_vader.so" ] || { echo "gpu_carry: Open MPI 4 of Debian is missing: apt install openmpi-bin" >&2; exit 1; }
take "$(command -v orterun)" bin/mpirun.openmpi
take "$(command -v orted)" bin/orted
for component in "$components"/mca_*.so; do
  case "$component" in *ofi* | *ucx* | *openib* | *psm* | *usnic* | *oshmem* | *spml* | *sshmem* | *romio* | *portals* | *monitoring*) continue ;; esac
  case "$(ldd "$component")" in *libfabric* | *libucp* | *libpsm* | *librdmacm* | *liboshmem* | *"not found"*) continue ;; esac
  take "$component" "openmpi/components/$(basename "$component")"
done
mkdir -p "$stage/openmpi/share"
cp -rL /usr/share/openmpi/. "$stage/openmpi/share/"

# What all of these load: Debian's own libraries in lib; in absent those that most systems have, for those that have not.
find "$stage" -type f \( -perm -u+x -o -name '*.so*' \) -print0 | xargs -0 -n 1 ldd 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  name=$(basename "$library")
  [ -f "$stage/lib/$name" ] && continue
  case "$library" in *torch* | *cuda* | *nvidia* | *libgomp*) continue ;; esac
  case "$name" in
    libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libutil.so* | libstdc++.so* | libgcc_s.so* | ld-linux*) ;;
    libcrypto.so* | libz.so* | libudev.so* | libcap.so*) take "$library" "absent/$name" ;;
    *) take "$library" "lib/$name" ;;
  esac
done

cp -L /usr/share/datasets/fashion-mnist/*-ubyte.gz "$folder/data/"
git rev-parse --short HEAD >"$stage/commit"
cp tools/gpu_env.sh "$folder/env.sh"
tar -C "$stage" --sort=name --mtime=@0 -cf - . | xz -3 -T0 >"$folder/programs.tar.xz"

thinned=$build/libnccl.so.2
tools/gpu_thin.py "$nccl" "$thinned" --keep "$kind"
strip --strip-unneeded "$thinned"
xz -6 -T0 -c "$thinned" >"$folder/libnccl.so.2.xz"
rm "$thinned"

# The tree and the folder travel together: at most 64 MiB.
bytes=$(($(git ls-files -z --cached --others --exclude-standard | xargs -0 stat -c %s | awk '{ sum += $1 } END { printf "%d", sum }') + $(du -sb "$folder" | cut -f1)))
[ "$bytes" -lt $((62 << 20)) ] || { echo "gpu_carry: the tree and $folder have $((bytes >> 20)) MiB, more than the 62 that travel" >&2; exit 1; }
