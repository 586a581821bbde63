#!/usr/bin/env python3
"""Measures how long ranks take to become a world: from the last rank's call of init_process_group to the last return.

8 and 64 ranks on one host, by `tutti run` and by hand; with root, 8 on two hosts (network namespaces), 4 on each. And how long it
takes from a launcher's command to the last return, with 64 ranks of the same program: `tutti run`, Open MPI's and MPICH's launchers,
and torchrun where Python's torch is there (tools/python_torch.sh, or PYTHON_TORCH_ROOT). Writes docs/evidence/init_time.json. The ranks have no cores of their own: with 64 on two cores most of the time is the kernel's turn-taking.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import run

TOOL = run.ROOT / "tools" / "hosts.py"
LAUNCHED = 64  # ranks
LINE = re.compile(r"init (\d+) (\d+)")


def commands(build, port):
    program = str(build / "bench/peers/peer_init")
    tutti = [str(build / "cli/tutti"), "run", "-n"]
    by_hand = ("for rank in $(seq 0 $(($0 - 1))); do RANK=$rank WORLD_SIZE=$0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 $2 & done; wait")
    ways = {f"{n} on one host, {how}": (n, [*tutti, str(n), program] if how == "tutti run" else ["sh", "-c", by_hand, str(n), str(port), program])
            for n in (8, 64) for how in ("tutti run", "by hand")}
    if os.geteuid() == 0:
        ways["8 on two hosts"] = (8, [sys.executable, str(TOOL), "2", "--ranks", "4", "--", program])
    else:
        print("init: two hosts: left out, network namespaces need root", file=sys.stderr)
    return ways


def launchers(build):
    """Command lines for 64 ranks; of torchrun, if it is there."""
    program, ranks = str(build / "bench/peers/peer_init"), str(LAUNCHED)
    ways = {"tutti run": [str(build / "cli/tutti"), "run", "-n", ranks, program],
            "mpirun.openmpi": ["mpirun.openmpi", "--oversubscribe", "-n", ranks, program],
            "mpiexec.mpich": ["mpiexec.mpich", "-n", ranks, program]}
    root = os.environ.get("PYTHON_TORCH_ROOT") or subprocess.run(
        [run.ROOT / "tools/python_torch.sh", "--where", run.ROOT / "third_party"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if (pathlib.Path(root) / "bin/torchrun").exists():
        ways["torchrun"] = [f"{root}/bin/torchrun", "--no-python", "--nproc-per-node", ranks, program]
    else:
        print("init: torchrun: left out, Python's torch is not there (tools/python_torch.sh third_party)", file=sys.stderr)
    return ways


def run_ranks(ranks, command):
    """(call, return) of each rank, in ns of the monotonic clock."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    times = [(int(called), int(returned)) for called, returned in LINE.findall(done.stdout)]
    if done.returncode != 0 or len(times) != ranks:
        sys.exit(f"init: {command[0]}: {len(times)} of {ranks} ranks, exit code {done.returncode}\n{done.stderr[-600:]}")
    return times


def measure(ranks, command):
    """Milliseconds from the last call to the last return; with the first call, to how far the starts lay apart."""
    times = run_ranks(ranks, command)
    last = max(called for called, _ in times)
    return (max(returned for _, returned in times) - last) / 1e6, (last - min(called for called, _ in times)) / 1e6


def measure_launcher(command):
    """Milliseconds from the command to the last return."""
    begun = time.monotonic_ns()
    return (max(returned for _, returned in run_ranks(LAUNCHED, command)) - begun) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--rounds", default=15, type=int, help="of each (15)")
    parser.add_argument("--launches", default=5, type=int, help="of 64 ranks by each launcher (5)")
    parser.add_argument("--json", default=run.ROOT / "docs" / "evidence" / "init_time.json", type=pathlib.Path)
    options = parser.parse_args()
    lock = run.hold_lock()
    ways = commands(options.build.resolve(), 20000 + os.getpid() % 10000)
    found = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (ranks, command) in ways.items():
            found[name].append(measure(ranks, command))
    report = {"what": "init_process_group: ms from the last call to the last return", **run.machine(), "rounds": options.rounds, "ways": {}}
    print(f"{report['what']}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f}")
    for name, pairs in found.items():
        init, spread = sorted(ms for ms, _ in pairs), [ms for _, ms in pairs]
        report["ways"][name] = {"median_ms": statistics.median(init), "min_ms": init[0], "max_ms": init[-1],
                                "calls_apart_ms": statistics.median(spread)}
        print(f"{name:<28} median {statistics.median(init):7.1f} ms, from {init[0]:.1f} to {init[-1]:.1f}; "
              f"the calls lay {statistics.median(spread):.1f} ms apart")
    ways = launchers(options.build.resolve())
    launched = {name: [] for name in ways}
    for _ in range(options.launches):
        for name, command in ways.items():
            launched[name].append(measure_launcher(command))
    report["launched"] = {"what": f"{LAUNCHED} ranks: ms from the command to the last return of init", "rounds": options.launches, "ways": {}}
    print(report["launched"]["what"])
    for name, times in launched.items():
        report["launched"]["ways"][name] = {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}
        print(f"{name:<28} median {statistics.median(times):8.0f} ms, from {min(times):.0f} to {max(times):.0f}")
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    del lock


if __name__ == "__main__":
    main()
