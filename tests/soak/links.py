#!/usr/bin/env python3
"""Soak `links`: links between hosts are cut and come back, ranks are stopped and come late.

Cuts of three hosts, of which two ways are drawn by lot: `host`: one host from both others; `pair`: two hosts from each other;
`way`: what one host sends to another; and of two hosts: `two`; `two_one_way`: what one sends to the other, each of them in
every second round. Shown in each: every rank is told within 3 s of the cut (P2; from when all of it is cut: on a busy machine the
commands that cut take a while, which the evidence says), and names exactly whom it must. `host` and those of two hosts: each side the
ranks that it cannot reach. `pair` and `way`: one of the two hosts, the same on all ranks. When the link is back nobody is let in again:
the world keeps its cause, and no group of all ranks can be made.

`stop`: a rank, or all of a host, is stopped for 5 s; all results have the bits of an undisturbed run. `late`: a rank comes 60 s
late to an all_reduce: nobody is lost, and those who wait name it.
"""
import random
import re
import signal
import sys
import time

import over_hosts
from over_hosts import Figures

CUTS = {"host": 3, "pair": 3, "way": 3, "two": 2, "two_one_way": 2}  # hosts
PROMISE_MS = 3000


def ranks_of(host, each):
    return set(range(host * each, (host + 1) * each))


class Cut:
    """What is cut, and whom each rank may name."""

    def __init__(self, kind, number, dice, each):
        count = CUTS[kind]
        one, other = (number % 2, 1 - number % 2) if kind == "two_one_way" else dice.sample(range(count), 2)
        way = f"{one}>{other}"
        what = {"host": f"{one}", "pair": f"{one}-{other}", "way": way, "two": f"{one}", "two_one_way": way}[kind]
        self.what, self.ways = what, over_hosts.hosts.ways_of(what, count)
        everybody = set(range(count * each))
        if kind in ("host", "two", "two_one_way"):
            apart = ranks_of(one, each)
            self.allowed = {rank: [everybody - apart if rank in apart else apart] for rank in everybody}
            self.is_one_set = False
        else:
            self.allowed = {rank: [ranks_of(one, each), ranks_of(other, each)] for rank in everybody}
            self.is_one_set = True

    def wrong(self, named):
        """`named`: set of culprits by rank."""
        found = [f"rank {rank} names {sorted(culprits)}, where it must name {' or '.join(str(sorted(s)) for s in self.allowed[rank])}"
                 for rank, culprits in sorted(named.items()) if culprits not in self.allowed[rank]]
        if self.is_one_set and len({frozenset(culprits) for culprits in named.values()}) > 1:
            found.append(f"not the same host on all ranks: {named}")
        return found


def run_cut(kind, number, network, dice, options):
    """(times until told in ms, how long it took to cut, what was wrong, what was printed)."""
    cut, wrong, told = Cut(kind, number, dice, options.ranks), [], []
    job = over_hosts.Job(network, CUTS[kind], options.ranks, [options.build / "tests/soak/links_rank", "work"])
    everybody = range(job.size)
    try:
        if not job.wait_for("ready", everybody, 60):
            return [], 0, ["the job did not get ready"], job.text()
        time.sleep(dice.random() * 0.5)
        begin = time.monotonic_ns()
        network.cut(cut.ways)
        whole = time.monotonic_ns()
        job.wait_for("lost ", everybody, 20)
        lines = job.said("lost ")
        time.sleep(options.away)
        network.mend(cut.ways)
        time.sleep(options.back)
        job.signal(signal.SIGUSR1, everybody)
        job.wait_for("again ", everybody, 60)
        losses = {rank: over_hosts.culprits_of(line) for rank, line in lines.items()}
        told = [(known - whole) / 1e6 for _, _, known in losses.values() if known]
        wrong += [f"rank {rank} was not told by on_failure" for rank, (_, _, known) in losses.items() if not known]
        wrong += [f"rank {rank} has {code}" for rank, (code, _, _) in losses.items() if code != "kPeerLost"]
        wrong += [f"rank {rank} was never told" for rank in everybody if rank not in losses]
        wrong += cut.wrong({rank: culprits for rank, (_, culprits, _) in losses.items()})
        again = job.said("again ")
        wrong += [f"rank {rank}, the link being back: {again.get(rank)}" for rank in everybody if again.get(rank) != "again lost"]
        codes = job.wait_ends(everybody, 10)
        wrong += [f"rank {rank} ended with {code}" for rank, code in codes.items() if code != 0]
        return told, (whole - begin) / 1e6, [f"{cut.what}: {what}" for what in wrong], job.text()
    finally:
        network.mend(cut.ways)
        job.end()


def count_steps(network, options):
    """So many all_reduces take some seconds here; and the hash of an undisturbed run."""
    count = 100
    while True:
        begin = []
        hashes, text = run_steps(network, count, options, lambda job: begin.append(time.monotonic()))
        if len(hashes) != 1 or "nothing" in hashes:
            raise over_hosts.hosts.Failed(f"an undisturbed run of {count} all_reduces: {hashes}\n{text}")
        if begin and time.monotonic() - begin[0] > 3:
            return count, hashes.pop()
        count *= 2


def run_steps(network, count, options, disturb):
    """(hashes that ranks say, what was printed)."""
    job = over_hosts.Job(network, 2, options.ranks, [options.build / "tests/soak/links_rank", "steps", count])
    try:
        if job.wait_for("ready", range(job.size), 60):
            disturb(job)
        job.wait_for("hash ", range(job.size), 120)
        said = job.said("hash ")
        return {said.get(rank, "nothing") for rank in range(job.size)}, job.text()
    finally:
        job.end()


def run_stop(network, count, wanted, dice, options):
    victims = [dice.randrange(2 * options.ranks)] if dice.random() < 0.5 else sorted(ranks_of(dice.randrange(2), options.ranks))
    wrong = []

    def disturb(job):
        time.sleep(dice.random() * 0.2)
        if job.said("hash "):
            wrong.append("the job ended before it was stopped")
        job.signal(signal.SIGSTOP, victims)
        time.sleep(options.stop)
        job.signal(signal.SIGCONT, victims)

    hashes, text = run_steps(network, count, options, disturb)
    if hashes != {wanted}:
        wrong.append(f"ranks {victims} were stopped: {hashes}, where an undisturbed run has {wanted}")
    return wrong, text


def run_late(network, dice, options):
    late = dice.randrange(2 * options.ranks)
    job = over_hosts.Job(network, 2, options.ranks, [options.build / "tests/soak/links_rank", "late", late, options.late])
    try:
        job.wait_for("done", range(job.size), options.late + 60)
        wrong = [f"rank {rank} did not get to the end" for rank in range(job.size) if rank not in job.said("done")]
        telling = {rank for rank, text in job.lines if re.search(rf"waiting \d+ s for rank {late}\b", text)}
        wrong += [f"rank {rank} does not name rank {late}, for which it waits" for rank in range(job.size)
                  if rank != late and rank not in telling]
        return wrong, job.text()
    finally:
        job.end()


class Report:
    def __init__(self, rounds):
        self.progress, self.wrong, self.fields = over_hosts.Progress("links", rounds), 0, {}

    def round(self, series, number, wrong, text):
        for what in wrong:
            print(f"links: {series} round {number}: {what}", file=sys.stderr)
        self.wrong += bool(wrong)
        if wrong and self.wrong <= 3:
            print(text, file=sys.stderr)
        self.progress.advance(series, self.wrong)


def soak_cuts(kinds, dice, options, report):
    """Whether all were told in time."""
    in_time = True
    for kind in kinds:
        figures, took = Figures(), Figures()
        before = report.wrong
        with over_hosts.Hosts(CUTS[kind]) as network:
            for number in range(options.rounds):
                told, cut_ms, wrong, text = run_cut(kind, number, network, dice, options)
                figures.samples += told
                took.samples.append(cut_ms)
                report.round(kind, number, wrong, text)
        kept = figures.percentile(1) <= PROMISE_MS * options.scale
        in_time &= kept
        late = sum(sample > PROMISE_MS for sample in figures.samples)
        print(f"{kind:<11} {options.rounds} cuts, told after {figures.summary()}; promise: max {PROMISE_MS * options.scale:g} ms: "
              f"{'kept' if kept else 'BROKEN'} ({late} later than {PROMISE_MS} ms); {report.wrong - before} wrong", flush=True)
        report.fields[kind] = {"hosts": CUTS[kind], "cuts": options.rounds, **figures.report(), "later_than_3_s": late,
                               "cutting_took_ms_max": round(took.percentile(1), 1), "wrong": report.wrong - before}
    return in_time


def soak(options):
    dice = random.Random(options.seed)
    only = over_hosts.asked(options, [*CUTS, "stop", "late"])
    kinds = [kind for kind in CUTS if kind in only]
    has_stops, has_late = "stop" in only, "late" in only
    print(f"links: seed {options.seed}", file=sys.stderr)
    report = Report(options.rounds * (len(kinds) + has_stops) + has_late)
    in_time = soak_cuts(kinds, dice, options, report)
    before = report.wrong
    with over_hosts.Hosts(2) as network:
        if has_stops:
            count, wanted = count_steps(network, options)
            for number in range(options.rounds):
                report.round("stop", number, *run_stop(network, count, wanted, dice, options))
            print(f"{'stop':<11} {options.rounds} stops of {options.stop:g} s in {count} all_reduces, {report.wrong - before} wrong")
            report.fields["stop"] = {"stops": options.rounds, "seconds": options.stop, "all_reduces": count, "wrong": report.wrong - before}
        before = report.wrong
        if has_late:
            report.round("late", 0, *run_late(network, dice, options))
            print(f"{'late':<11} a rank comes {options.late} s late: {report.wrong - before} wrong")
            report.fields["late"] = {"seconds": options.late, "wrong": report.wrong - before}
    over_hosts.write_evidence(options, "links", {"rounds": options.rounds, **report.fields, "wrong_rounds": report.wrong})
    return 0 if in_time and not report.wrong else 1


def main():
    words = over_hosts.parser(__doc__)
    words.add_argument("--rounds", type=int, default=20, help="of each cut, and stops (20)")
    words.add_argument("--away", type=float, default=1, help="seconds that a link stays cut when all are told (1)")
    words.add_argument("--back", type=float, default=2.5, help="seconds for which it is back before ranks are asked (2.5)")
    words.add_argument("--stop", type=float, default=5, help="seconds for which ranks are stopped (5)")
    words.add_argument("--late", type=int, default=60, help="seconds that a rank comes late (60)")
    return over_hosts.run(soak, words.parse_args())


if __name__ == "__main__":
    sys.exit(main())
