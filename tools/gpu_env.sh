# To be sourced at the root of the repository, as build/gpu-carry/env.sh: unpacks what `./dev gpu --prepare` has made, into
# build/gpu-carried, and points the loader at it and at the libraries of Python's torch.
tutti_carry=$PWD/build/gpu-carry tutti_carried=$PWD/build/gpu-carried
if ! cmp -s "$tutti_carry/programs.tar.xz" "$tutti_carried/from"; then
  rm -rf "$tutti_carried"
  mkdir -p "$tutti_carried"
  if command -v xz >/dev/null; then
    tar -C "$tutti_carried" -xJf "$tutti_carry/programs.tar.xz"
  else
    python3 -m tarfile -e "$tutti_carry/programs.tar.xz" "$tutti_carried"
  fi
  for tutti_library in "$tutti_carried"/absent/*; do
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q "^[[:space:]]*${tutti_library##*/} " ||
      cp "$tutti_library" "$tutti_carried/lib/"
  done
  cp "$tutti_carry/programs.tar.xz" "$tutti_carried/from"
fi
# NCCL of a version that serves several ranks on one GPU, for those jobs alone: programs with torch use the one that it came with.
tutti_nccl=$tutti_carried/nccl/libnccl.so.2
unset TUTTI_TEST_GPU_NCCL
if [ -f "$tutti_carry/libnccl.so.2.xz" ]; then
  if ! cmp -s "$tutti_carry/libnccl.so.2.xz" "$tutti_carried/nccl/from"; then
    rm -rf "$tutti_carried/nccl"
    mkdir -p "$tutti_carried/nccl"
    if command -v xz >/dev/null; then
      xz -dc "$tutti_carry/libnccl.so.2.xz" >"$tutti_nccl"
    else
      python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$tutti_carry/libnccl.so.2.xz" "$tutti_nccl"
    fi && cp "$tutti_carry/libnccl.so.2.xz" "$tutti_carried/nccl/from"
  fi
  [ -f "$tutti_carried/nccl/from" ] && export TUTTI_TEST_GPU_NCCL=$tutti_nccl
fi
# Python's torch, the NCCL and the CUDA that it is used with.
tutti_libraries=$(python3 - <<'PYTHON'
import glob, importlib.util, os, sys
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    torch = os.path.dirname(spec.origin)
    version = open(torch + "/version.py").read()
    if "'2.11.0" not in version:
        print("env.sh: the programs are linked with torch 2.11.0, here is another one:", version, file=sys.stderr)
    print(":".join([torch + "/lib", *sorted(glob.glob(os.path.dirname(torch) + "/nvidia/*/lib"))]))
PYTHON
)
[ -n "$tutti_libraries" ] || echo "env.sh: python3 knows no torch: programs with it will not start" >&2
case ":${LD_LIBRARY_PATH:-}:" in
  *":$tutti_carried/lib:"*) ;;
  *) export LD_LIBRARY_PATH="$tutti_carried/lib${tutti_libraries:+:$tutti_libraries}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PATH="$tutti_carried/cli:$tutti_carried/bin:$PATH" ;;
esac
export TUTTI_BACKEND_PATH=$tutti_carried/lib
export TUTTI_TEST_CUDA=real  # and not the stand-in
# Open MPI was built for other places.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OPAL_PREFIX=$tutti_carried OPAL_BINDIR=$tutti_carried/bin OPAL_LIBDIR=$tutti_carried/lib
export OPAL_PKGLIBDIR=$tutti_carried/openmpi/components OPAL_PKGDATADIR=$tutti_carried/openmpi/share OPAL_DATADIR=$tutti_carried/openmpi/share
export PMIX_MCA_pcompress_base_silence_warning=1 OMPI_MCA_mca_base_component_path=$tutti_carried/openmpi/components
unset tutti_carry tutti_carried tutti_libraries tutti_library tutti_nccl
