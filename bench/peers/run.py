#!/usr/bin/env python3
"""Measures all_reduce beside other libraries on the same work, in one run. How: bench/peers/README.md.

  bench/peers/run.py                          the whole table, about three minutes
  bench/peers/run.py --n 2 --sizes 8,64K,1M   some cells
  bench/peers/run.py --peers tutti,engine     the public call beside the bare engine
  bench/peers/run.py --before ../old/build/release    this build beside another one
  bench/peers/overhead.py                     the backends gloo and mpi beside their bare libraries
"""
import argparse
import datetime
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = "8,64,512,4K,8K,16K,64K,256K,1M,4M,16M,64M"
TARGET_S = 0.012  # one peer's share of a round
GLOO = ["ring", "bcube", "halving-doubling"]


def size_of(text):
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def new_group(peer):
    """All ranks of a peer in one process group. Not one session each: the kernel schedules by session
    (sched_autogroup), and a yield then never reaches another rank."""
    leader = peer.processes[0].pid if peer.processes else 0
    return lambda: os.setpgid(0, leader)


class Peer:
    """The ranks of one library, alive and asleep on their pipes."""

    def __init__(self, name, ranks, command, folder, environment=None, per_rank=False):
        self.name, self.ranks = name, ranks
        self.algorithm, self.times = 0, {}
        self.algorithms = range(len(GLOO)) if name == "gloo" else [0]  # of which the best is taken
        pipes = str(folder / name.replace(" ", "-"))
        self.commands, self.answers, self.buffers = [], [], [b""] * ranks
        for rank in range(ranks):
            for end, into in (("in", self.commands), ("out", self.answers)):
                os.mkfifo(f"{pipes}.{rank}.{end}")
                into.append(os.open(f"{pipes}.{rank}.{end}", os.O_RDWR | os.O_CLOEXEC))
        self.log = open(f"{pipes}.log", "wb")
        self.processes = []
        for rank in range(ranks if per_rank else 1):
            argv = [str(a).replace("{pipes}", pipes).replace("{rank}", str(rank)) for a in command]
            variables = {**os.environ, **{k: v.replace("{rank}", str(rank)) for k, v in (environment or {}).items()}}
            self.processes.append(subprocess.Popen(argv, env=variables, stdin=subprocess.DEVNULL, stdout=self.log,
                                                   stderr=self.log, preexec_fn=new_group(self)))

    def ask(self, line, limit=60):
        """Sends a command to all ranks; returns their answers."""
        for pipe in self.commands:
            os.write(pipe, (line + "\n").encode())
        deadline, answers = time.monotonic() + limit, {}
        while len(answers) < self.ranks:
            left = deadline - time.monotonic()
            ready = select.select(self.answers, [], [], max(0, min(left, 1)))[0]
            for pipe in ready:
                rank = self.answers.index(pipe)
                self.buffers[rank] += os.read(pipe, 4096)
                if self.buffers[rank].endswith(b"\n"):
                    answers[rank], self.buffers[rank] = float(self.buffers[rank]), b""
            if left <= 0 or (not ready and any(p.poll() is not None for p in self.processes)):
                self.log.flush()
                text = pathlib.Path(self.log.name).read_text(errors="replace")[-600:]
                raise RuntimeError(f"{self.name}: no answer to '{line}'\n{text}")
        return [answers[rank] for rank in range(self.ranks)]

    def check(self, size):
        wrong = sum(self.ask(f"check {size} {self.algorithm}"))
        if wrong:
            raise RuntimeError(f"{self.name}: {wrong:.0f} wrong elements at {size_name(size)}, n={self.ranks}")

    def run(self, size, times):
        """Microseconds per operation of the slowest rank."""
        return max(self.ask(f"run {size} {times} {self.algorithm}")) / 1000

    def warm_up(self, size):
        """Until the kernel has spread the ranks over the cores; the first cell would be of another machine."""
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self.run(size, 1000)

    def prepare(self, size):
        """Checks the result and finds how often to repeat; Gloo's best algorithm is chosen here."""
        best = None
        for algorithm in self.algorithms:
            self.algorithm = algorithm
            self.check(size)
            took = self.estimate(size)
            if best is None or took < best[0]:
                best = (took, algorithm)
        self.algorithm = best[1]
        self.times[size] = max(2, min(100_000, int(TARGET_S * 1e6 / best[0])))

    def estimate(self, size):
        """Microseconds per operation at the best; a stall of the machine must not end the search early."""
        times, best = 4, float("inf")
        for _ in range(8):
            took = max(self.run(size, times), 0.02)
            best = min(best, took)
            if best * times >= TARGET_S * 1e6 / 2:
                break
            times = min(times * 4, 100_000)
        return best

    def stop(self):
        for pipe in self.commands:
            os.write(pipe, b"quit\n")
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.processes[0].pid, signal.SIGKILL)
                process.wait()
        for pipe in self.commands + self.answers:
            os.close(pipe)


def start_peers(wanted, n, build, folder, largest, before=None):
    bench, peers = build / "bench" / "peers", []
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    binding = ["--bind-to", "core"] if n <= len(os.sched_getaffinity(0)) else ["--bind-to", "none"]
    ompi = ["mpirun.openmpi", "--oversubscribe", *binding, "-n", n]
    tail = ["{pipes}", largest]
    def by_hand(**more):
        """Ranks without a launcher; every peer meets at a port of its own."""
        port[0] += 1
        return {"RANK": "{rank}", "WORLD_SIZE": str(n), "LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": str(n),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port[0]), **more}
    port = [20000 + os.getpid() % 10000 * 4]
    unchecked, unblocked = {"TUTTI_CHECK": "off"}, {"TUTTI_MPI_MODE": "nonblocking"}
    table = {
        "tutti": ("peer_tutti", lambda p: [p, *tail], by_hand(), True),
        "before": ("peer_tutti", lambda p: [p, *tail], by_hand(), True),
        "tutti-gloo": ("peer_tutti", lambda p: [p, *tail], by_hand(TUTTI_BACKEND="gloo"), True),
        "tutti-gloo-unchecked": ("peer_tutti", lambda p: [p, *tail],
                                 by_hand(TUTTI_BACKEND="gloo", **unchecked), True),
        "engine": ("peer_engine", lambda p: [p, *tail, n], {}, False),
        "openmpi": ("peer_openmpi", lambda p: [*ompi, p, *tail], mpi, False),
        "openmpi-nocma": ("peer_openmpi", lambda p: [*ompi, "--mca", "btl_vader_single_copy_mechanism", "none", p,
                                                     *tail], mpi, False),
        # MPICH only spins: with more ranks than cores it is 1000 times slower.
        "mpich": ("peer_mpich", lambda p: ["mpirun.mpich", "-n", n, p, *tail], {}, False),
        "gloo": ("peer_gloo", lambda p: [p, *tail, "{rank}", n, folder / "store"], {}, True),
    }
    for name, launch in ("openmpi", ompi), ("mpich", ["mpirun.mpich", "-n", n]):
        for mode, variables in ("", {}), ("-unchecked", unchecked), ("-nonblocking", unblocked):
            table[f"tutti-{name}{mode}"] = ("peer_tutti", lambda p, launch=launch: [*launch, p, *tail],
                                            {**mpi, "TUTTI_BACKEND": "mpi", **variables}, False)
    (folder / "store").mkdir()
    for name in wanted:
        program, command, environment, per_rank = table[name]
        path = (before / "bench" / "peers" if name == "before" else bench) / program
        launcher = str(command(path)[0])
        if not path.exists() or not shutil.which(launcher):
            print(f"{name}: not built here, left out", file=sys.stderr)
        elif "mpich" in name and n > len(os.sched_getaffinity(0)):
            print(f"{name}: more ranks than cores, left out", file=sys.stderr)
        else:
            peers.append(Peer(name, n, command(path), folder, environment, per_rank))
    return peers


def probe(build):
    """Nanoseconds of a cache line going to and fro between two cores."""
    return float(subprocess.run([build / "bench/peers/peer_probe"], capture_output=True, text=True).stdout)


def measure_cell(peers, size, rounds, probe, budget_s=20):
    """Rounds of A B C ..., every other one backwards, with the machine's state before and after each."""
    kept, dropped = [], 0
    for peer in peers:
        peer.prepare(size)
    budget = time.monotonic() + budget_s
    while len(kept) < rounds and dropped <= rounds and (time.monotonic() < budget or len(kept) < 3):
        before = probe()
        in_turn = peers if len(kept) % 2 == 0 else peers[::-1]
        times = {peer.name: peer.run(size, peer.times[size]) for peer in in_turn}
        after = probe()
        entry = {"probe_ns": [before, after], "us": times}
        if max(before, after) > 1.6 * min(before, after):
            dropped += 1
            if dropped > rounds:
                kept.append(entry)
            continue
        kept.append(entry)
    steady = dropped <= rounds and len(kept) >= 7
    return {"size": size, "rounds": kept, "dropped": dropped, "steady": steady,
            "gloo": next((GLOO[p.algorithm] for p in peers if p.name == "gloo" and p.algorithm >= 0), None)}


def measure_table(n, wanted, sizes, options, build, before):
    """Cells by size. Their rounds come from several starts of all peers, by which the same program differs from
    itself by up to a quarter."""
    starts = min(options.starts, options.rounds)
    cells = {}
    for start in range(starts):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        peers = []
        try:
            peers = start_peers(wanted, n, build, folder, max(sizes), before)
            for peer in peers:
                peer.warm_up(min(sizes))
            for size in sizes:
                rounds = options.rounds * (start + 1) // starts - options.rounds * start // starts
                cell = measure_cell(peers, size, rounds, lambda: probe(build))
                if size in cells:
                    cells[size]["rounds"] += cell["rounds"]
                    cells[size]["dropped"] += cell["dropped"]
                else:
                    cells[size] = cell
            print(f"n={n}: start {start + 1} of {starts} measured", file=sys.stderr)
        finally:
            for peer in peers:
                peer.stop()
            shutil.rmtree(folder, ignore_errors=True)
    for cell in cells.values():
        cell["steady"] = cell["dropped"] <= options.rounds and len(cell["rounds"]) >= 7
    return list(cells.values()), [peer.name for peer in peers]


def summary(cell, names, subject):
    result = {"probe_ns": statistics.median(x for r in cell["rounds"] for x in r["probe_ns"]), "us": {}, "ratio": {}}
    for name in names:
        result["us"][name] = statistics.median(r["us"][name] for r in cell["rounds"])
    for name in names:
        ratios = sorted(r["us"][name] / r["us"][subject] for r in cell["rounds"])
        result["ratio"][name] = [statistics.median(ratios), ratios[0], ratios[-1]]
    mpi = [name for name in names if "mpi" in name]
    if mpi:  # against the better of them, round by round
        result["best_mpi"] = statistics.median(min(r["us"][m] for m in mpi) / r["us"][subject] for r in cell["rounds"])
    return result


def markdown(n, cells, names, subject):
    others = [name for name in names if name != subject]
    lines = [f"### n = {n}: microseconds (how many times {subject}'s)", "",
             "| bytes | " + subject + " | " + " | ".join(others) + " | best MPI / " + subject + " | cache line, ns |",
             "|---|" + "---|" * (len(others) + 3)]
    def number(x):
        return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"
    logs = []
    for cell in cells:
        s = cell["summary"]
        row = [size_name(cell["size"]) + ("" if cell["steady"] else " ~"), f"**{number(s['us'][subject])}**"]
        row += [f"{number(s['us'][name])} ({s['ratio'][name][0]:.2f}x)" for name in others]
        best = s.get("best_mpi")
        if best:
            import math
            logs.append(math.log(best))
        row += [f"{best:.2f}x" if best else "-", f"{s['probe_ns']:.0f}"]
        lines.append("| " + " | ".join(row) + " |")
    if logs:
        import math
        lines += ["", f"Geometric mean against the better MPI: {math.exp(sum(logs) / len(logs)):.2f}x"]
    return "\n".join(lines)


def hold_lock():
    """One timing run at a time; ./dev holds the same lock for us on descriptor 8."""
    path = ROOT / "build" / "timing.lock"
    try:
        if os.path.samefile("/proc/self/fd/8", path):
            return None
    except OSError:
        pass
    path.parent.mkdir(exist_ok=True)
    lock = open(path, "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("another bench or soak holds build/timing.lock; two timing things at once measure nothing")
    return lock


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    family = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("cpu family")), "?")
    commit = ""
    if (ROOT / ".git").exists() and shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    elif (ROOT / "build/gpu-carried/commit").exists():  # ./dev gpu
        commit = (ROOT / "build/gpu-carried/commit").read_text()
    return {"cpu": f"{cpu} (family {family})", "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(),
            "commit": commit.strip(), "date": datetime.date.today().isoformat()}


def write_report(report, path):
    report["load_after"] = os.getloadavg()
    print(f"\nLoad at the end: {report['load_after'][0]:.1f}. `~`: the machine's state changed too often during the cell.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--n", default="2,4", help="numbers of ranks (2,4)")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes ({SIZES})")
    parser.add_argument("--peers", default="tutti,openmpi,openmpi-nocma,mpich,gloo", help="the first is the subject")
    parser.add_argument("--before", type=pathlib.Path, help="another build folder: its public call is the peer 'before'")
    parser.add_argument("--rounds", default=9, type=int, help="per cell (9; under 7 a cell counts as unsteady)")
    parser.add_argument("--starts", default=3, type=int, help="of all peers, among which the rounds are divided (3)")
    parser.add_argument("--json", default=ROOT / "docs" / "evidence" / "peers.json", type=pathlib.Path)
    options = parser.parse_args()
    lock = hold_lock()
    build = options.build.resolve()
    sizes = [size_of(s) for s in options.sizes.split(",")]
    wanted = options.peers.split(",")
    before = options.before and options.before.resolve()
    if before:
        wanted.insert(1, "before")
    report = {"what": "all_reduce f32 sum in place", **machine(), "tables": []}
    print(f"{report['what']}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f} at the start; "
          f"commit {report['commit']}, {report['date']}")
    for n in (int(n) for n in options.n.split(",")):
        cells, names = measure_table(n, wanted, sizes, options, build, before)
        for cell in cells:
            cell["summary"] = summary(cell, names, names[0])
        report["tables"].append({"n": n, "cells": cells})
        print("\n" + markdown(n, cells, names, names[0]), flush=True)
    write_report(report, options.json)
    del lock


if __name__ == "__main__":
    main()
