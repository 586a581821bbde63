"""A rank of soak `pytorch-failures`: `failing.py CASE VICTIM FILE`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

The victim does what the case says; every other rank prints, as JSON, what it was told and how many ms after the harm was done. FILE
holds the time of that where it is a death.
"""
import datetime
import json
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import tutti.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = 2  # seconds, of the group in which somebody is late
CASE, VICTIM, FILE = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
IS_VICTIM = RANK == VICTIM


def die():
    FILE.write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def killed_before():
    if IS_VICTIM:
        die()
    dist.all_reduce(torch.ones(1000))


def killed_inside():
    if IS_VICTIM:
        threading.Timer(0.05, die).start()
    elif RANK == (VICTIM + 1) % SIZE:
        time.sleep(0.3)  # for this one the victim waits
    dist.all_reduce(torch.ones(1000))


def killed_while_others_wait_for_works():
    if IS_VICTIM:
        time.sleep(0.05)
        die()
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def killed_beside_workers():
    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2))
    next(batches)
    dist.barrier()
    if IS_VICTIM:
        die()
    dist.all_reduce(next(batches))


def late():
    if IS_VICTIM:
        time.sleep(TIMEOUT + 2)
    dist.all_reduce(torch.ones(10))


def count():
    dist.all_reduce(torch.ones(11 if IS_VICTIM else 10))


def dtype():
    dist.all_reduce(torch.ones(10, dtype=torch.float64 if IS_VICTIM else torch.float32))


def operation():
    x = torch.ones(10)
    dist.broadcast(x, 0) if IS_VICTIM else dist.all_reduce(x)


def root():
    dist.broadcast(torch.ones(10), 1 if IS_VICTIM else 0)
    dist.all_reduce(torch.ones(1))  # two broadcasts alone may end before anybody can know


def message_size():
    """Between the victim and the next; the third one awaits both."""
    after = (VICTIM + 1) % SIZE
    if IS_VICTIM:
        dist.send(torch.ones(9), after)
    elif RANK == after:
        dist.recv(torch.ones(10), VICTIM)
    dist.all_reduce(torch.ones(1))


CASES = [killed_before, killed_inside, killed_while_others_wait_for_works, killed_beside_workers, late, count, dtype, operation, root, message_size]


def main():
    timeout = TIMEOUT if CASE == "late" else 60
    dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=timeout))
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    began = time.time()
    told = None
    try:
        globals()[CASE]()
    except dist.DistBackendError as error:
        ended, told = time.time(), str(error)
    if told is None:
        sys.exit(f"rank {RANK}: nothing has failed")
    failed = tutti.torch.failure()
    harmed = float(FILE.read_text()) if CASE.startswith("killed") else began
    print(json.dumps({"rank": RANK, "ms": round((ended - harmed) * 1000), "text": told, "code": failed.code, "ranks": failed.global_ranks}), flush=True)


if __name__ == "__main__":
    main()
