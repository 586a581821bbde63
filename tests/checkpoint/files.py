"""Checkpoints as Python programs make them, plain and odd ones. Needs Python's torch.

    files.py FOLDER    writes each into FOLDER
"""
import argparse
import collections
import pathlib
import sys

import torch
from torch import nn


def net():
    """SmallNet of checkpoint_program.cc: names, shapes and dtypes are the same."""
    return nn.Sequential(collections.OrderedDict([
        ("conv", nn.Conv2d(1, 4, 3)), ("bn", nn.BatchNorm2d(4)), ("flat", nn.Flatten()), ("fc", nn.Linear(16, 3))]))


def trained():
    """A net and its optimizer after a few steps: nothing in them is as it began."""
    torch.manual_seed(1)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def odd_tensors():
    """What a state_dict may hold besides contiguous f32."""
    torch.manual_seed(2)
    grid, row, complex_row = torch.arange(24.).reshape(4, 6), torch.randn(5), torch.randn(3, dtype=torch.complex64)
    return {
        "transposed": grid.t(), "sliced": grid[1:3, 2:5], "every_second": row[::2], "expanded": torch.full((1,), 7.).expand(3, 2),
        "channels_last": torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        "shared": row, "shared_too": row, "tail_of_shared": row[3:],
        "parameter": nn.Parameter(torch.randn(2, 2)), "frozen": nn.Parameter(torch.randn(2), requires_grad=False),
        "scalar": torch.tensor(5), "empty": torch.empty(0, 3), "empty_too": torch.empty(2, 0),
        "conjugated": complex_row.conj(), "negated": torch.randn(3, dtype=torch.complex64).conj().imag, "complex128": torch.randn(2, dtype=torch.complex128),
        "bool": torch.tensor([True, False, True]), "u8": torch.tensor([0, 255], dtype=torch.uint8), "i8": torch.tensor([-128, 127], dtype=torch.int8),
        "i16": torch.tensor([-2, 3], dtype=torch.int16), "i32": torch.tensor([-2, 3], dtype=torch.int32), "i64": torch.tensor([-2**62, 3]),
        "u16": torch.tensor([1, 65535], dtype=torch.uint16), "u32": torch.tensor([1, 2**32 - 1], dtype=torch.uint32),
        "u64": torch.tensor([1, 2**63], dtype=torch.uint64), "f16": torch.randn(3).half(), "bf16": torch.randn(3).bfloat16(),
        "f64": torch.randn(3).double(), "f8_e4m3": torch.randn(3).to(torch.float8_e4m3fn), "f8_e5m2": torch.randn(3).to(torch.float8_e5m2),
        "name with \u00e4, \" and \\": torch.ones(1),
    }


def everything_beside(model, optimizer):
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.5, "is_done": False, "name": "run 7",
        "none": None, "long": 2**70, "list": [1, [2, (3, {"deep": {4: 5}})]], "set": {1, 2}, "bytes": b"123",
        "device": torch.device("cpu"), "dtype": torch.float32, "size": torch.Size([1, 2]), "args": argparse.Namespace(lr=0.1),
        "counts": collections.Counter("aab"), "random": torch.get_rng_state(),
    }


def write(folder):
    folder = pathlib.Path(folder)
    model, optimizer = trained()
    of_ddp = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    save = lambda name, what, **how: torch.save(what, folder / name, **how)
    save("net.pt", model.state_dict())
    save("net_of_ddp.pt", of_ddp)
    save("net_protocol_4.pt", model.state_dict(), pickle_protocol=4)
    save("net_protocol_5.pt", {"model": model.state_dict()}, pickle_protocol=5)
    save("net_parameters.pt", dict(model.named_parameters()) | dict(model.named_buffers()))
    save("run.pt", everything_beside(model, optimizer))
    save("run_of_ddp.pt", {"state_dict": of_ddp, "epoch": 3})
    save("two.pt", {"model": model.state_dict(), "ema": model.state_dict()})
    save("odd.pt", odd_tensors())
    save("legacy.pt", model.state_dict(), _use_new_zipfile_serialization=False)
    save("module.pt", model)
    save("tensor.pt", torch.ones(3))
    save("optimizer.pt", optimizer.state_dict())
    save("sparse.pt", {"emb": torch.eye(3).to_sparse(), "fine": torch.ones(1), "q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                       "meta": torch.empty(2, device="meta")})
    save("wrong.pt", {"conv.weight": torch.ones(4, 1, 5, 5), "conv.bias": torch.ones(4).double(), "fc.weight": torch.ones(3, 16),
                      "head.weight": torch.ones(2), "bn.weight": "a text"})
    torch.jit.script(model).save(folder / "jit.pt")


if __name__ == "__main__":
    write(sys.argv[1])
