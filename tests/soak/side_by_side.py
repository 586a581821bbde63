#!/usr/bin/env python3
"""Soak `side-by-side`: jobs that start at the same moment on one host with default settings do not meet each other.

In each round two jobs of Tutti run the example one_to_many, and beside them one of Python, whose rank 0 listens at MASTER_PORT (torch's
TCPStore): each must print what it prints alone.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import over_hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from examples import EXAMPLES, clean_environment  # noqa: E402

LIMIT = 120  # seconds for one round
PYTHON = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(os.environ["JOB"])])
dist.all_reduce(x)
print(f"sum {x.item():.0f} of {dist.get_world_size()}", flush=True)
dist.barrier()
os._exit(0)
"""


def start(command, more=None):
    return subprocess.Popen(command, env=clean_environment() | (more or {}), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def by_rank(text, ranks):
    lines = [[] for _ in range(ranks)]
    for line in text.splitlines():
        if match := re.match(r"\[(\d+)\] (.*)$", line):
            lines[int(match.group(1))].append(match.group(2))
    return lines


def run_round(number, options):
    ranks, expected = EXAMPLES["one_to_many"]
    own = [start([options.tutti, "run", "-n", str(ranks), options.program]) for _ in range(2)]
    pythons = [start([options.tutti, "run", "-n", "2", options.python, options.script.name], {"JOB": str(number)})] if options.python else []
    wrong = []
    try:
        for job in [*own, *pythons]:
            out, err = job.communicate(timeout=LIMIT)
            if job in own:
                is_right = by_rank(out, ranks) == [expected(rank) for rank in range(ranks)]
            else:
                is_right = by_rank(out, 2) == [[f"sum {2 * number} of 2"]] * 2
            if job.returncode != 0 or not is_right:
                wrong.append(f"round {number}: {' '.join(job.args)} ended with {job.returncode}\n{out}{err}")
    finally:
        for job in [*own, *pythons]:
            if job.poll() is None:
                job.kill()
                job.wait()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--without-python", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file with the figures")
    options = parser.parse_args()
    build = options.build.resolve()
    options.tutti, options.program = str(build / "cli/tutti"), str(build / "examples/01_one_to_many/one_to_many")
    root = os.environ.get("PYTHON_TORCH_ROOT") or subprocess.run([ROOT / "tools/python_torch.sh", "--where", ROOT / "third_party"], text=True,
                                                                 stdout=subprocess.PIPE, check=True).stdout.strip()
    python = pathlib.Path(root) / "bin/python3"
    options.python = None if options.without_python or not python.exists() else str(python)
    if options.python is None and not options.without_python:
        print(f"side-by-side: Python's torch is not at {root}: without the job of Python", file=sys.stderr)
    failures, begun = [], time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(PYTHON)
        script.flush()
        options.script = script
        for number in range(1, options.rounds + 1):
            failures += run_round(number, options)
            print(f"\rside-by-side: {number} of {options.rounds}, {len(failures)} wrong", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for text in failures:
        print(text, file=sys.stderr)
    print(f"side-by-side: {options.rounds} rounds of 2 jobs{' and one of Python' if options.python else ''}: {len(failures)} wrong")
    if options.out:
        options.out.write_text(json.dumps({**over_hosts.machine("side-by-side"), "rounds": options.rounds, "with_python": options.python is not None,
                                           "wrong": len(failures), "seconds": round(time.monotonic() - begun, 1)}, indent=2) + "\n")
    sys.exit(1 if failures else 0)


main()
