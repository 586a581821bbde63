"""What tests and soaks of the training examples share: small data, the hash that they print, the processes of their ranks."""
import gzip
import os
import pathlib
import random
import re
import struct
import subprocess
import time

DEADLINE = 120  # seconds, for any one program
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")} | {"OMP_NUM_THREADS": "1"}


def run(*command):
    """Exit code, stdout, stderr."""
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


def idx(numbers, *sizes):
    """An IDX file of bytes."""
    header = struct.pack(f">I{len(sizes)}I", 0x0800 | len(sizes), *sizes)
    return gzip.compress(header + bytes(numbers), compresslevel=1)


def write_data(folder, train=3000, test=200):
    """Images that can be told apart: class c is bright in row 2c."""
    dice = random.Random(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = [dice.randrange(10) for _ in range(count)]
        pixels = bytearray(count * 784)
        for image, label in enumerate(labels):
            begin = image * 784 + 2 * label * 28
            pixels[begin:begin + 28] = dice.randbytes(28)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(pixels, count, 28, 28))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(labels, count))


def hash_in(text):
    """None: there is none."""
    found = re.search(r"parameter hash ([0-9a-f]{16}) on every rank", text)
    return found.group(1) if found else None


def rank_of_attempt(job, attempt, rank, file, seconds):
    """The process of that rank of `job`, once this attempt has saved into `file`; None: it has not, or the job has ended."""
    wanted = {f"TORCHELASTIC_RESTART_COUNT={attempt}".encode(), f"RANK={rank}".encode()}
    since, end = time.time(), time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
        if not file.exists() or file.stat().st_mtime < since:
            continue
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                is_ours = str(file).encode() in (process / "cmdline").read_bytes()
                if is_ours and wanted <= set((process / "environ").read_bytes().split(b"\0")):
                    return int(process.name)
            except OSError:
                continue
    return None
