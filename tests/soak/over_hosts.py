"""What the soaks over several hosts share: a world by hand on hosts made by tools/hosts.py, what its ranks say and when, what is
left of it, figures, progress, evidence."""
import argparse
import ctypes
import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import hosts  # noqa: E402

BOUNDS = (1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100, 200, 500, 1000, 2000, 2500, 3000, 3500, 4000, 5000)
CLONE_NEWNS, MS_REC, MS_SLAVE = 0x20000, 0x4000, 0x80000
LOST = re.compile(r"\w+ code=(\w+) culprits=([\d,]*) known=(\d+)")


class Job:
    """A world of `each` ranks on every host of `network`, started by hand. `lines` holds (rank, text) of both outputs."""

    def __init__(self, network, host_count, each, command, more=None):
        self.network, self.host_count, self.each = network, host_count, each
        self.size = host_count * each
        self.lines, self.changed = [], threading.Condition()
        self.ranks = hosts.Ranks(network, host_count, each, [str(word) for word in command], hear=self.hear, more=more)

    def hear(self, rank, _is_error, line):
        with self.changed:
            self.lines.append((rank, line.decode(errors="replace").rstrip("\n")))
            self.changed.notify_all()

    def said(self, start, ranks=None):
        """By rank: its first line that begins with `start`."""
        with self.changed:
            found = {}
            for rank, text in self.lines:
                if text.startswith(start) and (ranks is None or rank in ranks):
                    found.setdefault(rank, text)
            return found

    def wait_for(self, start, ranks, seconds):
        """Whether each of `ranks` says a line that begins with `start` by then."""
        until = time.monotonic() + seconds
        with self.changed:
            while not set(ranks) <= set(self.said_locked(start)):
                left = until - time.monotonic()
                if left <= 0 or self.have_ended(ranks):
                    return set(ranks) <= set(self.said_locked(start))
                self.changed.wait(min(left, 0.1))
        return True

    def said_locked(self, start):
        return {rank for rank, text in self.lines if text.startswith(start)}

    def have_ended(self, ranks):
        return all(self.ranks.processes[rank].poll() is not None and not self.ranks.readers[2 * rank].is_alive() for rank in ranks)

    def signal(self, number, ranks):
        for rank in ranks:
            self.ranks.processes[rank].send_signal(number)

    def wait_ends(self, ranks, seconds):
        """By rank: its exit code, negative for a signal; None: it runs on."""
        until = time.monotonic() + seconds
        processes = {rank: self.ranks.processes[rank] for rank in ranks}
        while any(process.poll() is None for process in processes.values()) and time.monotonic() < until:
            time.sleep(0.005)
        return {rank: process.poll() for rank, process in processes.items()}

    def end(self):
        self.ranks.end()

    def text(self):
        with self.changed:
            return "\n".join(f"  [{rank}] {text}" for rank, text in self.lines)


def take_own_shm():
    """From now on this process and its children have a /dev/shm that nobody else sees: other programs put things into everybody's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None) or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None):
        raise hosts.NotPermitted(f"a /dev/shm of one's own: {os.strerror(ctypes.get_errno())}")


class Leftovers:
    """What a job could leave: processes and sockets of its hosts, entries of /dev/shm and of a TMPDIR of its own."""

    def __init__(self, network, host_count):
        self.network, self.host_count = network, host_count
        self.folder = tempfile.TemporaryDirectory(prefix="tutti_soak_")
        os.environ["TMPDIR"] = self.folder.name
        self.shm = set(os.listdir("/dev/shm"))

    def processes(self):
        pids = [int(pid) for host in range(self.host_count) for pid in hosts.ip("netns", "pids", self.network.name(host)).split()]
        return [pid for pid in pids if state_of(pid).split()[-1] not in ("Z", "ended")]

    def now(self):
        left = [f"process {pid} ({state_of(pid)})" for pid in self.processes()]
        for host in range(self.host_count):
            shown = subprocess.run(["ip", "netns", "exec", self.network.name(host), "ss", "-Hntax"], capture_output=True, text=True, check=True)
            # A connection in TIME-WAIT is a note of the kernel's, and of no process.
            left += [f"host {host}: {line}" for line in shown.stdout.splitlines() if " TIME-WAIT " not in f" {line} "]
        left += [f"TMPDIR: {name}" for name in os.listdir(self.folder.name)]
        return left + [f"/dev/shm: {name}" for name in set(os.listdir("/dev/shm")) - self.shm]

    def after(self, seconds):
        """What is still there then."""
        until = time.monotonic() + seconds
        while (left := self.now()) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def kill_processes(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def state_of(pid):
    """ "kills_core_rank S": its name and state."""
    try:
        return " ".join(re.findall(r"^(?:Name|State):\t(\S+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M))
    except OSError:
        return "has ended"


def culprits_of(line):
    """(code, set of culprits, when it was known) of a line "lost ..." or "second ..."."""
    code, culprits, known = LOST.match(line).groups()
    return code, {int(rank) for rank in culprits.split(",") if rank}, int(known)


class Figures:
    """Times in ms."""

    def __init__(self, samples=()):
        self.samples = list(samples)

    def percentile(self, share):
        ordered = sorted(self.samples)
        return ordered[int(share * (len(ordered) - 1) + 0.5)] if ordered else 0.0

    def summary(self):
        return (f"n={len(self.samples)} p50 {self.percentile(0.5):.1f} p99 {self.percentile(0.99):.1f} "
                f"max {self.percentile(1):.1f} ms")

    def report(self):
        counts, below = {}, 0
        for bound in (*BOUNDS, float("inf")):
            count = sum(below < sample <= bound for sample in self.samples)
            if count:
                counts["more" if bound == float("inf") else f"<={bound} ms"] = count
            below = bound
        return {"samples": len(self.samples), "p50_ms": round(self.percentile(0.5), 2), "p99_ms": round(self.percentile(0.99), 2),
                "max_ms": round(self.percentile(1), 2), "histogram": counts}


class Progress:
    """A line now and then: "kills: 37 of 200 (resident), 0 wrong, 41 s left"."""

    def __init__(self, name, rounds):
        self.name, self.rounds, self.done, self.begin, self.told = name, rounds, 0, time.monotonic(), 0

    def advance(self, what, wrong):
        self.done += 1
        now = time.monotonic()
        if now - self.told < 5 and self.done < self.rounds:
            return
        self.told = now
        left = (now - self.begin) / self.done * (self.rounds - self.done)
        print(f"{self.name}: {self.done} of {self.rounds} ({what}), {wrong} wrong, {left:.0f} s left", file=sys.stderr)


def parser(description):
    words = argparse.ArgumentParser(description=description)
    words.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    words.add_argument("--ranks", type=int, default=2, help="on each host (2)")
    words.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    words.add_argument("--scale", type=float, default=1, help="promises are judged at so many times their figure")
    words.add_argument("--only", default="", metavar="SERIES[,SERIES]", help="these series; else all")
    words.add_argument("--out", type=pathlib.Path, help="JSON goes here")
    return words


def asked(options, names):
    """The series of `names` that --only asks for: all, where it asks for none."""
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - set(names):
        sys.exit(f"--only {','.join(sorted(unknown))}: there are {', '.join(names)}")
    return [name for name in names if name in (only or names)]


def machine(name):
    """How the report of a soak begins."""
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    return {"soak": name, "commit": commit.stdout.strip(), "date": datetime.date.today().isoformat(), "cpu": cpu,
            "cores": os.cpu_count(), "load": [round(load, 1) for load in os.getloadavg()]}


def write_evidence(options, name, fields):
    if not options.out:
        return
    report = {**machine(name), "seed": options.seed, "ranks_per_host": options.ranks, "scale": options.scale, **fields}
    options.out.write_text(json.dumps(report, indent=2) + "\n")


def run(soak, options):
    """`soak(options)` with namespaces taken down whatever ends it; its result is the exit code."""
    if os.geteuid() != 0:
        print("SKIPPED: network namespaces need root", file=sys.stderr)
        return hosts.NOT_PERMITTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hosts.interrupt)
    try:
        hosts.remove_stale()
        return soak(options)
    except hosts.NotPermitted as failure:
        print(f"SKIPPED: {failure}", file=sys.stderr)
        return hosts.NOT_PERMITTED
    except FileNotFoundError as missing:
        if not hosts.is_not_installed(missing):
            raise
        print(f"SKIPPED: {missing.filename} is not installed: apt-get install iproute2", file=sys.stderr)
        return hosts.NOT_PERMITTED


class Hosts:
    """`with Hosts(3) as network:` makes them and takes them down."""

    def __init__(self, host_count):
        self.host_count = host_count

    def __enter__(self):
        self.network = hosts.Network()
        try:
            self.network.build(self.host_count, "")
        except BaseException:
            self.network.take_down()
            raise
        return self.network

    def __exit__(self, *_):
        self.network.take_down()
