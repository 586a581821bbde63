#!/usr/bin/env python3
"""Measures training beside PyTorch's DistributedDataParallel over Gloo: the same models from the same seed, the same batches, one
thread a rank, two ranks, from the same libtorch. Then what overlap is worth, on one host and over a link. How: bench/peers/README.md.

  bench/peers/training.py                       everything, about a quarter of an hour
  bench/peers/training.py --only steps,job      beside PyTorch alone
  bench/peers/training.py --only overlap,link   overlap alone; link needs root, iproute2 and iperf3
"""
import argparse
import gzip
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import neighbours
import net
import run

sys.path.insert(0, str(run.ROOT / "tools"))
import hosts  # noqa: E402

N = 2
SECTIONS = "steps,job,overlap,link"
# Model, batch of each rank, momentum of SGD; the main job's network has Adam, as there.
CELLS = {"mlp": ("mlp", 32, 0), "mlp-momentum": ("mlp", 32, 0.9), "cnn": ("cnn", 64, 0), "resnet18": ("resnet18", 32, 0.9)}
OVERLAPPED = {**CELLS, "layers": ("layers", 64, 0)}  # the last one is what goes over the link
BUCKET_BYTES = 25 << 20  # torch's default, and ours
CURVE_STEPS = 40
TRIAL_S = 1.5  # one side's share of a round
CELL_S = 300  # a cell with fewer rounds by then is unsteady
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
LINK = {"rate": "1gbit", "model": "layers", "gradient_bytes": 40 * (512 * 512 + 512) * 4, "bucket_bytes": 2 << 20,
        "backward_at_least": 1.5, "exposed_at_most": 0.2}  # in times of what the link needs for the gradients


def unpack_images(folder):
    """The training images as plain bytes, which either side reads without a library."""
    for name, kind, head in ("images", "images-idx3", 16), ("labels", "labels-idx1", 8):
        with gzip.open(f"{FASHION_MNIST}/train-{kind}-ubyte.gz") as packed:
            (folder / name).write_bytes(packed.read()[head:])


class Way(run.Peer):
    """Ranks that train in one way. Ways of the same processes share them."""

    def __init__(self, name, how, processes):
        self.__dict__.update(processes.__dict__)
        self.name, self.how, self.times = name, how, {}

    def prepare(self, cell):
        took = max(self.run(cell, 2), self.run(cell, 2)) / 1e6
        self.times[cell] = max(2, int(TRIAL_S / took))

    def run(self, cell, times):
        """Microseconds per step of the slowest rank."""
        return max(self.ask(f"steps {times} {self.how}", 300)) / 1000

    def parts(self, cell, how):
        """Milliseconds per step, means over the ranks; compute is what the others leave."""
        step = statistics.mean(self.ask(f"steps {self.times[cell]} {how}", 300)) / 1e6
        parts = {what: statistics.mean(self.ask(f"part {what}")) / 1e6 for what in ("data", "exposed")}
        return {"step": step, **parts, "compute": step - sum(parts.values())}


class Beside(Way):
    """The same while iperf3 moves so many bytes a second each way, as ranks that exchange gradients would."""

    def __init__(self, name, how, processes, iperf, bytes_per_s):
        super().__init__(name, how, processes)
        self.command = [*iperf.client, "1000", "--bidir", "-b", str(int(8 * bytes_per_s))]  # bits

    def run(self, cell, times):
        with subprocess.Popen(self.command, stdout=subprocess.DEVNULL) as moving:
            try:
                time.sleep(0.3)  # until it does
                return super().run(cell, times)
            finally:
                moving.kill()


def by_hand(port, address="127.0.0.1", **more):
    return {"RANK": "{rank}", "WORLD_SIZE": str(N), "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}


def start(build, python, folder):
    """Ours and, with a Python that has torch, PyTorch's ranks on this host."""
    port, local = 20000 + os.getpid() % 10000 * 4, {"LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": str(N)}
    commands = {"tutti": [build / "bench/peers/peer_train"]}
    if python:
        commands["pytorch"] = [python, pathlib.Path(__file__).parent / "train.py"]
    return [run.Peer(name, N, [*command, "{pipes}", folder], folder, by_hand(port + i, **local), per_rank=True)
            for i, (name, command) in enumerate(commands.items())]


def begin(peers, model, batch, momentum=0, bucket_bytes=BUCKET_BYTES):
    """A fresh model everywhere; from here on both sides hold the same bits."""
    sums = {sum_ for peer in peers for sum_ in peer.ask(f"begin {model} {batch} {bucket_bytes} {momentum}")}
    if len(sums) != 1:
        raise RuntimeError(f"{model}: the initial parameters differ: {sums}")


def curves(peers):
    """The loss of every step, mean over the ranks."""
    return {peer.name: [statistics.mean(peer.ask("loss")) for _ in range(CURVE_STEPS)] for peer in peers}


def measure(ways, cell, rounds, build):
    """A cell as those of run.py, once more if the machine was unsteady, with quartiles of the times."""
    measured = run.measure_cell(ways, cell, rounds, lambda: run.probe(build), CELL_S)
    if not measured["steady"]:
        again = run.measure_cell(ways, cell, rounds, lambda: run.probe(build), CELL_S)
        measured = {**again, "rounds": again["rounds"] if again["steady"] else measured["rounds"] + again["rounds"]}
    measured["summary"] = run.summary(measured, [way.name for way in ways], ways[0].name)
    measured["ms"] = {way.name: neighbours.quartiles([r["us"][way.name] / 1000 for r in measured["rounds"]]) for way in ways}
    return measured


def row(cell, ways):
    ratio = cell["summary"]["ratio"][ways[1].name]
    return (f"| {cell['size']}{'' if cell['steady'] else ' ~'} | " + " | ".join(neighbours.shown(cell["ms"][way.name]) for way in ways)
            + f" | **{ratio[0]:.3f}** ({ratio[1]:.3f} to {ratio[2]:.3f}) |")


def head(what, *columns):
    print(f"\n### {what}\n\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))


def shown_parts(parts):
    return "; ".join(f"{side}: " + ", ".join(f"{what} {parts[side][what]:.2f}" for what in ("data", "compute", "exposed")) for side in parts)


def shown_curve(cell, names):
    pairs = list(zip(*(cell["losses"][name] for name in names)))
    cell["losses_differ_by"] = max(abs(ours - theirs) / theirs for ours, theirs in pairs)
    return (f"{cell['size']}: " + ", ".join(f"{step + 1}: {pairs[step][0]:.5f} / {pairs[step][1]:.5f}" for step in range(0, CURVE_STEPS, 5))
            + f"; at most {cell['losses_differ_by']:.1e} apart (relative) in {CURVE_STEPS} steps")


def beside_pytorch(peers, options):
    ways, cells = [Way(peer.name, "together", peer) for peer in peers], []
    names = [peer.name for peer in peers]
    head("A step of training, ms (quartiles)", "model", *names, "how many times ours (least to most)")
    for name in options.cells:
        begin(peers, *CELLS[name])
        losses = curves(peers)
        cell = measure(ways, name, options.rounds, options.build)
        cell.update(batch=CELLS[name][1], losses=losses, parts={way.name: way.parts(name, "watched") for way in ways})
        cells.append(cell)
        print(row(cell, ways), flush=True)
    print("\nOf a step, ms, means over the ranks:")
    for cell in cells:
        print(f"{cell['size']}: {shown_parts(cell['parts'])}")
    print(f"\nThe loss of step, mean over the ranks, {' / '.join(names)}:")
    for cell in cells:
        print(shown_curve(cell, names), flush=True)
    return cells


def main_job(options):
    """Images per second of the programs themselves."""
    job = neighbours.job_commands(["native", "python"], options.build, options.python, options.epochs)["one"]
    rates = {name: [] for name in job}
    for number in range(options.job_rounds):
        in_turn = list(job) if number % 2 == 0 else list(job)[::-1]
        for name, rate in neighbours.measure_jobs({name: job[name] for name in in_turn}, 1).items():
            rates[name] += rate
    quartiles = {name: neighbours.quartiles(values) for name, values in rates.items()}
    ratios = sorted(ours / theirs for ours, theirs in zip(rates["native"], rates["python"]))
    head("The main job (07_fashion_mnist), images/s (quartiles)", "epochs", "tutti", "pytorch", "times PyTorch's (least to most)")
    print(f"| {options.epochs} | {neighbours.shown(quartiles['native'])} | {neighbours.shown(quartiles['python'])} | "
          f"**{statistics.median(ratios):.3f}** ({ratios[0]:.3f} to {ratios[-1]:.3f}) |", flush=True)
    return {"epochs": options.epochs, "images_per_s": rates, "quartiles": quartiles, "ratio": [statistics.median(ratios), ratios[0], ratios[-1]]}


def overlap_here(ours, options):
    ways, cells = [Way("on", "together", ours), Way("off", "apart", ours)], []
    head("Overlap on one host: a step, ms (quartiles)", "model", "on", "off", "off / on (least to most)")
    for name in [*options.cells, "layers"]:
        begin([ours], *OVERLAPPED[name])
        cell = measure(ways, name, options.rounds, options.build)
        cell["batch"] = OVERLAPPED[name][1]
        cells.append(cell)
        print(row(cell, ways), flush=True)
    return cells


def fitting_batch(peer, link_s):
    """The smallest power of two with which backward takes long enough; how long it and the step take."""
    batch = 128
    while True:
        begin([peer], LINK["model"], batch, bucket_bytes=LINK["bucket_bytes"])
        step = max(peer.ask("steps 2 alone", 300)) / 1e9
        backward = statistics.mean(peer.ask("part backward")) / 1e9
        if backward >= LINK["backward_at_least"] * link_s:
            return batch, backward, step
        batch *= 2


def overlap_on_a_link(folder, options):
    """One rank on each of two hosts."""
    network, peer, iperf = hosts.Network(), None, None
    try:
        network.build(N, LINK["rate"])
        iperf = net.Iperf(network)
        there = ["ip", "netns", "exec", network.name("") + "{rank}"]
        peer = run.Peer("hosts", N, [*there, options.build / "bench/peers/peer_train", "{pipes}", folder], folder,
                        by_hand(29500, hosts.address(0), OMP_WAIT_POLICY="PASSIVE"), per_rank=True)
        return measure_link(network, peer, iperf, options)
    finally:
        if iperf:
            iperf.stop()
        if peer:
            peer.stop()
        network.take_down()


def measure_link(network, peer, iperf, options):
    """Each of two hosts sends as many bytes as there are of gradients: half of the sums, and its own half of the results."""
    rate = iperf.gigabytes_per_s()
    link_s = LINK["gradient_bytes"] / (rate * 1e9)
    batch, backward, alone = fitting_batch(peer, link_s)
    sent, steps = network.sent(0), 4
    peer.ask(f"steps {steps - 1} together", 300)  # and one before these
    bytes_each = (network.sent(0) - sent) / steps
    ways = [Way("compute", "alone", peer), Way("step", "together", peer),
            Beside("beside iperf3", "alone", peer, iperf, LINK["gradient_bytes"] / alone)]
    cell = measure(ways, LINK["model"], options.rounds, options.build)
    exposed, moved = ([(r["us"][way] - r["us"]["compute"]) / 1e6 / link_s for r in cell["rounds"]] for way in ("step", "beside iperf3"))
    cell.update(LINK, batch=batch, iperf3_gb_per_s=rate, link_ms=1000 * link_s, backward_ms=1000 * backward, bytes_on_the_link=bytes_each,
                exposed_share_of_link=neighbours.quartiles(exposed), shares=exposed, iperf3_share_of_link=neighbours.quartiles(moved),
                 parts={"hosts": ways[1].parts(LINK["model"], "watched")})
    return cell


def show_link(cell):
    share = cell["exposed_share_of_link"]
    head(f"Overlap over a link of {cell['rate']}: 40 layers of 512 x 512, buckets of {cell['bucket_bytes'] >> 20} MiB, a rank on each of two hosts",
         "batch", "backward, ms", "link, ms", "compute, ms", "step, ms", "(step - compute) / link")
    print(f"| {cell['batch']} | {cell['backward_ms']:.0f} | {cell['link_ms']:.0f} ({cell['iperf3_gb_per_s'] * 1000:.0f} MB/s by iperf3) | "
          f"{neighbours.shown(cell['ms']['compute'])} | {neighbours.shown(cell['ms']['step'])} | **{share['median']:.3f}** "
          f"({share['low']:.3f} to {share['high']:.3f}) |", flush=True)
    moved = cell["iperf3_share_of_link"]
    print(f"\nComputing alone while iperf3 moves the same bytes in that time takes longer, too: by {moved['median']:.3f} of the link's time "
          f"({moved['low']:.3f} to {moved['high']:.3f}), the kernel's work on the same cores.", flush=True)


def conclude(report):
    """What the aims are about."""
    aims = []
    for cell in report.get("steps", []):
        ratio, aim = cell["summary"]["ratio"]["pytorch"][0], 1.5 if cell["size"] == "mlp" else 1
        aims.append((f"a step of {cell['size']}: {ratio:.3f} times PyTorch's speed, aim {aim}", ratio > aim))
    if "job" in report:
        ratio = report["job"]["ratio"][0]
        aims.append((f"the main job: {ratio:.3f} times PyTorch's speed, aim 1", ratio > 1))
    for cell in report.get("overlap", []):
        ratio = cell["summary"]["ratio"]["off"][0]
        aims.append((f"overlap on one host, {cell['size']}: step {1 / ratio:.3f} times that without, aim at most 1.02", 1 / ratio <= 1.02))
    if "link" in report:
        share = report["link"]["exposed_share_of_link"]["median"]
        aims.append((f"overlap over a link: {share:.3f} of its time exposed, aim at most {LINK['exposed_at_most']}",
                     share <= LINK["exposed_at_most"]))
    print()
    for words, met in aims:
        print(f"{'met' if met else 'NOT MET'}: {words}")
    report["aims"] = [{"aim": words, "met": met} for words, met in aims]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--only", default=SECTIONS, help=f"some of {SECTIONS}")
    parser.add_argument("--cells", default=",".join(CELLS), help=f"of steps and overlap ({','.join(CELLS)})")
    parser.add_argument("--rounds", default=9, type=int, help="per cell (9; under 7 a cell counts as unsteady)")
    parser.add_argument("--job-rounds", default=7, type=int, help="of the main job (7)")
    parser.add_argument("--epochs", default=1, type=int, help="of the main job (1)")
    parser.add_argument("--python", help="a Python with torch")
    parser.add_argument("--json", default=run.ROOT / "docs" / "evidence" / "training.json", type=pathlib.Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.only = options.only.split(",")
    options.cells = options.cells.split(",")
    if unknown := set(options.cells) - set(CELLS):
        parser.error(f"--cells {','.join(sorted(unknown))}: none of {','.join(CELLS)}")
    if not (options.build / "bench/peers/peer_train").exists():
        parser.error(f"{options.build} holds no peer_train: it is built with libtorch (./dev bench training)")
    for section in options.only:
        needs_python = section in ("steps", "job") and not options.python
        needs_root = section == "link" and (os.geteuid() != 0 or not shutil.which("iperf3"))
        if section not in SECTIONS.split(",") or needs_python or needs_root:
            parser.error(f"--only {section}: " + ("needs --python, a Python with torch" if needs_python else
                                                  "needs root (network namespaces) and iperf3" if needs_root else f"not of {SECTIONS}"))
    return options


def main():
    options = parse()
    lock = run.hold_lock()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hosts.interrupt)
    hosts.remove_stale()
    report = {"what": "training beside PyTorch's DistributedDataParallel over Gloo", "n": N, **run.machine()}
    print(f"{report['what']}, n = {N}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f} at the start; "
          f"commit {report['commit']}, {report['date']}")
    folder, peers = pathlib.Path(tempfile.mkdtemp(prefix="training-")), []
    try:
        unpack_images(folder)
        peers = start(options.build, options.python, folder)
        if "steps" in options.only:
            report["steps"] = beside_pytorch(peers, options)
        if "overlap" in options.only:
            report["overlap"] = overlap_here(peers[0], options)
        for peer in peers:
            peer.stop()
        peers = []
        if "job" in options.only:
            report["job"] = main_job(options)
        if "link" in options.only:
            report["link"] = overlap_on_a_link(folder, options)
            show_link(report["link"])
    finally:
        for peer in peers:
            peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
    conclude(report)
    run.write_report(report, options.json)
    del lock


if __name__ == "__main__":
    main()
