#!/usr/bin/env python3
"""Soak `failing-jobs`: a rank fails at some moment in some way, and `tutti run` must say which one, how, and end with its code.

Shown in each of the rounds: the root cause is the rank that failed first, with its exit code or signal, whatever the others do when
they are told (return another code, throw, return 0, sleep on and have to be ended); a rank that hangs ends the job at --timeout with
124, and the post-mortem says who waits for it; nothing is left. And of the training: example 07, two ranks of which are
killed, one in each of two attempts, ends under --max-restarts 3 with the hash of the uninterrupted run.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import over_hosts

sys.path.insert(0, str(over_hosts.ROOT / "tests/ddp"))
from training import hash_in, rank_of_attempt, write_data  # noqa: E402

AT_ONCE = 3
LIMIT = 120  # seconds for one job
CODES = {"exit": 3, "return": 5, "abort": 134, "segv": 139, "kill": 137, "throw": 134}
SAYS = {"exit": "exit code 3", "return": "exit code 5", "abort": "killed by SIGABRT", "segv": "killed by SIGSEGV", "kill": "killed by SIGKILL",
        "throw": "killed by SIGABRT"}
MOMENTS = ("start", "init", "loop", "group", "end")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")} | {
    "OMP_NUM_THREADS": "1"}

PATIENCE = (2, 8, 30)  # s: on a slow machine the ranks may not have come to the hang yet


class Round:
    def __init__(self, dice):
        self.ranks = dice.randint(2, 6)
        self.victim = dice.randrange(self.ranks)
        self.way = dice.choice([*CODES, "hang"])
        self.moment = dice.choice(MOMENTS)
        self.others = dice.choice(("return", "throw", "well", "deaf"))
        self.patience = PATIENCE[0]

    def __str__(self):
        return f"rank {self.victim} of {self.ranks}: {self.way} at {self.moment}, others {self.others}"

    def words(self, options):
        # A program cannot be waited for at a --timeout that its own init would reach first.
        timeout = ["--timeout", f"{self.patience}s"] if self.way == "hang" else []
        return [options.tutti, "run", "-n", str(self.ranks), "--failure-grace", "1s", "--grace", "1s", *timeout, options.rank,
                str(self.victim), self.way, self.moment, self.others]

    def wrong(self, code, out, err):
        if self.way == "hang":
            return self.wrong_of_a_hang(code, err)
        found = []
        if code != CODES[self.way]:
            found.append(f"exit code {code} instead of {CODES[self.way]}")
        root = re.search(r"ROOT CAUSE: rank (\d+) (?:on \S+ \(pid \d+\): (.*)|\(pid \d+ on [^)]+\) left the group )", err)
        # One that returns closes its groups, and the ranks disagree: then that is said.
        as_expected = root and (root.group(2) or SAYS["return"]).startswith(SAYS[self.way])
        if not as_expected or int(root.group(1)) != self.victim:
            found.append(f"root cause: {root.group(0) if root else 'none'}, instead of rank {self.victim}, {SAYS[self.way]}")
        return found

    def wrong_of_a_hang(self, code, err):
        found = [] if code == 124 else [f"exit code {code} instead of 124"]
        if not re.search(r"FAILED: not done after [\d.]+ s", err):
            found.append("no word of the timeout")
        if self.moment in ("start", "init") and f"waited in init_process_group for rank {self.victim};" not in err:
            found.append(f"nobody is said to have waited in init for rank {self.victim}")
        if self.moment == "end" and not re.search(rf"  rank {self.victim}: last completed .*; killed by SIG(TERM|KILL)", err):
            found.append(f"rank {self.victim} is not said to be the one that had not ended")
        if self.moment == "loop" and not re.search(rf", waiting ([\d.]+ s )?for rank {self.victim}\b", err):
            found.append(f"nobody is said to wait for rank {self.victim}")
        if self.moment == "group" and (f"  rank {self.victim}: last completed all_reduce #50" not in err or ": in new_group(" not in err):
            found.append(f"rank {self.victim} is not said to have not come to the group")
        return found


def left_of(mark):
    """Processes that still have a variable of that job."""
    left = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                left.append(int(process.name))
        except OSError:
            continue
    return left


def run_round(number, options):
    round_ = Round(random.Random(f"{options.seed} {number}"))
    name, value = "FAILING_JOB", f"{os.getpid()}_{number}"
    for round_.patience in PATIENCE:
        done = subprocess.run(round_.words(options), env=ENVIRONMENT | {name: value}, capture_output=True, text=True, timeout=LIMIT)
        wrong = round_.wrong(done.returncode, done.stdout, done.stderr)
        if not wrong or round_.way != "hang":
            break
    if left := left_of(f"{name}={value}"):
        wrong.append(f"processes are left: {left}")
    return round_, [f"round {number} (seed {options.seed}): {round_}: {what}\n{done.stdout}{done.stderr}" for what in wrong]


# ---- training


def train(number, options, folder, uninterrupted):
    dice = random.Random(f"{options.seed} training {number}")
    file = folder / f"run_{number}.pt"
    command = [options.tutti, "run", "-n", "2", "--max-restarts", "3", "--failure-grace", "1s", *training(options, folder),
               "--checkpoint", str(file), "--checkpoint-every", "5"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            killed = 0
            for attempt in range(2):
                pid = rank_of_attempt(job, attempt, dice.randrange(2), file, LIMIT)
                time.sleep(dice.uniform(0, 0.05))
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            out, err = job.communicate(timeout=LIMIT)
        finally:
            job.kill()
    wrong = []
    if killed < 2:
        wrong.append(f"it ended before {2 - killed} of the kills")
    if job.returncode != 0:
        wrong.append(f"exit code {job.returncode}")
    if err.count("; restart ") != 2:
        wrong.append(f"{err.count('; restart ')} restarts instead of 2")
    if hash_in(out) != uninterrupted:
        wrong.append(f"hash {hash_in(out)} instead of {uninterrupted}")
    return [f"training {number} (seed {options.seed}): {what}\n{out[-2000:]}{err}" for what in wrong]


def training(options, folder):
    return [options.training, "--data", str(folder), "--epochs", "12"]


def train_all(options, failures):
    with tempfile.TemporaryDirectory() as holder:
        folder = pathlib.Path(holder)
        write_data(folder)
        plain = subprocess.run([options.tutti, "run", "-n", "2", *training(options, folder)], env=ENVIRONMENT, capture_output=True, text=True,
                               timeout=LIMIT)
        uninterrupted = hash_in(plain.stdout)
        if uninterrupted is None:
            sys.exit(f"failing-jobs: the uninterrupted run failed: {plain.stdout}{plain.stderr}")
        for number in range(options.trainings):
            failures += train(number, options, folder, uninterrupted)
            print(f"\rfailing-jobs: training {number + 1} of {options.trainings}, {len(failures)} wrong", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--trainings", type=int, help="runs of 07; 20, or as many as a tenth of the rounds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file with the figures")
    options = parser.parse_args()
    build = options.build.resolve()
    options.tutti, options.rank = str(build / "cli/tutti"), str(build / "tests/soak/failing_rank")
    options.training = str(build / "examples/07_fashion_mnist/fashion_mnist")
    if options.trainings is None:
        options.trainings = options.rounds // 10
    if not pathlib.Path(options.training).exists():
        print("failing-jobs: example 07 was not built (no libtorch): without the trainings", file=sys.stderr)
        options.trainings = 0
    print(f"failing-jobs: seed {options.seed}", file=sys.stderr)
    failures, counts, begun = [], {}, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done, (round_, wrong) in enumerate(pool.map(lambda number: run_round(number, options), range(options.rounds)), 1):
            failures += wrong
            for key in (round_.way, f"at {round_.moment}", f"others {round_.others}"):
                counts[key] = counts.get(key, 0) + 1
            for text in wrong:
                print(f"\n{text}", file=sys.stderr)
            print(f"\rfailing-jobs: {done} of {options.rounds}, {len(failures)} wrong", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.trainings > 0:
        before = len(failures)
        train_all(options, failures)
        for text in failures[before:]:
            print(text, file=sys.stderr)
    figures = {**over_hosts.machine("failing-jobs"), "seed": options.seed, "rounds": options.rounds, "trainings": options.trainings,
               "counts": dict(sorted(counts.items())), "wrong": len(failures), "seconds": round(time.monotonic() - begun, 1)}
    print(f"failing-jobs: {options.rounds} jobs and {options.trainings} trainings with restarts, {len(failures)} wrong")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(1 if failures else 0)


main()
