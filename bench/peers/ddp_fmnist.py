"""The main job (examples/07_fashion_mnist) in Python: the same model, batch, schedule and data path on torch's DDP.

  torchrun --nproc-per-node 2 ddp_fmnist.py EPOCHS [FOLDER]    prints images/s over all ranks
"""
import gzip
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, RATE = 128, 2e-3


def read_idx(path):
    data = gzip.open(path).read()
    sizes = struct.unpack(">" + "I" * data[3], data[4:4 + 4 * data[3]])
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * data[3]).reshape(sizes)


def main():
    epochs = int(sys.argv[1])
    folder = sys.argv[2] if len(sys.argv) > 2 else "/usr/share/datasets/fashion-mnist"
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images = read_idx(folder + "/train-images-idx3-ubyte.gz").unsqueeze(1)
    labels = read_idx(folder + "/train-labels-idx1-ubyte.gz").long()
    net = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
                        nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10))
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    model.train()
    own = BATCH // ranks
    step, steps, start = 0, epochs * (len(images) // ranks // own), time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))[rank::ranks]
        for at in range(0, len(order) - own + 1, own):
            batch = order[at:at + own]
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - step / steps)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch].float().sub_(73).div_(90)), labels[batch])
            loss.backward()
            optimizer.step()
            step += 1
    if rank == 0:
        print(f"{step * own * ranks / (time.monotonic() - start):.0f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
