#!/usr/bin/env python3
"""Soak `init`: one of three ranks is killed at every system call of init, new_group, split and close; the others learn at
once, and all the same, who died. Resumable: what is done is kept in a file, and a second call goes on there."""
import argparse
import collections
import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid

import over_hosts

RANKS = 3
QUIET_AFTER = 3     # s after the kill: a job that still waits does so without using the machine
MOST_QUIET = 60
FIRST_CLOSE = 4     # kill_at.h: Phase
BUDGET_MS = {"native": 1000, "gloo": 2000}


class Job:
    """One world, of which one rank is traced."""

    next_port = 21000 + os.getpid() % 20000

    def __init__(self, options, backend, how, victim, call):
        build = options.build
        self.backend, self.how, self.victim, self.call = backend, how, victim, call
        self.id = uuid.uuid4().hex
        self.began, self.ends, self.processes = time.monotonic(), {}, []
        rank, kill_at = os.path.join(build, "tests/soak/init_rank"), os.path.join(build, "tests/soak/kill_at")
        environment = {k: v for k, v in os.environ.items() if k != "TUTTI_AGENT"}
        environment.update(SOAK_ID=self.id, TUTTI_BACKEND=backend, TUTTI_TIMEOUT=f"{options.timeout}s", TUTTI_LOG="error")
        if how == "run":
            traced = f'[ "$RANK" = {victim} ] && exec {kill_at} {call} {rank}; exec {rank}'
            command = [os.path.join(build, "cli/tutti"), "run", "-n", str(RANKS), "--failure-grace", "10", "sh", "-c", traced]
            self.start(command, environment)
            return
        Job.next_port += 1
        for r in range(RANKS):
            here = dict(environment, RANK=str(r), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(RANKS),
                        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(Job.next_port))
            self.start([kill_at, str(call), rank] if r == victim else [rank], here)

    def start(self, command, environment):
        if not self.processes:
            self.output = os.memfd_create("soak")
            fcntl.fcntl(self.output, fcntl.F_SETFL, os.O_APPEND)  # several ranks write at once
        self.processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=self.output,
                                               stderr=self.output))

    def text(self):
        return os.pread(self.output, 1 << 20, 0).decode("utf8", "replace")

    def is_over(self):
        return all(p.poll() is not None for p in self.processes)

    def age(self):
        return time.monotonic() - self.began

    def left(self):
        """Processes of this job that live."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.id.encode() not in file.read():
                        continue
                with open(f"/proc/{pid}/stat") as file:
                    stat = file.read()
                if stat[stat.rfind(")") + 2] not in "ZX":
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def end(self):
        """Ends what is left of it; how many processes that were."""
        deadline = time.monotonic() + 1
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for process in self.processes:
            process.wait()
        os.close(self.output)
        return len(left)


def judge(job, text, is_late, scale=1):
    """-> (what it was, what is wrong or None, the slowest survivor in ms)."""
    killed = re.search(r"KILLED (\d+) (\d) (\d+)", text)
    said = {int(rank): (int(at), phase, code, culprits, what) for rank, at, phase, code, culprits, what in
            re.findall(r"RANK (\d) (\d+) (\w+) (\w+) (\S+) ?([^\n]*)", text)}
    if not killed:
        wrong = [r for r in range(RANKS) if said.get(r, (0, 0, "nothing"))[2] != "ok"]
        return "not reached", f"not killed, yet ranks {wrong} did not end in order" if wrong else None, 0
    at, phase = int(killed[1]), int(killed[2])
    slowest, kinds = 0, set()
    for rank in range(RANKS):
        if rank == job.victim:
            continue
        if rank not in said:
            return "named", f"rank {rank} said nothing" + (" and hangs" if is_late else ""), 0
        when, where, code, culprits, what = said[rank]
        if code == "ok":
            if phase < FIRST_CLOSE:
                return "named", f"rank {rank} ended in order, though rank {job.victim} was killed in phase {phase}", 0
            kinds.add("in order")
        elif code == "kTimeout" and job.how == "hand" and where == "init" and culprits == str(job.victim) and "missing" in what:
            kinds.add("missing")
        elif code == "kTimeout" and job.how == "hand" and phase == 1 and culprits == "0" and "nobody serves" in what:
            kinds.add("came later")  # it had not met rank 0, which has named the victim and gone
        elif code != "kPeerLost" or culprits != str(job.victim):
            return "named", f"rank {rank} in {where}: {code} {culprits} {what}", 0
        else:
            kinds.add("named")
            slowest = max(slowest, (when - at) / 1e6)
    # Rank 0 serves the store: whoever had met it knows that it died, whoever comes later finds nobody.
    if "missing" in kinds and kinds != {"missing"} and job.victim != 0:
        return "named", f"some name rank {job.victim}, others miss it", slowest
    if "came later" in kinds and "named" not in kinds:
        return "named", "nobody learned of the death", slowest
    if slowest > BUDGET_MS[job.backend] * scale:
        return "named", f"named after {slowest:.0f} ms", slowest
    return "came later" if "came later" in kinds else "missing" if "missing" in kinds else "named" if "named" in kinds else "in order", None, slowest


def count_calls(options, backend, how, victim):
    """System calls of an undisturbed run."""
    job = Job(options, backend, how, victim, 0)
    while not job.is_over() and job.age() < options.timeout:
        time.sleep(0.01)
    counted = re.search(r"COUNTED (\d+)", job.text())
    text = job.text()
    job.end()
    if not counted:
        sys.exit(f"init: no system call was counted ({backend}, {how}, rank {victim}):\n{text}")
    return int(counted[1])


class Soak:
    def __init__(self, options):
        self.options = options
        self.state = {"seed": options.seed, "build": build_id(options.build), "every": options.every, "series": {}}
        if options.state and os.path.exists(options.state):
            with open(options.state) as file:
                kept = json.load(file)
            if kept["build"] == self.state["build"] and kept["every"] == options.every:
                self.state = kept
        self.jobs, self.failed, self.began = [], 0, time.monotonic()

    def series(self):
        for backend in self.options.backends:
            for how in ("run", "hand"):
                for victim in range(RANKS):
                    yield backend, how, victim

    def calls_of(self, backend, how, victim):
        """The record of a series, made at its first call."""
        name = f"{backend} {how} rank {victim}"
        if name not in self.state["series"]:
            total = count_calls(self.options, backend, how, victim)
            step = self.options.every * (3 if backend == "gloo" else 1)
            start = 1 + random.Random(f"{self.state['seed']} {name}").randrange(step)
            self.state["series"][name] = {"calls": total, "first": start, "step": step, "done": [], "results": {}, "slowest_ms": 0,
                                          "wrong": []}
        return self.state["series"][name]

    def save(self):
        if self.options.state:
            with open(self.options.state + ".new", "w") as file:
                json.dump(self.state, file)
            os.replace(self.options.state + ".new", self.options.state)

    def is_over_budget(self):
        return time.monotonic() - self.began > self.options.minutes * 60

    def collect(self):
        for job in list(self.jobs):
            late = job.age() > self.options.timeout + 20
            if not job.is_over() and not late:
                continue
            self.jobs.remove(job)
            text = job.text()
            what, wrong, slowest = judge(job, text, late, self.options.scale)
            left = job.end()
            codes = [p.returncode for p in job.processes]
            if left and not late:
                wrong = wrong or f"{left} processes were left"
            record = self.calls_of(job.backend, job.how, job.victim)
            record["done"].append(job.call)
            record["results"][what] = record["results"].get(what, 0) + 1
            record["slowest_ms"] = round(max(record["slowest_ms"], slowest), 1)
            if wrong:
                self.failed += 1
                record["wrong"].append([job.call, wrong])
                print(f"init: WRONG: {job.backend} {job.how} rank {job.victim} call {job.call}: {wrong}; exit codes {codes}\n{text}",
                      file=sys.stderr)

    def wait_for_room(self):
        while True:
            self.collect()
            busy = sum(job.age() < QUIET_AFTER for job in self.jobs)
            if busy < self.options.jobs and len(self.jobs) < self.options.jobs + MOST_QUIET:
                return
            time.sleep(0.005)

    def run(self):
        for backend, how, victim in self.series():
            record = self.calls_of(backend, how, victim)
            done = set(record["done"])
            for number, call in enumerate(range(record["first"], record["calls"] + 1, record["step"])):
                if call in done:
                    continue
                if self.is_over_budget():
                    break
                self.wait_for_room()
                self.jobs.append(Job(self.options, backend, how, victim, call))
                if number % 50 == 0:
                    self.save()
            print(f"init: {backend} {how} rank {victim}: {len(record['done'])} of {record['calls'] // record['step']} calls, "
                  f"{record['results']}, slowest {record['slowest_ms']} ms, {len(record['wrong'])} wrong", file=sys.stderr)
        while self.jobs:
            self.collect()
            time.sleep(0.01)
        self.save()

    def report(self):
        rows, is_complete, wrong = {}, True, 0
        totals = collections.Counter()
        for name, record in self.state["series"].items():
            wanted = len(range(record["first"], record["calls"] + 1, record["step"]))
            is_complete &= len(record["done"]) >= wanted
            wrong += len(record["wrong"])
            totals.update(record["results"])
            rows[name] = {k: record[k] for k in ("calls", "step", "results", "slowest_ms", "wrong")}
        is_complete &= len(rows) == len(list(self.series()))
        return {**over_hosts.machine("init"), "ranks": RANKS, "timeout_s": self.options.timeout, "seed": self.state["seed"],
                "complete": is_complete, "kills": dict(totals), "wrong": wrong, "series": rows}


def build_id(build):
    with open(os.path.join(build, "libtutti.so"), "rb") as file:
        import hashlib
        return hashlib.sha256(file.read()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build folder")
    parser.add_argument("--every", type=int, default=1, help="every so many-th call on native; gloo: a third of that")
    parser.add_argument("--backends", nargs="+", default=["native", "gloo"])
    parser.add_argument("--scale", type=float, default=1, help="times are judged at so many times the promised")
    parser.add_argument("--timeout", type=int, default=60, help="of the ranks, s")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at a time, besides those that only wait for their timeout")
    parser.add_argument("--minutes", type=float, default=90, help="then stop; with --state another call goes on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--state", help="file that says what is done")
    parser.add_argument("--out", help="JSON goes here")
    options = parser.parse_args()
    if "gloo" in options.backends and not os.path.exists(os.path.join(options.build, "libtutti_backend_gloo.so")):
        options.backends.remove("gloo")
        print("init: gloo: not here, left out", file=sys.stderr)
    soak = Soak(options)
    soak.run()
    report = soak.report()
    print(f"init: {report['kills']}, {report['wrong']} wrong, {'complete' if report['complete'] else 'NOT COMPLETE: call again'}",
          file=sys.stderr)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    sys.exit(1 if report["wrong"] else 0)


if __name__ == "__main__":
    main()
