#!/usr/bin/env python3
"""Measures how long ranks take to become a world: from the last rank's call of init_process_group to the last return.

8 and 64 ranks on one host, by `tutti run` and by hand; with root, 8 on two hosts (network namespaces), 4 on each. Writes
docs/evidence/init_time.json. The ranks have no cores of their own: with 64 on two cores most of the time is the kernel's turn-taking.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import run

TOOL = run.ROOT / "tools" / "hosts.py"
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


def measure(ranks, command):
    """Milliseconds from the last call to the last return; with the first call, to how far the starts lay apart."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    times = [(int(called), int(returned)) for called, returned in LINE.findall(done.stdout)]
    if done.returncode != 0 or len(times) != ranks:
        sys.exit(f"init: {len(times)} of {ranks} ranks, exit code {done.returncode}\n{done.stderr[-600:]}")
    last = max(called for called, _ in times)
    return (max(returned for _, returned in times) - last) / 1e6, (last - min(called for called, _ in times)) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--rounds", default=15, type=int, help="of each (15)")
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
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    del lock


if __name__ == "__main__":
    main()
