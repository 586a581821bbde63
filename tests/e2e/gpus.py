#!/usr/bin/env python3
"""GPUs as `tutti env --gpus` and `tutti run` see them: by a stand-in for NVML and by devices that are only names.

  tests/e2e/gpus.py --tutti TUTTI --nvml FOLDER    FOLDER holds the stand-in, libnvidia-ml.so.1
"""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

WAYS = [["SELF", "NV2", "NODE", "SYS"], ["NV2", "SELF", "SYS", "PXB"], ["NODE", "SYS", "SELF", "NV4"], ["SYS", "PXB", "NV4", "SELF"]]


def run(*words, **variables):
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(words, env={**kept, **variables}, capture_output=True, text=True, timeout=60)


def check(good, what, job):
    if not good:
        sys.exit(f"{what}\nexit code {job.returncode}\n{job.stdout}{job.stderr}")


def has_driver():
    try:
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
    except (OSError, AttributeError):
        return False


def check_env(tutti, nvml):
    library = {"LD_LIBRARY_PATH": nvml}
    job = run(tutti, "env", "--gpus", **library)
    rows = [line.split() for line in job.stdout.splitlines() if line.startswith("GPU")]
    check(job.returncode == 0 and len(rows) == 4, "four GPUs", job)
    for gpu, row in enumerate(rows):
        check(row[:5] == [f"GPU{gpu}", *WAYS[gpu]] and row[6] == "N/A", f"row {gpu} of the matrix: {row}", job)
    for words in ("driver of NVIDIA 580.0.stand-in, for CUDA up to 13.0: 4 GPUs",
                  "GPU1: Stand-in GPU, 81920 MiB, at 0000:1c:00.0, GPU-1", "near cores 0-3; 2 lanes of NVLink: GPU0 (2)",
                  "GPU3: Stand-in GPU, memory not told,", "near cores 4-7,64; 6 lanes of NVLink: GPU3 (4)"):
        check(words in job.stdout, words, job)
    facts = json.loads(run(tutti, "env", "--gpus", "--json", **library).stdout)
    check(facts["ways"] == WAYS and facts["gpus"][2]["nvlink_lanes"] == 6 and facts["cuda"] == "13.0", str(facts), job)
    job = run(tutti, "env", "--gpus", NVML_STANDIN_INIT="9", **library)
    check(job.returncode == 1 and "libnvidia-ml.so.1 is here, and the driver is not: Driver Not Loaded (9)" in job.stderr,
          "no driver behind the library", job)
    if not has_driver():
        job = run(tutti, "env", "--gpus")
        check(job.returncode == 1 and job.stdout == "" and "cannot load libnvidia-ml.so.1" in job.stderr and
              "package libnvidia-ml1" in job.stderr, "no library", job)


def check_run(tutti):
    job = run(tutti, "run", "-n", "gpu", "true", CUDA_VISIBLE_DEVICES="")
    check(job.returncode == 2 and "-n gpu: there is no GPU: " in job.stderr, "no GPU to run on", job)
    job = run(tutti, "run", "-n", "2", "--gpus-per-rank", "0", "true")
    check(job.returncode == 2 and "--gpus-per-rank 0: give a number from 1 to 1024" in job.stderr, "no number", job)


def check_devices(tutti):
    """In a namespace of its own, whose /dev has four more devices."""
    with tempfile.TemporaryDirectory() as folder:
        for gpu in range(4):
            pathlib.Path(folder, f"nvidia{gpu}").touch()

        def among(*words, **variables):
            return run("unshare", "-m", "sh", "-c", f'mount -t overlay none -o lowerdir={folder}:/dev /dev || exit 77; exec "$@"', "sh",
                       *words, **variables)

        if os.path.exists("/dev/nvidia0") or os.geteuid() != 0 or among("true").returncode != 0:
            print("without devices that are only names: no right to put some into /dev")
            return
        said = ["sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE sees $CUDA_VISIBLE_DEVICES"]
        for words, variables, seen in ((["-n", "gpu"], {}, ["", "", "", ""]),
                                       (["-n", "gpu"], {"CUDA_VISIBLE_DEVICES": "3,1"}, ["3,1", "3,1"]),
                                       (["-n", "gpu", "-x", "CUDA_VISIBLE_DEVICES=3,1"], {"CUDA_VISIBLE_DEVICES": "0"}, ["3,1", "3,1"]),
                                       (["-n", "gpu", "--gpus-per-rank", "2"], {}, ["0,1", "2,3"]),
                                       (["-n", "2", "--gpus-per-rank", "1"], {"CUDA_VISIBLE_DEVICES": "3,1,0"}, ["3", "1"])):
            job = among(tutti, "run", *words, *said, **variables)
            lines = [f"[{rank}] {rank} of {len(seen)} sees {gpus}".rstrip() for rank, gpus in enumerate(seen)]
            check(sorted(line.rstrip() for line in job.stdout.splitlines()) == lines, f"{words} {variables}: {lines}", job)
        job = among(tutti, "run", "-n", "3", "--gpus-per-rank", "2", "true")
        check(job.returncode == 2 and "3 ranks need 6 GPUs, and 4 can be seen here: 0,1,2,3" in job.stderr, "too few", job)
        job = among(tutti, "run", "-n", "gpu", "--gpus-per-rank", "2", "--dry-run", "true")
        check("(shared by 2 ranks) -> GPUs 2,3\n" in job.stdout, "the dry run shows them", job)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--nvml", required=True)
    options = parser.parse_args()
    check_env(options.tutti, options.nvml)
    check_run(options.tutti)
    check_devices(options.tutti)
    print("good")


if __name__ == "__main__":
    main()
