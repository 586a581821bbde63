"""The backend "tutti" of torch.distributed: CPU tensors, through shared memory inside a host and TCP between hosts.

    torch.distributed.init_process_group("tutti")

needs no import of this module: torch finds it by its entry point. docs/pytorch.md says what differs from gloo.
"""
import dataclasses
import importlib.metadata
import multiprocessing.util
import os
import sys
import threading

try:
    from tutti.torch._built_for import TORCH
except ModuleNotFoundError:
    raise ImportError(
        "tutti.torch is not in this installation: there was no PyTorch where Tutti was built. Install torch, then tutti-distributed once "
        "more (pip install --force-reinstall)") from None


def _check_torch():
    """Binaries of torch's extensions serve one minor version: c10d's classes change between them."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"tutti.torch needs PyTorch, which is not installed here: install torch {TORCH}.*, for which it was built") from None
    if found.split(".")[:2] != TORCH.split("."):
        raise ImportError(
            f"tutti.torch was built for torch {TORCH}, and torch {found} is installed: install torch {TORCH}.*, or build Tutti again "
            f"where torch {found} is installed")


def _check_name():
    """`tutti` on PyPI is not ours. It has the same import name, so that one of the two has overwritten the other's files."""
    try:
        stranger = importlib.metadata.version("tutti")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the distribution `tutti` {stranger} is installed beside `tutti-distributed`, which has the same import name and nothing to do "
        "with it: pip uninstall tutti, and install tutti-distributed again")


_check_name()
_check_torch()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402  the extension needs torch's libraries, which this loads
from tutti.torch import _backend  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Failure:
    """What a group has failed with."""
    code: str  #: "kPeerLost"
    text: str
    operation: str  #: "all_reduce"
    number: int  #: of the operation in its group, from 1
    ranks: tuple  #: of the group, whose loss or disagreement came first
    global_ranks: tuple  #: the same in the group of all ranks


def failure(group=None):
    """What `group` (the group of all ranks if None) has failed with, or None.

    TypeError: a group of another backend.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("tutti.torch.failure: no group; call torch.distributed.init_process_group first")
    found = _backend.failure(_backend_of(group))
    return found and Failure(*found[:4], tuple(found[4]), tuple(found[5]))


def _backend_of(group):
    backend = group._get_backend(torch.device("cpu"))
    while hasattr(backend, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend = backend.wrapped_pg
    return backend


_ends = None  # multiprocessing's handle of _end, and the process that it is of


def _create(options, pg_options):
    global _ends
    if _ends is None or _ends[1] != os.getpid() or not _ends[0].still_active():
        # Runs at the end of the interpreter, as atexit does, and of a process that multiprocessing has forked, too.
        _ends = multiprocessing.util.Finalize(None, _end, exitpriority=0), os.getpid()
        try:
            threading._register_atexit(_tell)  # before Python waits for threads
        except RuntimeError:
            pass  # the main thread is over, and Python waits for this one: _end does the rest
    if not options.global_ranks_in_group:
        _check_launcher(options)
    return _backend.create(options, pg_options)


def _check_launcher(options):
    """Of `tutti run`, at which its ranks meet."""
    if "TUTTI_AGENT" not in os.environ:
        return
    for name, given in (("RANK", options.group_rank), ("WORLD_SIZE", options.group_size)):
        if os.environ.get(name, str(given)) != str(given):
            raise ValueError(
                f"tutti: init_process_group was given {name.lower()} {given}, and `tutti run` {name}={os.environ[name]}: leave it out, or, "
                "where the program starts its ranks itself, start the program without `tutti run`")


def register():
    """Makes the backend known to torch.distributed; again and again if you like."""
    if "TUTTI" not in dist.Backend._plugins:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu"])


def _end():
    """Once no thread of Python's runs: no thread of ours may want its lock any more."""
    # In a process of multiprocessing Python tells pools of threads to end, and waits for threads, after this; elsewhere it has done so.
    text = _tell()
    if "concurrent.futures.thread" in sys.modules:
        sys.modules["concurrent.futures.thread"]._python_exit()
    for thread in _threads():
        thread.join()
    _backend.end(text)


def _tell():
    """By which exception the program ends; "" if by none. Calls that threads are in end by it now, not by their timeout."""
    error = _exception()
    text = "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
    if text and _threads():
        _backend.abort(text)
    return text


def _threads():
    """For which Python waits at its end."""
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread() and not thread.daemon]


def _exception():
    error = sys.exc_info()[1]  # in a process of multiprocessing it is still on its way
    if error is None:
        is_at_prompt = sys.flags.interactive or hasattr(sys, "ps1")  # where each that was shown is the last one
        return None if is_at_prompt else getattr(sys, "last_value", None)
    while isinstance(error, SystemExit):  # torch.multiprocessing.spawn makes one of every exception
        error = error.__context__ if error.code else None
    return error


register()
