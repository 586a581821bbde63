"""A rank that trains with torch's own DistributedDataParallel over Gloo. What it is asked and answers: train.cc."""
import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import models

STRIDE = 7919
MASK_OF_SUM = (1 << 52) - 1


class Images:
    def __init__(self, folder):
        def read(name):
            return torch.frombuffer(bytearray(open(f"{folder}/{name}", "rb").read()), dtype=torch.uint8)
        self.pixels, self.labels = read("images").view(-1, 1, 28, 28), read("labels").long()

    def batch(self, number, batch):
        chosen = torch.arange(number * batch, (number + 1) * batch).mul_(STRIDE).remainder_(len(self.labels))
        return self.pixels[chosen].float().sub_(73).div_(90), self.labels[chosen]


class Training:
    def __init__(self, name, batch, bucket_bytes, momentum, images):
        torch.manual_seed(1)
        self.batch, self.images, self.number = batch, images, 0
        self.count, self.parts = 1, {"data": 0, "backward": 0, "exposed": 0}
        self.model = DistributedDataParallel(getattr(models, name)(), bucket_cap_mb=bucket_bytes / (1 << 20), gradient_as_bucket_view=True)
        self.model._set_ddp_runtime_logging_sample_rate(1)  # or it times every hundredth step only
        parameters = self.model.parameters()
        self.optimizer = torch.optim.Adam(parameters, 2e-3) if name == "cnn" else torch.optim.SGD(parameters, 0.01, momentum=momentum)
        torch.manual_seed(1 + dist.get_rank())  # dropout
        self.model.train()

    def checksum(self):
        bits = torch.cat([p.detach().view(-1) for p in self.model.parameters()]).view(torch.int32).long()
        return (bits * torch.arange(1, len(bits) + 1)).sum().item() & MASK_OF_SUM

    def step(self, how):
        begin = time.monotonic_ns()
        data, target = self.images.batch(self.number * dist.get_world_size() + dist.get_rank(), self.batch)
        self.number += 1
        self.parts["data"] += time.monotonic_ns() - begin
        self.optimizer.zero_grad()
        with self.model.no_sync() if how == "alone" else contextlib.nullcontext():
            loss = self.backward(data, target)
        if how == "watched":
            said = self.model._get_ddp_logging_data()
            self.parts["exposed"] += said["backward_comm_time"] - said["backward_compute_comm_overlap_time"]
        self.optimizer.step()
        return loss

    def backward(self, data, target):
        loss = nn.functional.cross_entropy(self.model(data), target)
        begin = time.monotonic_ns()
        loss.backward()
        self.parts["backward"] += time.monotonic_ns() - begin
        return loss.item()

    def nanoseconds_each(self, count, how):
        self.step(how)
        dist.barrier()
        self.parts = dict.fromkeys(self.parts, 0)
        self.count = count
        begin = time.monotonic_ns()
        for _ in range(count):
            self.step(how)
        return (time.monotonic_ns() - begin) / count


def main():
    pipes, folder = sys.argv[1:]
    torch.set_num_threads(1)
    images = Images(folder)
    dist.init_process_group("gloo")
    base, training = f"{pipes}.{dist.get_rank()}", None
    with open(base + ".in") as commands, open(base + ".out", "w") as answers:
        for line in commands:
            command, *words = line.split()
            if command == "begin":
                training = Training(words[0], int(words[1]), int(words[2]), float(words[3]), images)
                answer = training.checksum()
            elif command == "loss":
                answer = training.step("together")
            elif command == "steps":
                answer = training.nanoseconds_each(int(words[0]), words[1])
            elif command == "part":
                answer = training.parts[words[0]] / training.count
            else:
                break
            print(repr(answer), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
