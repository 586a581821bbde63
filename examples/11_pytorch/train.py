"""Trains a model of PyTorch on Fashion-MNIST with the ranks of a job, over Tutti.

  tutti run -n 4 -- python3 train.py                         DistributedDataParallel
  tutti run -n 4 -- python3 train.py --model resnet          ResNet-18
  tutti run -n 4 -- python3 train.py --model transformer --sharded    FSDP2: a part of the parameters on each rank
  torchrun --nproc-per-node 4 train.py --backend gloo        the same over gloo
"""
import argparse
import ctypes
import gzip
import hashlib
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import models


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti", help="tutti (default) or gloo")
    parser.add_argument("--model", default="cnn", choices=models.MODELS)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 instead of DistributedDataParallel")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="passes over the training images (1)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="images per step, over all ranks (64)")
    parser.add_argument("--lr", type=float, default=1e-3, metavar="X", help="learning rate at the start; it falls to 0 (0.001)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for weights, order and dropout (1)")
    parser.add_argument("--limit", type=int, default=60_000, metavar="N", help="use only the first N images of either set")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", type=pathlib.Path, metavar="FOLDER",
                        help="folder with the four IDX files (that of Debian's package dataset-fashion-mnist)")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with ranks: tutti run -n 2 -- python3 train.py")
    return arguments


def read_idx(path, limit):
    """The bytes of a file of the MNIST format, as a tensor."""
    if not path.exists():
        sys.exit(f"{path} is not there: apt-get install dataset-fashion-mnist, or name the folder with --data")
    content = bytearray(gzip.decompress(path.read_bytes()))
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dimensions).view(shape)[:limit]


def read_images(arguments, name):
    pixels = read_idx(arguments.data / f"{name}-images-idx3-ubyte.gz", arguments.limit)
    labels = read_idx(arguments.data / f"{name}-labels-idx1-ubyte.gz", arguments.limit)
    return TensorDataset(pixels.unsqueeze(1).float().sub_(73).div_(90), labels.long())


def spread(model, is_sharded):
    """The model as all ranks train it together."""
    if not is_sharded:
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, models.SHARDED):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, images, arguments):
    rank, size = dist.get_rank(), dist.get_world_size()
    sampler = DistributedSampler(images, seed=arguments.seed)
    loader = DataLoader(images, batch_size=arguments.batch // size, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr)
    steps = arguments.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    step, began = 0, time.monotonic()
    model.train()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % max(1, steps // 10) == 0:
                dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
                rate = step * arguments.batch / (time.monotonic() - began)
                if rank == 0:
                    print(f"step {step:5} of {steps}  loss {loss.item():.4f}  {rate:.0f} images/s", flush=True)


@torch.no_grad()
def accuracy(model, images, arguments):
    """Of all images: each rank looks at its part of them, in as many steps as all others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    per_step = arguments.batch // size
    right = torch.zeros(1)
    for step in range(math.ceil(len(images) / (per_step * size))):
        first = (step * size + rank) * per_step
        pixels, labels = images[first:first + per_step]
        right += (model(pixels).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(images)


def hash_of(model):
    """Of all parameters, bit by bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return digest.hexdigest()[:16]


def main():
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    if arguments.batch % dist.get_world_size() or arguments.batch == 0:
        sys.exit(f"--batch {arguments.batch} is no multiple of the {dist.get_world_size()} ranks, which take as many images each")
    torch.set_num_threads(max(1, os.cpu_count() // dist.get_world_size()))
    torch.manual_seed(arguments.seed)  # the same weights on all ranks
    model = spread(models.MODELS[arguments.model](), arguments.sharded)
    torch.manual_seed(arguments.seed + 1 + dist.get_rank())  # and dropout of its own on each
    train(model, read_images(arguments, "train"), arguments)
    share = accuracy(model, read_images(arguments, "t10k"), arguments)
    hashes = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, hash_of(model))
    if dist.get_rank() == 0:
        print(f"accuracy {share:.2%}  parameters {hashes[0]}" + (" on all ranks" if len(set(hashes)) == 1 else f" DIFFER: {hashes}"))
    dist.destroy_process_group()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
