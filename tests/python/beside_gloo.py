"""What a rank of soak `pytorch` does: the same random operations over tutti and over gloo, whose results must be equal.

`beside_gloo.py SEED FIRST COUNT`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Each operation is drawn from its own number,
alike on all ranks, so that one can be run again alone; a few are under way at a time, and each rank waits for them in an order of its own.
"""
import datetime
import os
import random
import sys

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
REDUCTIONS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX]


class Draw:
    """Of one operation: what all ranks draw alike, and this rank's data."""

    def __init__(self, seed, number, group_ranks):
        self.shared = random.Random(f"{seed} {number}")
        self.data = torch.Generator().manual_seed(self.shared.getrandbits(40) * 64 + RANK)
        self.ranks = group_ranks  # in the world
        self.me = group_ranks.index(RANK)
        self.n = len(group_ranks)
        self.dtype = self.shared.choice(INTEGERS + FLOATS)
        self.root = self.shared.randrange(self.n)
        self.is_async = self.shared.random() < 0.4
        self.is_strided = self.shared.random() < 0.3

    def count(self):
        return self.shared.randrange(1, self.shared.choice([4, 40, 2_000, 20_000, 300_000]))

    def shape(self):
        kind = self.shared.randrange(8)
        return (0,) if kind == 0 else () if kind == 1 else (self.shared.randrange(1, 40), self.shared.randrange(1, 40)) if kind == 2 else (self.count(),)

    def tensor(self, shape):
        """Small whole numbers: sums of them are exact in every order, and in every dtype here."""
        low, high = (0, 8) if self.dtype == torch.uint8 else (-8, 8)
        return torch.randint(low, high, shape, generator=self.data).to(self.dtype)

    def laid_out(self, tensor, backend):
        """Maybe not contiguous, which gloo takes for contiguous."""
        if not self.is_strided or backend == "gloo" or tensor.dim() == 0:
            return tensor.clone()
        wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]


# Each takes a Draw and answers with call(group, backend) -> (works, tensors that hold results).

def all_reduce(draw):
    op, data = draw.shared.choice(REDUCTIONS), draw.tensor(draw.shape())

    def call(group, backend):
        x = draw.laid_out(data, backend)
        return [dist.all_reduce(x, op, group, draw.is_async)], [x]
    return call


def broadcast(draw):
    data = draw.tensor(draw.shape())

    def call(group, backend):
        x = draw.laid_out(data, backend)
        return [dist.broadcast(x, draw.ranks[draw.root], group, draw.is_async)], [x]
    return call


def reduce(draw):
    op, data = draw.shared.choice(REDUCTIONS), draw.tensor(draw.shape())

    def call(group, backend):
        x = draw.laid_out(data, backend)
        work = dist.reduce(x, draw.ranks[draw.root], op, group, draw.is_async)
        return [work], [x] if draw.me == draw.root else []  # elsewhere gloo writes what it likes
    return call


def all_gather(draw):
    shape = draw.shape()
    data = draw.tensor(shape)

    def call(group, backend):
        out = [torch.zeros(shape, dtype=draw.dtype) for _ in range(draw.n)]
        return [dist.all_gather(out, draw.laid_out(data, backend), group, draw.is_async)], out
    return call


def all_gather_into_tensor(draw):
    count = draw.count()
    data = draw.tensor((count,))

    def call(group, backend):
        out = torch.zeros(draw.n * count, dtype=draw.dtype)
        return [dist.all_gather_into_tensor(out, draw.laid_out(data, backend), group, draw.is_async)], [out]
    return call


def gather(draw):
    shape = draw.shape()
    data = draw.tensor(shape)

    def call(group, backend):
        out = [torch.zeros(shape, dtype=draw.dtype) for _ in range(draw.n)] if draw.me == draw.root else None
        return [dist.gather(draw.laid_out(data, backend), out, draw.ranks[draw.root], group, draw.is_async)], out or []
    return call


def scatter(draw):
    shape = draw.shape()
    parts = [draw.tensor(shape) for _ in range(draw.n)]

    def call(group, backend):
        out = torch.zeros(shape, dtype=draw.dtype)
        given = [draw.laid_out(part, backend) for part in parts] if draw.me == draw.root else None
        return [dist.scatter(out, given, draw.ranks[draw.root], group, draw.is_async)], [out]
    return call


def reduce_scatter_tensor(draw):
    count, op = draw.count(), draw.shared.choice(REDUCTIONS)
    data = draw.tensor((draw.n * count,))

    def call(group, backend):
        out = torch.zeros(count, dtype=draw.dtype)
        return [dist.reduce_scatter_tensor(out, draw.laid_out(data, backend), op, group, draw.is_async)], [out]
    return call


def all_to_all_single(draw):
    most = draw.shared.choice([3, 300, 20_000])
    counts = [[draw.shared.randrange(most) for _ in range(draw.n)] for _ in range(draw.n)]  # from, to
    to = counts[draw.me]
    here = [row[draw.me] for row in counts]
    data = draw.tensor((sum(to),))

    def call(group, backend):
        out = torch.zeros(sum(here), dtype=draw.dtype)
        return [dist.all_to_all_single(out, draw.laid_out(data, backend), here, to, group, draw.is_async)], [out]
    return call


def messages(draw):
    """Some between any two, with tags; buffers of both ends are alike."""
    plan = [(*draw.shared.sample(range(draw.n), 2), draw.shared.randrange(4), draw.count()) for _ in range(draw.shared.randrange(1, 6))]
    sent = {i: draw.tensor((count,)) for i, (source, _, _, count) in enumerate(plan) if source == draw.me}
    is_batch = draw.shared.random() < 0.5

    def call(group, backend):
        received, operations = [], []
        for i, (source, target, tag, count) in enumerate(plan):
            if source == draw.me:
                operations.append((dist.isend, draw.laid_out(sent[i], backend), draw.ranks[target], tag))
            elif target == draw.me:
                received.append(torch.zeros(count, dtype=draw.dtype))
                operations.append((dist.irecv, received[-1], draw.ranks[source], tag))
        if is_batch and operations:
            works = dist.batch_isend_irecv([dist.P2POp(op, tensor, peer, group, tag) for op, tensor, peer, tag in operations])
        else:
            works = [op(tensor, peer, group, tag) for op, tensor, peer, tag in operations]
        return works, received
    return call


def objects(draw):
    mine = {"rank": RANK, "text": "x" * draw.shared.randrange(2000)}

    def call(group, backend):
        everybody = [None] * draw.n
        dist.all_gather_object(everybody, mine, group)
        return [], [torch.tensor([each["rank"] * 10_000 + len(each["text"]) for each in everybody])]
    return call


def barrier(draw):
    return lambda group, backend: ([dist.barrier(group, draw.is_async)], [])


KINDS = [all_reduce, all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor, gather, scatter, reduce_scatter_tensor, all_to_all_single,
         messages, messages, objects, barrier]


class Pending:
    """Operations that are under way, at most four of them."""

    def __init__(self):
        self.all, self.own = [], random.Random(RANK)

    def settle(self, most):
        while len(self.all) > most:
            what, sides = self.all.pop(self.own.randrange(len(self.all)))
            for works, _ in sides:
                for work in works:
                    if work is not None:
                        work.wait()
            for ours, theirs in zip(sides[0][1], sides[1][1], strict=True):
                if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
                    sys.exit(f"rank {RANK}: {what}: tutti has {ours}, gloo {theirs}")


def pairs_of_groups():
    """(ranks, tutti's group, gloo's) of those that this rank is in; of all ranks, and of some in another order."""
    some = sorted({SIZE - 1, 0})
    found = []
    for ranks in [list(range(SIZE))] + ([some] if SIZE > 2 else []):
        pair = dist.new_group(ranks, backend="tutti"), dist.new_group(ranks)
        found.append((ranks, *pair))
    return found


def main(seed, first, count):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    groups, pending = pairs_of_groups(), Pending()
    for number in range(first, first + count):
        which = random.Random(f"{seed} {number} group")
        ranks, ours, gloos = which.choice(groups)
        kind = which.choice(KINDS)
        if RANK in ranks:
            draw = Draw(seed, number, ranks)
            call = kind(draw)
            sides = [call(ours, "tutti"), call(gloos, "gloo")]
            pending.all.append((f"operation {number}, {kind.__name__} of {draw.dtype} in a group of {ranks}", sides))
            pending.settle(which.randrange(5) if draw.is_async else 4)
        if RANK == 0 and number % 100 == 0:
            print(number - first, flush=True)
    pending.settle(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
