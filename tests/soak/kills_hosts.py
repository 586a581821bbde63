#!/usr/bin/env python3
"""Soak `kills --hosts N`: ranks of a world over hosts are killed with SIGKILL at a random moment, again and again.

Victims, in turn: any rank; the relay of the lowest host; that and the relay of the next host at the same moment, or up to 20 ms later;
all ranks of a host. Shown in every round: each survivor has stored the cause within the promise (P1, counted from the first kill(2)); all name
the same culprits, which were killed; each ends by itself with its error; a second later nothing is left on any host.
Not each of several victims need be named: the verdict falls with the first deaths that are known. Of two relays that die at the same
moment one is named as a rule; the evidence counts the rounds in which all were ("rounds_that_name_all").

In the series ddp each survivor then trains on: alone, in a new group of the survivors, and until one of these kills itself, too. Its
ranks meet in a file: a store by hand would be gone with rank 0.

Where all ranks of a host die, others learn it by the ends of their connections, which the kernel closes once it has freed their memory:
P1 allows for that (docs/decisions/0046). How long it takes for a process that has nothing to do with Tutti is measured first; in rounds
in which a host with so much memory dies as a whole it is added to what P1 gives. All other figures count from kill(2).
"""
import pathlib
import random
import signal
import subprocess
import sys
import time

import over_hosts
from over_hosts import Figures

VICTIMS = ("any", "relay", "relays", "one by one", "host")


def victims_of(kind, dice, options):
    if kind == "any":
        return [dice.randrange(options.hosts * options.ranks)]
    if kind == "relay":
        return [0]
    if kind in ("relays", "one by one"):
        return [0, options.ranks]
    host = dice.randrange(options.hosts)
    return list(range(host * options.ranks, (host + 1) * options.ranks))


def freeing_ms(gib):
    """From kill(2) to the end of a pipe of a process with so much memory: the shortest of three."""
    program = f"import sys; memory = b'1' * {int(gib * (1 << 30))}; print('ready', flush=True); sys.stdin.read()"
    times = []
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            began = time.monotonic_ns()
            child.kill()
            child.stdout.read()
            times.append((time.monotonic_ns() - began) / 1e6)
    return min(times)


def series_of(options):
    soak = options.build / "tests" / "soak"
    core, ddp = soak / "kills_core_rank", soak / "kills_ddp_rank"
    resident = str(int(options.resident_gib * 1024))
    every = {"collectives": [core, "collectives", "0", "alone"], "training": [core, "training", "0", "alone"],
             "resident": [core, "collectives", resident, "alone"], "helper": [core, "collectives", "0", "helper"]}
    if ddp.exists():
        every["ddp"] = [ddp, "ddp", "0", "alone"]
    else:
        print("kills: built without libtorch: no series with DistributedDataParallel", file=sys.stderr)
    return {name: every[name] for name in over_hosts.asked(options, every)}


class Round:
    def __init__(self, job, victims):
        self.job, self.victims = job, victims
        self.survivors = [rank for rank in range(job.size) if rank not in victims]
        self.known_ms, self.wrong, self.named = [], [], None

    def kill(self, moment, pause):
        if not self.job.wait_for("ready ", range(self.job.size), 60):
            self.wrong.append("the job did not get ready")
            return False
        time.sleep(moment)
        self.killed_at = time.monotonic_ns()
        at_once = self.victims if pause is None else self.victims[:1]
        self.job.signal(signal.SIGKILL, at_once)
        if pause is not None:
            time.sleep(pause)
            self.job.signal(signal.SIGKILL, self.victims[1:])
        return True

    def judge_loss(self, word, survivors, victims, killed_at):
        """Each of `survivors` says `word` and which of `victims` it lost; the sets that were named."""
        self.job.wait_for(f"{word} ", survivors, 30)
        sets = set()
        lines = self.job.said(f"{word} ", survivors)
        for rank, line in lines.items():
            code, culprits, known = over_hosts.culprits_of(line)
            sets.add(frozenset(culprits))
            if code != "kPeerLost":
                self.wrong.append(f"{word}: rank {rank} has {code}")
            if known < killed_at:
                self.wrong.append(f"{word}: rank {rank} was not told by on_failure")
            self.known_ms.append((known - killed_at) / 1e6)
        if len(lines) != len(survivors):
            self.wrong.append(f"{word}: {len(lines)} survivors reported, {len(survivors)} expected")
        if len(sets) > 1 or not all(named and named <= set(victims) for named in sets):
            self.wrong.append(f"{word}: {victims} were killed, named are {sorted(map(sorted, sets))}")
        return sets

    def judge_survivors(self):
        self.named = max(map(len, self.judge_loss("lost", self.survivors, self.victims, self.killed_at)), default=0)

    def judge_rest(self):
        """What the survivors do without the victims."""
        for line in ("alone", f"together {len(self.survivors)}"):
            if not self.job.wait_for(line, self.survivors, 60):
                self.wrong.append(f"not all survivors say '{line}': {self.job.said(line)}")
                return
        second = self.survivors[-1]
        if not self.job.wait_for("dies at=", [second], 10):
            self.wrong.append(f"rank {second} did not kill itself")
            return
        killed_at = int(self.job.said("dies at=")[second].split("=")[1])
        self.survivors.remove(second)
        self.judge_loss("second", self.survivors, [second], killed_at)

    def judge_ends(self, left):
        codes = self.job.wait_ends(self.survivors, 10)
        if set(codes.values()) != {1}:
            self.wrong.append(f"exit codes of the survivors: {codes}")
        if left.helpers:  # those of a rank that was started by hand are nobody's: they outlive it
            left.kill_processes()
        self.job.end()
        self.wrong += [f"left: {what}" for what in left.after(1)]
        left.kill_processes()


def run_round(network, words, kind, dice, options, left):
    victims = victims_of(kind, dice, options)
    program, workload, resident, helper = words
    command = [program, workload, ",".join(map(str, victims)), resident, helper]
    meeting = pathlib.Path(left.folder.name) / "store"
    job = over_hosts.Job(network, options.hosts, options.ranks, command, more={"SOAK_STORE": str(meeting)} if workload == "ddp" else None)
    left.helpers = helper == "helper"
    try:
        this = Round(job, victims)
        if this.kill(dice.random() * 0.02, dice.random() * 0.02 if kind == "one by one" else None):
            this.judge_survivors()
            if workload == "ddp" and not this.wrong:
                this.judge_rest()
            meeting.unlink(missing_ok=True)
            this.judge_ends(left)
        this.printed = job.text()
        return this
    finally:
        job.end()
        left.kill_processes()


def soak(options):
    dice, series = random.Random(options.seed), series_of(options)
    print(f"kills: seed {options.seed}, {options.hosts} hosts with {options.ranks} ranks", file=sys.stderr)
    progress = over_hosts.Progress("kills", options.rounds * len(series))
    total, by_victims, wrong, fields = Figures(), {kind: Figures() for kind in VICTIMS}, 0, {}
    owed = Figures()  # without the time in which the kernel frees a whole host's memory
    freeing = freeing_ms(options.resident_gib) if "resident" in series else 0
    named_all = {kind: [0, 0] for kind in VICTIMS}
    over_hosts.take_own_shm()
    with over_hosts.Hosts(options.hosts) as network:
        left = over_hosts.Leftovers(network, options.hosts)
        for name, words in series.items():
            figures = Figures()
            for number in range(options.rounds):
                kind = VICTIMS[number % len(VICTIMS)]
                this = run_round(network, words, kind, dice, options, left)
                for target in (figures, total, by_victims[kind]):
                    target.samples += this.known_ms
                allowance = freeing if name == "resident" and kind == "host" else 0
                owed.samples += [known - allowance for known in this.known_ms]
                named_all[kind][0] += this.named == len(this.victims)
                named_all[kind][1] += 1
                wrong += bool(this.wrong)
                for what in this.wrong:
                    print(f"kills: {name} round {number} ({kind} {this.victims}): {what}", file=sys.stderr)
                if this.wrong and wrong <= 3:
                    print(this.printed, file=sys.stderr)
                progress.advance(name, wrong)
            print(f"{name:<12} {options.rounds} rounds, {figures.summary()}")
            fields[name] = {"rounds": options.rounds, **figures.report()}
    fields["freeing_ms"] = round(freeing, 1)
    return conclude(options, total, owed, by_victims, named_all, wrong, fields)


def conclude(options, total, owed, by_victims, named_all, wrong, fields):
    for kind, figures in by_victims.items():
        print(f"victims: {kind:<10} {figures.summary()}; all of them named in {named_all[kind][0]} of {named_all[kind][1]} rounds")
    in_time = owed.percentile(0.99) <= 100 * options.scale and total.percentile(1) <= 1000 * options.scale
    print(f"all          {sum(count for _, count in named_all.values())} rounds, {total.summary()}; {wrong} rounds wrong")
    print(f"promise: p99 {100 * options.scale:g} max {1000 * options.scale:g} ms: {'kept' if in_time else 'BROKEN'}; p99 "
          f"{owed.percentile(0.99):.1f} ms without the {fields['freeing_ms']} ms in which the kernel frees {options.resident_gib:g} GiB of "
          "a host that dies as a whole")
    over_hosts.write_evidence(options, "kills", {
        "hosts": options.hosts, "rounds": options.rounds, **fields, "all": total.report(),
        "p99_ms_without_freeing": round(owed.percentile(0.99), 2),
        "by_victims": {kind: {**figures.report(), "rounds": named_all[kind][1], "rounds_that_name_all": named_all[kind][0]}
                       for kind, figures in by_victims.items()}, "wrong_rounds": wrong})
    return 0 if in_time and not wrong else 1


def main():
    words = over_hosts.parser(__doc__)
    words.add_argument("--hosts", type=int, default=2)
    words.add_argument("--rounds", type=int, default=100, help="of each series")
    words.add_argument("--resident-gib", type=float, default=4, help="memory of the victim in the series resident")
    options = words.parse_args()
    if options.hosts < 2 or options.ranks < 2:
        words.error("at least two hosts with two ranks each: some survive every victim, and then another of them dies")
    return over_hosts.run(soak, options)


if __name__ == "__main__":
    sys.exit(main())
