#!/usr/bin/env python3
"""Soak `pytorch-failures`: what Python programs are told of failures over tutti, that torchrun's restarts go on from them, and how programs end.

Each case of tests/python/failing.py so many times with 3 ranks, the victim in turn: every survivor gets a DistBackendError within a
second of the harm (of a late rank: of the timeout), whose text and `tutti.torch.failure` name the rank, or both sides. Then `torchrun
--max-restarts 1` with the default and the static rendezvous, where a rank ends with 3 or by SIGKILL: twice as many jobs of each; and as many of
each way to end without destroy_process_group (tests/python/ranks.py), with Works and futures pending: the exit code is the program's own, nobody
is told of a loss, and nothing is left.
"""
import argparse
import ast
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = ROOT / "tests/python/failing.py"
RANKS_PROGRAM = ROOT / "tests/python/ranks.py"
sys.path.insert(0, str(RANK.parent))
import ports  # noqa: E402

RANKS = 3
SOON_MS = 1000
TIMEOUT_MS = 2000  # of the case "late"
LIMIT = 120
ENDS = {"ends_by_itself": 0, "ends_with_a_thread_inside": 0, "ends_by_exception": 1, "ends_by_sys_exit": 7, "ends_by_os_exit": 9}
WITHOUT_GOODBYE = {"ends_by_os_exit", "ends_with_a_thread_inside"}  # so that the other may be told of a loss
# What the text must say of both sides.
SIDES = {"count": ["f32 x 11", "f32 x 10"], "dtype": ["f64", "f32"], "operation": ["broadcast", "all_reduce"], "root": ["root 1", "root 0"],
         "message_size": ["f32 x 9", "f32 x 10"]}
RESTARTED = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("tutti")
x = torch.ones(1)
dist.all_reduce(x)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "kill" else os._exit(3)
for _ in range(10):
    dist.all_reduce(x)
dist.destroy_process_group()
"""


def cases():
    for node in ast.parse(RANK.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            return [element.id for element in node.value.elts]
    sys.exit(f"{RANK} has no CASES")


def environment(options, more):
    return os.environ | {"PYTHONPATH": str(options.build / "python"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"} | more


def objections(case, victim, answers, times):
    """What is wrong in what the survivors said; and their times."""
    for rank, (code, out, err) in enumerate(answers):
        is_dead = case.startswith("killed") and rank == victim
        if is_dead or (case == "late" and rank == victim):
            continue
        if code != 0 or not out.strip():
            yield f"rank {rank} ended with {code}: {err[-1500:]}"
            continue
        told = json.loads(out.strip().splitlines()[-1])
        after = told["ms"] - (TIMEOUT_MS if case == "late" else 0)
        times.append(after)
        if after > SOON_MS:
            yield f"rank {rank} was told after {after} ms"
        words = SIDES.get(case, [f"rank {victim}"])
        if missing := [word for word in words if word not in told["text"]]:
            yield f"rank {rank} is not told {missing}: {told['text']}"
        if case == "late" and "Timed out" not in told["text"]:
            yield f"rank {rank} is not told that time passed: {told['text']}"
        if victim not in told["ranks"]:
            yield f"rank {rank}: failure names {told['ranks']}, and not {victim}: {told['text']}"


def run_ranks(command, size, options):
    """(exit code, stdout, stderr) of each; None where one does not end."""
    with ports.held_port() as port:
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = [subprocess.Popen([options.python, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=environment(options, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})) for rank in range(size)]
        try:
            return [(process.returncode, out, err) for process in processes for out, err in [process.communicate(timeout=LIMIT)]]
        except subprocess.TimeoutExpired:
            return None
        finally:
            for process in processes:
                process.kill()
                process.wait()


def run_case(case, victim, options, times):
    with tempfile.TemporaryDirectory(prefix="tutti-failing.") as folder:
        answers = run_ranks([RANK, case, str(victim), f"{folder}/died"], RANKS, options)
    return list(objections(case, victim, answers, times)) if answers else [f"a rank has not ended after {LIMIT} s"]


def ours():
    """What Tutti has in this machine's memory and among its sockets."""
    sockets = {line.split()[-1] for line in pathlib.Path("/proc/net/unix").read_text().splitlines() if "@tutti" in line}
    return sockets | set(os.listdir("/dev/shm"))


def run_end(way, options):
    before = ours()
    answers = run_ranks([RANKS_PROGRAM, way], 2, options)
    if answers is None:
        return [f"a rank has not ended after {LIMIT} s"]
    wrong = []
    for rank, (code, _, err) in enumerate(answers):
        if code != ENDS[way]:
            wrong.append(f"rank {rank} ended with {code}, not {ENDS[way]}: {err[-1500:]}")
        said = ["terminate called"] + ([] if way in WITHOUT_GOODBYE else ["was lost"])
        wrong += [f"rank {rank} says {word!r}: {err[-1500:]}" for word in said if word in err]
    if left := ours() - before:
        wrong.append(f"left: {sorted(left)}")
    return wrong


def run_restart(how, rendezvous, victim, options):
    with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="tutti-restart.") as program, ports.held_port() as port:
        program.write(RESTARTED)
        program.flush()
        where = ["--standalone"] if rendezvous == "default" else ["--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}"]
        command = [options.python, "-m", "torch.distributed.run", *where, f"--nproc-per-node={RANKS}", "--max-restarts=1", program.name, how, str(victim)]
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(options, {}),
                                   start_new_session=True)
        try:
            text = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return [f"it has not ended after {LIMIT} s"]
        return [] if process.returncode == 0 else [f"it ended with {process.returncode}: {text[-2000:]}"]


def figures(times):
    ordered = sorted(times)
    return {"n": len(ordered), "p50": ordered[len(ordered) // 2], "max": ordered[-1]} if ordered else {"n": 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--python", required=True, help="the interpreter for whose torch it was built")
    parser.add_argument("--rounds", type=int, default=10, help="of each case (10); of torchrun's jobs and of ends twice as many")
    parser.add_argument("--only", nargs="*", help="cases, torchrun, or ends")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31), help="of which rank is the first victim")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    started, wrong, result = time.monotonic(), [], {}

    def keep(name, number, objected):
        wrong.extend(f"{name}, round {number}: {each}" for each in objected)
        for each in objected:
            print(f"WRONG: {name}, round {number}: {each}", flush=True)

    for case in cases():
        if options.only and case not in options.only:
            continue
        times = []
        for number in range(options.rounds):
            keep(case, number, run_case(case, (options.seed + number) % RANKS, options, times))
        result[case] = figures(times)
        print(f"pytorch-failures: {case}: {options.rounds} rounds, ms: {result[case]}, {len(wrong)} wrong so far", flush=True)
    for how in ("exit", "kill"):
        for rendezvous in ("default", "static"):
            if options.only and "torchrun" not in options.only:
                continue
            for number in range(2 * options.rounds):
                keep(f"torchrun {how} {rendezvous}", number, run_restart(how, rendezvous, (options.seed + number) % RANKS, options))
            print(f"pytorch-failures: torchrun, {how}, {rendezvous} rendezvous: {2 * options.rounds} jobs, {len(wrong)} wrong so far", flush=True)
    for way in ENDS:
        if options.only and "ends" not in options.only:
            continue
        for number in range(2 * options.rounds):
            keep(way, number, run_end(way, options))
        print(f"pytorch-failures: {way}: {2 * options.rounds} programs of two ranks, {len(wrong)} wrong so far", flush=True)
    print(f"pytorch-failures: {time.monotonic() - started:.0f} s, {len(wrong)} wrong")
    if options.out:
        options.out.write_text(json.dumps({"soak": "pytorch-failures", "seed": options.seed, "rounds": options.rounds,
                                           "seconds": round(time.monotonic() - started), "told_ms": result, "wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
