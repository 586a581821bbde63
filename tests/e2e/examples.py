#!/usr/bin/env python3
"""Runs an example under one launcher and compares what it prints, line by line: prints are part of the contract."""
import argparse
import os
import re
import shutil
import socket
import subprocess
import sys

SKIPPED = 77
LIMIT = 60  # seconds for one run

# Name -> (ranks, what each rank prints, in its order).
EXAMPLES = {
    "one_to_many": (4, lambda r: ["worker_0 sent data to Rank 1", "worker_0 sent data to Rank 2", "worker_0 sent data to Rank 3"]
                    if r == 0 else [f"worker_{r} has received data from rank 0"]),
    "send_recv": (2, lambda r: ["Rank: 0, has data tensor([1.])"]
                  if r == 0 else ["init tensor tensor([0.])", "Rank: 1, has data tensor([1.])"]),
    "all_reduce": (3, lambda r: [] if r >= 2 else [
        f"Rank: {r}, random tensor: tensor({['[1., 2., 3.]', '[4., 5., 6.]'][r]})", f"Rank: {r}, has data: tensor([5., 7., 9.])"]),
    "broadcast": (4, lambda r: [
        f"Worker {r} received tensor: 1.0", f"Rank {r} has tensor: 1.0", f"Rank {r} has tensor after all_reduce: 6.0"]),
    "task_farm": (4, lambda r: ["Rank 0 has 1229 primes, the last is 9973"] if r == 0
                  else [f"Rank {r}: the 3 workers have found 1229"]),
}
# A program that starts its ranks itself, without a launcher: all lines, in any order.
SPAWNED = {"spawn": ["init tensor tensor([0.])", "Rank: 1, has data tensor([1.])", "Rank: 0, has data tensor([1.])",
                     *[line for r in (0, 1) for line in EXAMPLES["all_reduce"][1](r)]]}
FLAGS = {"one_to_many": [[], ["--backend=native"], ["--local_rank", "0", "--backend", "native"]]}
MPI_FLAGS = {"one_to_many": [["--backend", "mpi"]]}  # under the launchers of MPIs
LAUNCHERS = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT"
                       r"|(TUTTI|OMPI|PMI|PMIX|MPI|SLURM|TORCHELASTIC|PET)_.*)$")


def clean_environment():
    return {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}


def finish(processes):
    """The outputs; every process is reaped, also when one hangs."""
    try:
        outputs = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (out, err) in zip(processes, outputs):
        if process.returncode != 0:
            sys.exit(f"examples: {process.args} exited with {process.returncode}\n{out}{err}")
    return [out.splitlines() for out, _ in outputs]


def spawned(program):
    for flags in [], *[["--start", start_word] for start_word in ("automatic", "fork", "exec", "thread")]:
        [lines] = finish([start([program, *flags], clean_environment())])
        if sorted(lines) != sorted(SPAWNED[os.path.basename(program)]):
            sys.exit(f"examples: spawn {' '.join(flags)} printed\n{lines}")
    return 0


def spawned_example(program):
    """Its main as the function of spawned ranks, in every way to start them; their lines in any order."""
    name = os.path.basename(program).removeprefix("spawned_")
    ranks, prints = EXAMPLES[name]
    wanted = sorted(line for rank in range(ranks) for line in prints(rank))
    for start_word in ("fork", "exec", "thread"):
        for flags in FLAGS.get(name, [[]]):
            [lines] = finish([start([program, start_word, str(ranks), *flags], clean_environment())])
            if sorted(lines) != wanted:
                sys.exit(f"examples: {name} {' '.join(flags)}, spawned by {start_word}, printed\n{lines}\ninstead of\n{wanted}")
    return 0


def start(command, environment):
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def by_hand(program, flags, ranks):
    with socket.socket() as reserved:  # the port names the meeting point; nobody listens on TCP
        reserved.bind(("127.0.0.1", 0))
        port = str(reserved.getsockname()[1])
        return finish([start([program, *flags], dict(clean_environment(), RANK=str(rank), WORLD_SIZE=str(ranks),
                                                     MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                       for rank in range(ranks)])


def under_tutti(tutti, words, program, flags, ranks):
    command = [tutti, "run", *words, str(ranks), program, *flags]
    [lines] = finish([start(command, clean_environment())])
    outputs = [[] for _ in range(ranks)]
    for line in lines:
        match = re.match(r"^\[(\d+)\] (.*)$", line)
        if not match:
            sys.exit(f"examples: a line of `tutti run` without the rank before it: {line!r}")
        outputs[int(match.group(1))].append(match.group(2))
    return outputs


def under_openmpi(program, flags, ranks):
    environment = dict(clean_environment(), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = ["mpirun.openmpi", "--oversubscribe", "--tag-output", "-n", str(ranks), program, *flags]
    [lines] = finish([start(command, environment)])
    outputs = [[] for _ in range(ranks)]
    for line in lines:
        match = re.match(r"^\[\d+,(\d+)\]<stdout>:(.*)$", line)
        if match:
            outputs[int(match.group(1))].append(match.group(2))
    return outputs


def under_mpich(program, flags, ranks):
    [lines] = finish([start(["mpiexec.mpich", "-prepend-rank", "-n", str(ranks), program, *flags], clean_environment())])
    outputs = [[] for _ in range(ranks)]
    for line in lines:
        match = re.match(r"^\[(\d+)\] (.*)$", line)
        if match:
            outputs[int(match.group(1))].append(match.group(2))
    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tutti")
    parser.add_argument("--launcher", choices=["hand", "tutti", "openmpi", "mpich", "spawn", "none"], required=True)
    parser.add_argument("--mpi", action="store_true", help="with the backend mpi, too")
    options = parser.parse_args()
    name = os.path.basename(options.program)
    if options.launcher == "none":
        return spawned(options.program)
    if options.launcher == "spawn":
        return spawned_example(options.program)
    ranks, expected = EXAMPLES[name]
    needed = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}.get(options.launcher)
    if needed and not shutil.which(needed):
        print(f"SKIPPED: {needed} is not installed")
        return SKIPPED
    ways = {"hand": [lambda flags: by_hand(options.program, flags, ranks)],
            "tutti": [lambda flags, words=words: under_tutti(options.tutti, words, options.program, flags, ranks)
                      for words in (["-n"], ["--nproc_per_node"])],
            "openmpi": [lambda flags: under_openmpi(options.program, flags, ranks)],
            "mpich": [lambda flags: under_mpich(options.program, flags, ranks)]}
    more_flags = MPI_FLAGS.get(name, []) if options.mpi else []
    for way in ways[options.launcher]:
        for flags in FLAGS.get(name, [[]]) + more_flags:
            outputs = way(flags)
            wanted = [expected(rank) for rank in range(ranks)]
            if outputs != wanted:
                sys.exit(f"examples: {name} {' '.join(flags)} printed\n{outputs}\ninstead of\n{wanted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
