"""Lets tests that want GPUs run where there is none: every device of CUDA's is the CPU, and whatever streams and events order has happened.

A stand-in of tests alone: what it lets run says how a backend is called, and nothing of a GPU.
"""
import contextlib
import functools

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def on_cpu(value):
    """`value`, with CUDA's devices replaced."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return "cpu"
    return value


def is_index(value):
    return isinstance(value, int) and not isinstance(value, bool)


class DevicesAreCpu(TorchFunctionMode):
    """In every function of torch's: `cuda()` is the identity, and a device of CUDA's, or its number, the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        args = [on_cpu(each) for each in args]
        if name == "to" and len(args) > 1 and is_index(args[1]):
            args[1] = CPU
        kwargs = {key: on_cpu(value) for key, value in (kwargs or {}).items()}
        if is_index(kwargs.get("device")):
            kwargs["device"] = CPU
        return function(*args, **kwargs)


class Done:
    """A stream or an event: nothing is ever left to wait for."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: self


def answering(make):
    """A function of its own, which torch's compiler tells from others, that answers whatever it is asked with what `make` makes."""
    def answer(*args, **kwargs):
        return make() if make else None
    return answer


def open_gates(common):
    """Decorators of torch.testing._internal.common_distributed that skip where there is no GPU."""
    common.skip_if_no_gpu = lambda test: test
    for gate in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
        setattr(common, gate, lambda *args, **kwargs: lambda test: test)
    common.init_multigpu_helper = lambda world_size, backend: {rank: [rank] for rank in range(world_size)}


def install(common):
    """`common`: torch.testing._internal.common_distributed."""
    open_gates(common)
    cuda = torch.cuda
    for module, name in ((torch, "Stream"), (torch, "Event"), (cuda, "Stream"), (cuda, "Event")):
        setattr(module, name, Done)
    for module, name, answer in (
            (cuda, "stream", contextlib.nullcontext), (cuda, "device", contextlib.nullcontext), (cuda, "current_stream", Done),
            (torch.accelerator, "current_stream", Done), (cuda, "current_device", int), (cuda, "set_device", None), (cuda, "synchronize", None),
            (torch.Tensor, "record_stream", None)):
        setattr(module, name, answering(answer))
    cuda.manual_seed = torch.manual_seed
    torch.nn.Module.cuda = lambda module, device=None: module
    parallel = torch.nn.parallel.DistributedDataParallel
    made = parallel.__init__

    @functools.wraps(made)
    def init(self, module, device_ids=None, output_device=None, *args, **kwargs):
        made(self, module, None, None, *args, **kwargs)

    parallel.__init__ = init
    DevicesAreCpu().__enter__()
