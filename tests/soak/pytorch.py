#!/usr/bin/env python3
"""Soak `pytorch`: random operations of Python's torch.distributed over tutti give what they give over gloo, in the same processes.

A third of the rounds with 2 ranks each, with 3 and with 4: collectives of all kinds, messages, batches and objects, blocking and
asynchronous, of eight dtypes, in two groups, some of memory that is not contiguous (tests/python/beside_gloo.py). A failure names the
operation; --seed and --first run it again.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = ROOT / "tests/python/beside_gloo.py"
sys.path.insert(0, str(RANK.parent))
import ports  # noqa: E402

SILENCE = 300  # seconds without a sign of life


def run(size, rounds, port, options):
    """What went wrong; "" if nothing did."""
    shared = {"PYTHONPATH": str(options.build / "python"), "PYTHONDONTWRITEBYTECODE": "1", "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(size):
        environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([options.python, RANK, str(options.seed), str(options.first), str(rounds)], env=environment, text=True,
                                      stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=subprocess.PIPE))
    started = time.monotonic()
    try:
        for line in ranks[0].stdout:
            done = int(line)
            left = (time.monotonic() - started) / max(done, 1) * (rounds - done)
            print(f"pytorch: {size} ranks: {done} of {rounds}, {left:.0f} s left", flush=True)
        said = [process.communicate(timeout=SILENCE)[1] for process in ranks]
        return "".join(f"rank {rank} ended with {process.returncode}: {text[-2000:]}" for rank, (process, text) in enumerate(zip(ranks, said))
                       if process.returncode != 0)
    except subprocess.TimeoutExpired:
        return f"{size} ranks: {SILENCE} s after rank 0 another one has not ended"
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--python", required=True, help="the interpreter for whose torch it was built")
    parser.add_argument("--rounds", type=int, default=30_000, help="operations in all (30,000)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--first", type=int, default=0, help="number of the first operation (0)")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    print(f"pytorch: seed {options.seed}", flush=True)
    started, wrong = time.monotonic(), []
    for size in options.ranks:
        with ports.held_port() as port:
            text = run(size, options.rounds // len(options.ranks), port, options)
        if text:
            wrong.append(text)
            print(f"WRONG: {text}", flush=True)
    seconds = time.monotonic() - started
    print(f"pytorch: {options.rounds} operations with {', '.join(map(str, options.ranks))} ranks in {seconds:.0f} s: "
          f"{len(wrong)} worlds wrong")
    if options.out:
        options.out.write_text(json.dumps({"soak": "pytorch", "seed": options.seed, "rounds": options.rounds, "ranks": options.ranks,
                                           "seconds": round(seconds), "wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
