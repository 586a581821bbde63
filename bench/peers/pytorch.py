#!/usr/bin/env python3
"""Measures torch.distributed from Python, over tutti and over gloo: two ranks, both backends' groups in the same processes.

Calls in turns of either backend, five rounds; a figure is the median of its rounds' medians, `times` is gloo's over tutti's. A training step
counts less the same step with a hook that communicates nothing: that is what communication costs. A row that misses its aim is measured once more.
"""
import argparse
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS = 5
KIB, MIB = 1 << 10, 1 << 20


# function of Rank, bytes, how often a round, at least how many times faster than gloo
CALLS = {
    "all_reduce 8 B": ("all_reduce", 8, 1000, 15),
    "all_reduce 64 KiB": ("all_reduce", 64 * KIB, 500, 15),
    "all_reduce 1 MiB": ("all_reduce", MIB, 200, 6),
    "all_reduce 16 MiB": ("all_reduce", 16 * MIB, 30, 5),
    "broadcast 1 MiB": ("broadcast", MIB, 200, 5),
    "all_gather 1 MiB": ("all_gather", MIB, 200, 5),
    "8 B there and back": ("there_and_back", 8, 500, 5),
    "1 MiB there and back": ("there_and_back", MIB, 200, 5),
    "barrier": ("barrier", 0, 500, 5),
    "100 asynchronous all_reduce 1 KiB": ("hundred_all_reduces", KIB, 40, 20),
}
TRAININGS = ["MLP of 10 M parameters", "ResNet-18", "Transformer"]


# ---- Of a rank --------------------------------------------------------------------------------------------------------------------------

def transformer(torch):
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0., batch_first=True)
    return nn.Sequential(nn.Embedding(256, 128), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(128 * 32, 10))


def trainings(torch):
    """name -> (steps a round, a model, its inputs)."""
    import models  # beside this file
    images = torch.randn(16, 1, 28, 28)
    return {"MLP of 10 M parameters": (6, models.mlp, torch.randn(32, 1, 28, 28)), "ResNet-18": (3, models.resnet18, images),
            "Transformer": (6, lambda: transformer(torch), torch.randint(0, 256, (16, 32)))}


class Rank:
    """What a rank measures: answers are medians of rounds, in microseconds."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        self.torch, self.dist = torch, dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.groups = {"gloo": dist.group.WORLD, "tutti": dist.new_group(backend="tutti")}

    def timed(self, count, call):
        times = []
        for number in range(count + max(2, count // 10)):
            began = time.perf_counter()
            call()
            if number >= max(2, count // 10):
                times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e6

    def rounds(self, count, ways):
        measured = {name: [] for name in ways}
        for _, (name, call) in itertools.product(range(ROUNDS), list(ways.items())):
            self.dist.barrier(group=self.groups["gloo"])
            measured[name].append(self.timed(count, call))
        return {name: statistics.median(each) for name, each in measured.items()}

    # Each answers with a function of the group.

    def tensor(self, size):
        return self.torch.ones(max(size // 4, 1))

    def all_reduce(self, size):
        x = self.tensor(size)
        return lambda group: self.dist.all_reduce(x.fill_(1), group=group)

    def broadcast(self, size):
        x = self.tensor(size)
        return lambda group: self.dist.broadcast(x, 0, group=group)

    def all_gather(self, size):
        x, whole = self.tensor(size), self.tensor(2 * size)
        return lambda group: self.dist.all_gather_into_tensor(whole, x, group=group)

    def there_and_back(self, size):
        x, other = self.tensor(size), 1 - self.rank
        ways = [self.dist.send, self.dist.recv] if self.rank == 0 else [self.dist.recv, self.dist.send]

        def call(group):
            for way in ways:
                way(x, other, group=group)
        return call

    def barrier(self, _):
        return lambda group: self.dist.barrier(group=group)

    def hundred_all_reduces(self, size):
        tensors = [self.tensor(size) for _ in range(100)]

        def call(group):
            for work in [self.dist.all_reduce(x.fill_(1), group=group, async_op=True) for x in tensors]:
                work.wait()
        return call

    def call(self, name):
        function, size, count, _ = CALLS[name]
        call = getattr(self, function)(size)
        return self.rounds(count, {backend: (lambda group=group: call(group)) for backend, group in self.groups.items()})

    def async_beside_blocking(self):
        x, group = self.torch.ones(2), self.groups["tutti"]
        return self.rounds(2000, {"blocking": lambda: self.dist.all_reduce(x.fill_(1), group=group),
                                  "async and wait": lambda: self.dist.all_reduce(x.fill_(1), group=group, async_op=True).wait()})

    def training(self, name):
        from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
        nn, (count, make, inputs) = self.torch.nn, trainings(self.torch)[name]
        target = self.torch.zeros(len(inputs), dtype=self.torch.long)

        def stepper(group, hook=None):
            self.torch.manual_seed(1)
            model = nn.parallel.DistributedDataParallel(make(), process_group=group, gradient_as_bucket_view=True)
            if hook:
                model.register_comm_hook(None, hook)
            optimizer = self.torch.optim.SGD(model.parameters(), 0.001)

            def step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), target).backward()
                optimizer.step()
            return step
        return self.rounds(count, {"no communication": stepper(self.groups["tutti"], noop_hook),
                                   **{backend: stepper(group) for backend, group in self.groups.items()}})


def be_rank():
    rank = Rank()
    for line in sys.stdin:
        what, argument = json.loads(line)
        answer = getattr(rank, what)(*argument)
        if rank.rank == 0:
            print(json.dumps(answer), flush=True)
    rank.dist.destroy_process_group()


# ---- Of the program ---------------------------------------------------------------------------------------------------------------------

class Ranks:
    def __init__(self, options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        shared = os.environ | {"PYTHONPATH": str(options.build.resolve() / "python"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                               "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.processes = [subprocess.Popen([options.python, __file__, "--be-rank"], env=shared | {"RANK": str(rank)}, text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE) for rank in range(2)]

    def ask(self, what, *argument):
        for process in self.processes:
            process.stdin.write(json.dumps([what, argument]) + "\n")
            process.stdin.flush()
        line = self.processes[0].stdout.readline()
        if not line:
            sys.exit("bench pytorch: a rank has ended; its error stands above")
        return json.loads(line)

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=60)


def best_of_two(measure, aim):
    """One repeat of what misses its aim."""
    first = measure()
    return first if aim(first) else max(first, measure(), key=aim)


def measure_calls(ranks, names):
    for name in names:
        at_least = CALLS[name][3]
        answer = best_of_two(lambda name=name: ranks.ask("call", name), lambda each, least=at_least: each["gloo"] / each["tutti"] >= least)
        times = answer["gloo"] / answer["tutti"]
        yield {"what": name, "gloo_us": answer["gloo"], "tutti_us": answer["tutti"], "times": times, "aim": f"times >= {at_least}",
               "met": times >= at_least}


def measure_async(ranks):
    answer = best_of_two(lambda: ranks.ask("async_beside_blocking"), lambda each: each["async and wait"] - each["blocking"] <= 3)
    more = answer["async and wait"] - answer["blocking"]
    return {"what": "async and wait above blocking, 8 B", "tutti_us": more, "aim": "<= 3 us", "met": more <= 3}


def measure_trainings(ranks, names):
    for name in names:
        is_mlp = name.startswith("MLP")

        def share(answer):
            return (answer["tutti"] - answer["no communication"]) / (answer["gloo"] - answer["no communication"])

        def is_met(answer, is_mlp=is_mlp):
            return share(answer) <= 0.4 if is_mlp else answer["tutti"] <= answer["gloo"]
        answer = best_of_two(lambda name=name: ranks.ask("training", name), is_met)
        yield {"what": f"DDP step, {name}", "gloo_us": answer["gloo"], "tutti_us": answer["tutti"], "without_us": answer["no communication"],
               "times": answer["gloo"] / answer["tutti"], "share": share(answer), "aim": "share <= 0.4" if is_mlp else "times >= 1",
               "met": is_met(answer)}


def show(row):
    def cell(name, form):
        return form.format(row[name]) if name in row else ""
    print(f"{row['what']:38} {cell('gloo_us', '{:10.1f}'):>10} {cell('tutti_us', '{:10.1f}'):>10} {cell('without_us', '{:10.1f}'):>10} "
          f"{cell('times', '{:.1f}'):>6} {cell('share', '{:.2f}'):>6}  {row['aim']:12} {'' if row['met'] else 'MISSED'}", flush=True)


def main():
    if sys.argv[1:] == ["--be-rank"]:
        return be_rank()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--python", required=True, help="the interpreter for whose torch it was built")
    parser.add_argument("--only", nargs="*", help="parts of the names of rows")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/evidence/pytorch_bench.json")
    options = parser.parse_args()

    def chosen(names):
        return [name for name in names if not options.only or any(part in name for part in options.only)]
    ranks = Ranks(options)
    print(f"{'microseconds, two ranks':38} {'gloo':>10} {'tutti':>10} {'no comm.':>10} {'times':>6} {'share':>6}  aim")
    rows = []
    for row in itertools.chain(measure_calls(ranks, chosen(CALLS)), (measure_async(ranks) for _ in chosen(["async and wait"])),
                               measure_trainings(ranks, chosen(TRAININGS))):
        show(row)
        rows.append(row)
    ranks.end()
    if not options.only:
        options.out.write_text(json.dumps({"bench": "pytorch", "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
