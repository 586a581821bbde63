"""What of PyTorch stands on torch.distributed, over "tutti" and over gloo: the same results.

    above.py [--if-full] [PART ...]

with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; all parts without a name. Each runs in a world of either backend, one after the other
in the same processes, and checks what it can know beforehand; the tensors that it answers with are compared. --if-full: skipped (77) unless
TUTTI_TEST_FULL is set.
"""
import datetime
import os
import sys
import tempfile
import threading
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 5


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def train(net, optimizer, seed):
    data = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        inputs, targets = torch.randn(8, 16, generator=data), torch.randn(8, 4, generator=data)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def mesh():
    return init_device_mesh("cpu", (SIZE,))


# ---- Training: each answers with its parameters, whole --------------------------------------------------------------------------------

def ddp():
    net = nn.parallel.DistributedDataParallel(model())
    return train(net, torch.optim.Adam(net.parameters(), 1e-2), RANK)


def zero():
    net = nn.parallel.DistributedDataParallel(model())
    return train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2), RANK)


def fsdp2():
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh())
    fully_shard(net, mesh=mesh())
    return [parameter.full_tensor() for parameter in train(net, torch.optim.Adam(net.parameters(), 1e-2), RANK)]


def tensor_parallel():
    net = model()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(net, mesh(), plan)
    parameters = train(net, torch.optim.SGD(net.parameters(), 1e-2), 0)
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in parameters]
    alone = model()
    torch.testing.assert_close(whole, train(alone, torch.optim.SGD(alone.parameters(), 1e-2), 0))
    return whole


def pipeline():
    """A layer a rank, four micro-batches; the last rank knows the result."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(SIZE)]
    inputs = torch.randn(8, 16)
    stage = PipelineStage(layers[RANK], RANK, SIZE, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    arguments = [inputs] if RANK == 0 else []
    output = schedule.step(*arguments, target=torch.zeros(8, 16) if RANK == SIZE - 1 else None)
    if RANK == SIZE - 1:
        torch.testing.assert_close(output, nn.Sequential(*layers)(inputs))
    return [parameter.grad for parameter in layers[RANK].parameters()]


# ---- Tensors of several ranks, and what compilers make of collectives -------------------------------------------------------------------

def dtensor():
    whole = torch.arange(6. * 7).view(6, 7)
    placements = [Shard(0), Shard(1), Replicate()]
    for before in placements:
        placed = distribute_tensor(whole, mesh(), [before])
        for after in placements:
            assert torch.equal(placed.redistribute(mesh(), [after]).full_tensor(), whole), (before, after)
    parts = DTensor.from_local(whole, mesh(), [Partial()])
    assert torch.equal(parts.redistribute(mesh(), [Replicate()]).to_local(), whole * SIZE)
    assert torch.equal(parts.redistribute(mesh(), [Shard(0)]).full_tensor(), whole * SIZE)
    torch.manual_seed(1)
    left, right = torch.randn(8, 12), torch.randn(12, 5)
    product = (distribute_tensor(left, mesh(), [Shard(1)]) @ distribute_tensor(right, mesh(), [Shard(0)])).full_tensor()
    torch.testing.assert_close(product, left @ right)
    return [product]


def functional():
    group, ours, total = dist.group.WORLD, torch.ones(4, 3) * (RANK + 1), SIZE * (SIZE + 1) / 2.
    compiled = torch.compile(lambda x: functional_collectives.all_reduce(x * 2, "sum", group) + 1, backend="aot_eager")
    assert torch.equal(compiled(ours), torch.full((4, 3), 2 * total + 1))
    assert torch.equal(functional_collectives.all_reduce(ours, "sum", group) + 0, torch.full((4, 3), total))
    exchanged = functional_collectives.all_to_all_single(torch.arange(2. * SIZE) + 100 * RANK, None, None, group) + 0
    assert torch.equal(exchanged, torch.cat([torch.arange(2.) + 2 * RANK + 100 * rank for rank in range(SIZE)]))
    gathered = functional_collectives.all_gather_into_tensor_coalesced([ours, ours * 2], group)
    scattered = functional_collectives.reduce_scatter_tensor_coalesced([torch.ones(2 * SIZE, 3), torch.ones(SIZE)], "sum", [0, 0], group)
    reduced = functional_collectives.all_reduce_coalesced([ours, ours * 2], "max", group)
    shared = functional_collectives.broadcast(ours, 1, group)
    return [exchanged] + [each + 0 for each in [*gathered, *scattered, *reduced, shared]]


def checkpoint():
    """Saved by rows, loaded by columns."""
    whole = torch.arange(40.).view(10, 4)
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder]
        dist.broadcast_object_list(folders)
        dcp.save({"whole": distribute_tensor(whole, mesh(), [Shard(0)])}, checkpoint_id=folders[0])
        loaded = {"whole": distribute_tensor(torch.zeros(10, 4), mesh(), [Shard(1)])}
        dcp.load(loaded, checkpoint_id=folders[0])
        dist.barrier()  # before rank 0 removes it
    assert torch.equal(loaded["whole"].full_tensor(), whole)
    return [loaded["whole"].to_local()]


# ---- Large things, and many at a time ---------------------------------------------------------------------------------------------------

def large():
    tensor = torch.full((70_000_000,), 1.)  # 280 MB
    dist.all_reduce(tensor)
    assert bool((tensor == SIZE).all())
    objects = [None] * SIZE
    dist.all_gather_object(objects, bytes([RANK]) * 20_000_000)
    assert objects == [bytes([rank]) * 20_000_000 for rank in range(SIZE)]
    return []


def threads():
    """Three, each with a group of its own."""
    groups, wrong = [dist.new_group() for _ in range(3)], []

    def work(number):
        try:
            for step in range(300):
                tensor = torch.full((100 * (step % 7 + 1),), float(RANK + number))
                dist.all_reduce(tensor, group=groups[number])
                assert tensor[0] == SIZE * (SIZE - 1) / 2 + SIZE * number, (number, step, tensor[0])
        except Exception as failure:  # told by the thread that joins
            wrong.append(failure)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong
    return []


def many_works():
    tensors = [torch.full((1000,), float(number)) for number in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)  # its Work is dropped
    dist.barrier()
    return tensors


PARTS = [ddp, zero, fsdp2, tensor_parallel, pipeline, dtensor, functional, checkpoint, large, threads, many_works]


def main():
    warnings.filterwarnings("ignore", "`torch.distributed._functional_collectives", FutureWarning)  # 2.11 has no newer names
    torch.set_num_threads(1)
    named = [word for word in sys.argv[1:] if word != "--if-full"]
    parts = [part for part in PARTS if not named or part.__name__ in named]
    assert len(parts) == len(named or PARTS), f"one of {named} is none of {[part.__name__ for part in PARTS]}"
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
    results = {}
    for backend in ("gloo", "tutti"):
        dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=RANK, world_size=SIZE,
                                timeout=datetime.timedelta(seconds=60))
        for part in parts:
            results[backend, part] = part()
            dist.barrier()
        if backend == "tutti":
            # Sums of more than two may differ in the last bits: tutti adds in one order, gloo in another.
            for part in parts:
                torch.testing.assert_close(results["tutti", part], results["gloo", part], rtol=1e-4, atol=1e-5,
                                           msg=lambda text, part=part: f"{part.__name__}: {text}")
        dist.destroy_process_group()
    print(f"{len(parts)} parts are as over gloo", flush=True)


if __name__ == "__main__":
    if "--if-full" in sys.argv and "TUTTI_TEST_FULL" not in os.environ:
        sys.exit(77)
    main()
