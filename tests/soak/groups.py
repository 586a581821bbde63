#!/usr/bin/env python3
"""Soak `groups`: threads on groups of their own at once run mixed operations on every backend; results right, no deadlock.
On one host two ranks and two groups; with --hosts 2 four ranks, two on each, and three groups that overlap: the backends native and
gloo. Under TSan those ranks are threads of one process."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time

import over_hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder")
    parser.add_argument("--tsan", help="build folder of the preset tsan: native once more, under TSan")
    parser.add_argument("--rounds", type=int, default=10_000, help="operations on each backend")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--hosts", type=int, default=1, choices=[1, 2])
    parser.add_argument("--limit", type=int, default=600, help="seconds for one backend")
    parser.add_argument("--out", help="JSON goes here")
    options = parser.parse_args()
    def run_in(build):
        return [os.path.join(build, "cli/tutti"), "run"]
    def program_in(build):
        return os.path.join(build, "tests/soak/groups_rank")
    tutti, program = run_in(options.build), program_in(options.build)
    plugins = os.listdir(options.build)
    ways = [("native", "native", tutti, program, None), ("gloo", "gloo", tutti, program, "gloo"),
            ("mpi_openmpi", "mpi", ["mpirun.openmpi", "--oversubscribe"], program, "mpi_openmpi"),
            ("mpi_mpich", "mpi", ["mpiexec.mpich"], program, "mpi_mpich")]
    size = 2
    if options.hosts > 1:
        launcher = [sys.executable, os.path.join(os.path.dirname(__file__), "../../tools/hosts.py")]
        launcher, size = [*launcher, str(options.hosts), "--ranks", "2", "--"], 2 * options.hosts
        ways = [("native", "native", launcher, program, None), ("gloo", "gloo", launcher, program, "gloo")]
    if options.tsan and options.hosts > 1:
        ways.append(("native_tsan", "native", ["setarch", "-R"], program_in(options.tsan), None))
    elif options.tsan:
        ways.append(("native_tsan", "native", ["setarch", "-R", *run_in(options.tsan)], program_in(options.tsan), None))
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    report = {**over_hosts.machine("groups"), "operations": options.rounds, "seed": options.seed, "hosts": options.hosts,
              "ranks": size, "backends": {}}
    failed = 0
    for name, backend, launcher, program, plugin in ways:
        if plugin and f"libtutti_backend_{plugin}.so" not in plugins or not shutil.which(launcher[0]):
            print(f"groups: {name}: not here, left out", file=sys.stderr)
            continue
        begin = time.monotonic()
        many = [] if options.hosts > 1 else ["-n", str(size)]
        command = [*launcher, *many, program, backend, str(options.rounds), str(options.seed)]
        if options.hosts > 1 and name == "native_tsan":
            command.append(",".join(str(rank // 2) for rank in range(size)))
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=options.limit)
            right = done.returncode == 0 and done.stdout.count("operations right") == size
            said = done.stdout
            if done.returncode == 77 and options.hosts > 1:
                print(f"SKIPPED: {said.strip()}")
                sys.exit(77)
        except subprocess.TimeoutExpired as late:
            right, said = False, f"not done after {options.limit} s: {late.stdout}"
        seconds = round(time.monotonic() - begin, 1)
        report["backends"][name] = {"right": right, "seconds": seconds}
        print(f"groups: {name}: {options.rounds} operations, {'right' if right else 'WRONG'}, {seconds} s", file=sys.stderr)
        if not right:
            failed += 1
            print(said, file=sys.stderr)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
