#!/usr/bin/env python3
"""Command lines of other launchers, as users and documents write them, taken by `tutti run` and by the launcher itself.

    command_lines.py --tutti TUTTI --program ONE_TO_MANY [--table]

Hosts and programs are replaced, no other word is. `--table` prints what each of the two did with each line.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import foreign
import slurm
from examples import LIMIT, clean_environment

OURS, TORCHRUN, OPEN_MPI = "the programs that Tutti replaces", "torchrun's documentation", "Open MPI's mpirun(1)"

# Where a line is from, the line, and what `tutti run` does: a number of ranks, or why it refuses.
# PROGRAM prints as examples/01_one_to_many does, TRAIN.py the same from Python, HOSTS has 16 slots of this host, PORT is free.
LINES = [
    (OURS, "python -m torch.distributed.launch --nproc_per_node=2 --nnodes=1 --node_rank=0 PROGRAM", 2),
    (OURS, "python -m torch.distributed.launch --nproc_per_node=2 --nnodes=2 --node_rank=0 PROGRAM", "on this host only"),
    (OURS, "torchrun --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=127.0.0.1 --master_port=PORT PROGRAM --backend=native", 2),
    (OURS, "mpirun -np 4 -H localhost:2,127.0.0.1:2 -x MASTER_ADDR=localhost -x MASTER_PORT=PORT -x PATH -bind-to none -map-by slot"
           " -mca pml ob1 -mca btl ^openib PROGRAM", 4),
    (OURS, "mpirun --hostfile HOSTS -np 16 --bind-to none --map-by slot -x MASTER_ADDR=localhost -x MASTER_PORT=PORT -x NCCL_DEBUG=INFO"
           " -x NCCL_SOCKET_IFNAME=^lo,docker0 -x CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 PROGRAM --backend native", 16),
    (TORCHRUN, "torchrun --nnodes=1 --nproc-per-node=2 TRAIN.py", 2),
    (TORCHRUN, "torchrun --standalone --nnodes=1 --nproc-per-node=2 TRAIN.py --arg1 1", 2),
    (TORCHRUN, "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2 TRAIN.py", 2),
    (TORCHRUN, "torchrun --nnodes=1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=100 --rdzv-backend=c10d"
               " --rdzv-endpoint=localhost:PORT TRAIN.py", 2),
    (TORCHRUN, "torchrun --nnodes=1:4 --nproc-per-node=2 --max-restarts=3 --rdzv-id=100 --rdzv-backend=c10d"
               " --rdzv-endpoint=localhost:PORT TRAIN.py", "does not change while it runs"),
    (OPEN_MPI, "mpirun -np 2 PROGRAM", 2),
    (OPEN_MPI, "mpirun -H localhost,localhost PROGRAM", 2),
    (OPEN_MPI, "mpirun -hostfile HOSTS -np 6 PROGRAM", 6),
    (OPEN_MPI, "mpirun -hostfile HOSTS -np 17 -nooversubscribe PROGRAM", "--oversubscribe"),
    (OPEN_MPI, "mpirun -H localhost:2 -npernode 2 PROGRAM", 2),
    (OPEN_MPI, "mpirun -H localhost -pernode PROGRAM", 1),
    (OPEN_MPI, "mpirun -np 2 --map-by core --bind-to core PROGRAM", 2),
    (OPEN_MPI, "mpirun -np 2 -x DISPLAY -x OFILE=/tmp/out PROGRAM", 2),
    (OPEN_MPI, "mpirun -mca btl tcp,self -np 1 PROGRAM", 1),
    (OPEN_MPI, "mpirun -H localhost -np 1 hostname : -H localhost -np 2 uptime", "all ranks run one"),
]
SCRIPT = """\
import os, sys
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
lines = [f"worker_0 sent data to Rank {other}" for other in range(1, ranks)] if rank == 0 else [f"worker_{rank} has received data from rank 0"]
sys.stdout.write("".join(line + "\\n" for line in lines))
"""


def printed(ranks):
    """What all of them print, sorted; a rank of one has nobody to send to."""
    lines = [f"worker_0 sent data to Rank {rank}" for rank in range(1, ranks)]
    return sorted(lines + [f"worker_{rank} has received data from rank 0" for rank in range(1, ranks)])


def lines_of(text):
    """What ranks print, without what launchers put before it."""
    return sorted(re.findall(r"worker_\d+ (?:sent data to Rank|has received data from rank) \d+", text))


def words_of(line, folder, program, port):
    with open(f"{folder}/hosts", "w") as file:
        file.write("localhost slots=16\n")
    with open(f"{folder}/train.py", "w") as file:
        file.write(SCRIPT)
    places = {"PROGRAM": program, "TRAIN.py": f"{folder}/train.py", "HOSTS": f"{folder}/hosts"}
    line = re.sub(r"\bPORT\b", str(port), line)
    return [places.get(word, word) for word in shlex.split(line)]


def without_launcher(words):
    return words[3:] if words[0] == "python" else words[1:]


def outcome(command, environment):
    """(Exit code, the ranks' lines, all that was said)."""
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    return done.returncode, lines_of(done.stdout), done.stdout + done.stderr


def check_tutti(tutti, words, wanted, environment):
    code, lines, text = outcome([tutti, "run", *without_launcher(words)], environment)
    if isinstance(wanted, str):
        if code != 2 or wanted not in text:
            sys.exit(f"command_lines: {words} ended with {code}, not with 2 and \"{wanted}\":\n{text}")
        return "refused: " + text.strip().splitlines()[-1].removeprefix("tutti run: ")
    if code != 0 or lines != printed(wanted):
        sys.exit(f"command_lines: {words} ended with {code}, not with 0 and the prints of {wanted} ranks:\n{text}")
    return f"{wanted} rank{'s' if wanted > 1 else ''}"


def with_own_launcher(words, environment, python):
    """(The words that had to be added, what happened); None: the launcher is not here. Only where `tutti run` starts ranks, too."""
    if words[0] == "mpirun":
        if not shutil.which("mpirun.openmpi"):
            return None
        few = len(os.sched_getaffinity(0)) < 8
        added = ["--oversubscribe"] if few and "-H" not in words and "-hostfile" not in words and "--hostfile" not in words else []
        return added, outcome(["mpirun.openmpi", *added, *words[1:]], environment)
    if not python:
        return None
    added = ["--no-python"] if not any(word.endswith(".py") for word in words) else []
    if words[0] == "python":
        added = ["--use-env", *added]
        return added, outcome([f"{python}/bin/python3", *words[1:3], *added, *words[3:]], environment)
    return added, outcome([f"{python}/bin/{words[0]}", *added, *words[1:]], environment)


def check_own_launcher(words, wanted, environment, python):
    done = with_own_launcher(words, environment, python)
    if done is None:
        return "-", "not installed"
    added, (code, lines, text) = done
    if code != 0 or lines != printed(wanted):
        sys.exit(f"command_lines: {words} with {added} by its own launcher ended with {code}:\n{text}")
    return " ".join(added) or "none", f"{wanted} rank{'s' if wanted > 1 else ''}"


def check_options(tutti, python, environment):
    """Every option that torchrun's help lists is known: done, without meaning, or refused with the way out."""
    out, _ = foreign.run([f"{python}/bin/torchrun", "--help"], environment)
    options = set(re.findall(r"^ {2}(?:-\w [A-Z_]+, |-\w, )?(--[a-z][a-z-]+)", out, re.MULTILINE)) - {"--help"}
    for option in sorted(options):
        text = outcome([tutti, "run", "--dry-run", option, "1", "true"], environment)[2]
        if "unknown option" in text:
            sys.exit(f"command_lines: torchrun's {option}: {text}")
    print(f"known: {len(options)} options of torchrun")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    environment = dict(clean_environment(), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    try:
        python, of_python = foreign.python_torch()
        environment["PATH"] = of_python["PATH"]
    except foreign.Skipped as why:
        python = None
        print(f"left out: torchrun and torch.distributed.launch themselves: {why}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for origin, line, wanted in LINES:
            with slurm.held_ports(1) as [port]:
                words = words_of(line, folder, options.program, port)
                ours = check_tutti(options.tutti, words, wanted, environment)
                added, theirs = ("-", "-") if isinstance(wanted, str) else check_own_launcher(words, wanted, environment, python)
            rows.append((origin, line, ours, added, theirs))
    if python:
        check_options(options.tutti, python, environment)
    if options.table:
        print("| from | line | tutti run | words its own launcher needs | its own launcher |\n|---|---|---|---|---|")
        for row in rows:
            print("| " + " | ".join(f"`{each}`" if index == 1 else each for index, each in enumerate(row)) + " |")
    print(f"as expected: {len(rows)} command lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
