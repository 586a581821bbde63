#!/usr/bin/env python3
"""Beside busy foreign loops of the same priority: all_reduce of native, Gloo and Open MPI, and the main job on the backends
native, gloo and mpi beside Python's DistributedDataParallel over Gloo, in one run. The main job runs twice: all ranks in the
session of the loops, and each in one of its own as torchrun starts them. How: bench/peers/README.md.

  bench/peers/neighbours.py                       everything: 0, 1 and 2 loops, 7 rounds; at most an hour
  bench/peers/neighbours.py --loops 2 --jobs ''   all_reduce alone beside two loops
"""
import argparse
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import busy
import run

N = 2
TRIAL_S = 0.25  # many slices of the scheduler
PEERS = "tutti,gloo,openmpi"
JOBS = "native,gloo,mpi,python"
EPOCHS = 1  # of the main job
SESSIONS = {"one": "all ranks in the session of the loops", "each": "each rank in a session of its own"}
BINDINGS = {"openmpi": "a core each (--bind-to core)", "mpi": "a core each (--bind-to core)"}


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"low": low, "median": middle, "high": high}


def shown(q):
    return f"{q['median']:.4g} ({q['low']:.4g} to {q['high']:.4g})"


def measure_reduces(names, sizes, rounds, build):
    """Rounds of A B C ..., every trial long enough to meet the scheduler."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="neighbours-"))
    peers, cells = [], []
    try:
        peers = run.start_peers(names, N, build, folder, max(sizes))
        for size in sizes:
            for peer in peers:
                peer.prepare(size)
            times = {peer.name: [] for peer in peers}
            for _ in range(rounds):
                for peer in peers:
                    times[peer.name].append(peer.run(size, peer.times[size]))
            cells.append({"size": size, "us": times})
    finally:
        for peer in peers:
            peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return cells


def job_commands(names, build, python, epochs):
    """sessions: name: (command, environment, what finds images/s in its output, of how many ranks that is one)"""
    train = build / "examples/07_fashion_mnist/fashion_mnist"
    rows = re.compile(r"^(?:\[0\])? *0 +(\d+) ", re.M)
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run_tutti = [build / "cli/tutti", "run", "-n", N]
    script = [pathlib.Path(__file__).parent / "ddp_fmnist.py", epochs]
    found = {sessions: {} for sessions in SESSIONS}
    for sessions, jobs in found.items():
        apart = ["setsid", "--wait"] if sessions == "each" else []
        job = [*apart, train, "--epochs", epochs]
        by_torch = [python, "-m", "torch.distributed.run", "--nproc-per-node", N, *script]
        table = {
            "native": (train, [*run_tutti, *job], {"TUTTI_BACKEND": "native"}, rows, N),
            "gloo": (train, [*run_tutti, *job], {"TUTTI_BACKEND": "gloo"}, rows, N),
            "mpi": (train, ["mpirun.openmpi", "--bind-to", "core", "-n", N, *job], {"TUTTI_BACKEND": "mpi", **mpi}, rows, N),
            "python": (python, by_torch if apart else [*run_tutti, python, *script],
                       {"OMP_NUM_THREADS": "1"}, re.compile(r"(\d+) images/s"), 1),
        }
        for name in names:
            needed, command, variables, *rate = table[name]
            if needed is None or not pathlib.Path(needed).exists() or not shutil.which(str(command[0])):
                continue
            jobs[name] = ([str(word) for word in command], {**os.environ, **variables}, *rate)
    for name in names:
        if name not in found["one"]:
            print(f"{name}: left out: " + ("no virtual environment with torch: --python NAME (bench/peers/README.md)"
                                           if name == "python" else f"no {train} (TUTTI_WITH_TORCH), or no mpirun.openmpi"),
                  file=sys.stderr)
    return found


def measure_jobs(jobs, rounds):
    """Images per second by job and round."""
    rates = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (command, variables, rate, ranks) in jobs.items():
            ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
            found = rate.search(ended.stdout)
            if ended.returncode != 0 or not found:
                raise RuntimeError(f"{name}: {' '.join(command)} ended with {ended.returncode}\n{ended.stdout[-600:]}\n"
                                   f"{ended.stderr[-600:]}")
            rates[name].append(float(found[1]) * ranks)
    return rates


def show_reduces(loops, cells, means):
    for cell in cells:
        q = {name: quartiles(us) for name, us in cell["us"].items()}
        cell["quartiles"] = q
        cell["ratio"] = {name: q[name]["median"] / q["tutti"]["median"] for name in q if name != "tutti"}
        for name, ratio in cell["ratio"].items():
            means.setdefault(name, []).append(ratio)
        print(f"| {loops} | all_reduce {run.size_name(cell['size'])}, us | "
              + ", ".join(f"{name} {shown(q[name])}" for name in q) + " | "
              + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in cell["ratio"].items()) + " |", flush=True)


def show_jobs(loops, sessions, rates):
    q = {name: quartiles(values) for name, values in rates.items()}
    ratio = {name: q[name]["median"] / q["python"]["median"] for name in q if name != "python" and "python" in q}
    print(f"| {loops} | main job, images/s, {SESSIONS[sessions]} | " + ", ".join(f"{name} {shown(q[name])}" for name in q) + " | "
          + ", ".join(f"{name} / python {value:.2f}x" for name, value in ratio.items()) + " |", flush=True)
    return {"images_per_s": rates, "quartiles": q, "ratio": ratio}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--loops", default="0,1,2", help="busy loops (0,1,2)")
    parser.add_argument("--sizes", default="8,1M", help="bytes (8,1M)")
    parser.add_argument("--peers", default=PEERS, help=f"({PEERS})")
    parser.add_argument("--jobs", default=JOBS, help=f"({JOBS})")
    parser.add_argument("--epochs", default=EPOCHS, type=int, help=f"of the main job ({EPOCHS})")
    parser.add_argument("--rounds", default=7, type=int, help="per cell (7)")
    parser.add_argument("--python", help="a Python with torch, for the job 'python'")
    parser.add_argument("--json", default=run.ROOT / "docs" / "evidence" / "neighbours.json", type=pathlib.Path)
    options = parser.parse_args()
    lock = run.hold_lock()
    run.TARGET_S = TRIAL_S
    build, sizes = options.build.resolve(), [run.size_of(size) for size in options.sizes.split(",")]
    jobs = job_commands([name for name in options.jobs.split(",") if name], build, options.python, options.epochs)
    report = {"what": "beside busy loops of the same priority", **run.machine(), "n": N, "loops": [],
              "bindings": {name: BINDINGS.get(name, "none") for name in [*options.peers.split(","), *jobs["one"]]},
              "sessions": SESSIONS}
    print(f"{report['what']}, n = {N}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f} at the start; "
          f"commit {report['commit']}, {report['date']}\nbindings: "
          + "; ".join(f"{name} {binding}" for name, binding in report["bindings"].items())
          + f"\nmedians of {options.rounds} interleaved rounds (quartiles)\n\n| loops | what | figures | times tutti |\n|---|---|---|---|")
    means, start = {}, time.monotonic()
    for loops in (int(count) for count in options.loops.split(",")):
        with busy.Loops(loops):
            cells = measure_reduces(options.peers.split(","), sizes, options.rounds, build) if options.peers else []
            show_reduces(loops, cells, means)
            trained = {sessions: show_jobs(loops, sessions, measure_jobs(of_all, options.rounds)) for sessions, of_all in jobs.items()
                       if of_all}
        report["loops"].append({"count": loops, "all_reduce": cells, "jobs": trained})
    report["geometric_mean"] = {name: math.exp(statistics.mean(map(math.log, values))) for name, values in means.items()}
    report["took_s"] = time.monotonic() - start
    print("\nall_reduce, geometric mean of the ratios: "
          + ", ".join(f"{name} {mean:.2f}x" for name, mean in report["geometric_mean"].items()))
    run.write_report(report, options.json)
    del lock


if __name__ == "__main__":
    main()
