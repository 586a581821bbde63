#!/usr/bin/env python3
"""Trains one model on every backend and compares the parameters with native's: to the bit for two ranks, else within a bound."""
import argparse
import array
import os
import shutil
import subprocess
import sys
import tempfile

BOUND = {"f64": 1e-12, "f32": 1e-6}
LIMIT = 200  # seconds for one run


def parameters(command, path, dtype):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    if done.returncode:
        sys.exit(f"ddp_backends: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    values = array.array("d" if dtype == "f64" else "f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--backends", nargs="*", default=[], help="of gloo, openmpi, mpich")
    options = parser.parse_args()
    launchers = {"native": [options.tutti, "run"], "gloo": [options.tutti, "run"],
                 "openmpi": ["mpirun.openmpi", "--oversubscribe"], "mpich": ["mpiexec.mpich"]}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "parameters")
        for ranks in (2, 4):
            for dtype, bound in BOUND.items():
                def run(name):
                    backend = name if name in ("native", "gloo") else "mpi"
                    return parameters([*launchers[name], "-n", str(ranks), options.program, backend, dtype, path], path, dtype)
                native = run("native")
                if not any(native):
                    sys.exit("ddp_backends: native left nothing")
                for name in options.backends:
                    if not shutil.which(launchers[name][0]):
                        print(f"{name}: {launchers[name][0]} is not installed, left out")
                        continue
                    furthest = max(abs(a - b) for a, b in zip(native, run(name)))
                    print(f"{name}, {ranks} ranks, {dtype}: parameters differ from native's by at most {furthest:.3g}")
                    if furthest > (0 if ranks == 2 else bound):
                        sys.exit("ddp_backends: that is too far")


if __name__ == "__main__":
    main()
