"""What the ranks of backend_test.py run: `ranks.py FUNCTION`, with RANK, WORLD_SIZE and MASTER_PORT set."""
import ctypes
import datetime
import faulthandler
import json
import os
import signal
import sys
import time

import ports
import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init(**options):
    dist.init_process_group("tutti", **options)


def refused(kind, *words):
    """A context in which a call must be refused with an error of `kind` that says all of `words`."""
    class Refused:
        def __enter__(self):
            pass

        def __exit__(self, _, error, __):
            assert type(error) is kind, f"{error!r} is no {kind.__name__}"
            for word in words:
                assert word in str(error), f"{error} does not say {word!r}"
            assert ".cc" not in str(error), error  # a file of ours tells its reader nothing
            return True
    return Refused()


def registration():
    """By the entry point: nothing of ours is imported before."""
    assert "tutti.torch" not in sys.modules
    assert dist.is_backend_available("tutti")
    init()
    assert dist.get_backend() == "tutti"
    import tutti.torch
    tutti.torch.register()
    tutti.torch.register()
    group = dist.new_group(backend="tutti")
    dist.barrier(group)
    assert tutti.torch.failure() is None and tutti.torch.failure(group) is None
    dist.destroy_process_group()


def awaited_at_the_meeting():
    dist.init_process_group("gloo")
    if RANK == 1:
        time.sleep(0.5)
    dist.new_group(backend="tutti")
    dist.destroy_process_group()


def not_there():
    init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    survivors = "dist.new_group(ranks, use_local_synchronization=True)"
    calls = {"new_window": ((), "use send and recv, or all_to_all"), "get_reconfigure_handle": ((), survivors), "shrink": (([1],), survivors),
             "merge": ((dist.HashStore(), backend.options, 0, 2), "a larger world has to be started as one"),
             "suspend": ((), "destroy what is idle"), "resume": ((), "nothing can have been suspended")}
    for name, (arguments, instead) in calls.items():
        try:
            getattr(backend, name)(*arguments)
        except NotImplementedError as error:
            assert f"tutti: there is no {name}: " in str(error) and instead in str(error), error
        else:
            raise AssertionError(f"{name} is there")
    x = torch.ones(1)
    dist.all_reduce(x)  # the group is as it was
    assert x[0] == SIZE
    dist.destroy_process_group()


def named_by_device():
    dist.init_process_group("cpu:tutti")
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * 3
    dist.destroy_process_group()


def beside_gloo():
    """A group of a job whose group of all ranks is gloo's."""
    dist.init_process_group("gloo")
    for ranks in ([0, 1], [1, 0], list(range(SIZE))):
        group = dist.new_group(ranks, backend="tutti")
        if RANK not in ranks:
            continue
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert x[0] == len(ranks)
    dist.destroy_process_group()


def bad_arguments():
    init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # torch itself refuses these before it
    with refused(ValueError, "tensor on meta", "cpu:tutti,"):
        backend.allreduce([torch.empty(2, device="meta")])
    with refused(TypeError, "QInt8"):
        backend.broadcast([torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)], dist.BroadcastOptions())
    with refused(ValueError, "tag -1"):
        dist.send(torch.ones(1), (RANK + 1) % SIZE, tag=-1)
    with refused(NotImplementedError, "band"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
    x = torch.ones(2)  # the group goes on
    dist.all_reduce(x)
    assert x[0] == SIZE
    dist.destroy_process_group()
    with refused(ValueError, "not been initialized"):
        dist.all_reduce(x)


def too_short_a_timeout():
    with refused(ValueError, "timeout of 0 s"):
        init(timeout=datetime.timedelta(0), store=dist.HashStore(), rank=0, world_size=1)
    with refused(ValueError, "at least a millisecond"):
        init(timeout=datetime.timedelta(microseconds=400), store=dist.HashStore(), rank=0, world_size=1)


def not_contiguous():
    init()
    x = torch.arange(12.0).reshape(3, 4)
    before = x.clone()
    dist.all_reduce(x[:, 1])
    before[:, 1] *= SIZE
    assert torch.equal(x, before), x
    # Memory that holds other values than it shows; calls by dist get it resolved, and lose what is written.
    y = torch.complex(torch.ones(3), torch.full((3,), float(RANK))).conj()
    dist.group.WORLD._get_backend(torch.device("cpu")).broadcast([y], dist.BroadcastOptions()).wait()
    assert y[0] == complex(1, 0), y
    half = torch.full((3,), complex(RANK, 2), dtype=torch.complex32)  # torch shows it as pairs of f16
    dist.broadcast(half, 1)
    assert half[0].item() == complex(1, 2), half
    work = dist.all_reduce(x.t()[2:], async_op=True)
    work.wait()
    assert x[0, 2] == 2 * SIZE
    dist.destroy_process_group()


def beyond_gloo():
    """What docs/pytorch.md says that gloo has not."""
    init()
    parts = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(parts, torch.full((RANK + 1,), float(RANK)))
    assert [part.tolist() for part in parts] == [[float(rank)] * (rank + 1) for rank in range(SIZE)], parts
    own = torch.zeros(RANK + 1)
    dist.reduce_scatter(own, [torch.ones(rank + 1) for rank in range(SIZE)])
    assert own.tolist() == [SIZE] * (RANK + 1), own
    dist.all_to_all(parts, [torch.full((RANK + 1,), float(rank)) for rank in range(SIZE)])
    assert [part.tolist() for part in parts] == [[float(RANK)] * (rank + 1) for rank in range(SIZE)], parts
    x = torch.full((2,), float(RANK))
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x[0] == (SIZE - 1) / 2, x
    y = torch.ones(2)
    dist.all_reduce(y, op=dist._make_nccl_premul_sum(0.5))
    assert y[0] == SIZE / 2, y
    dist.destroy_process_group()


def futures():
    """Their callbacks may block, call collectives, and end groups."""
    init()
    group = dist.new_group()
    seen = []

    def after(future):
        y = torch.ones(1)
        dist.all_reduce(y, group=group)
        dist.destroy_process_group(group)
        seen.append(y.item())
        return future.value()[0] + 1

    x = torch.ones(1)
    future = dist.all_reduce(x, async_op=True).get_future().then(after)
    assert future.wait() == SIZE + 1 and seen == [SIZE]
    works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(200)]
    for work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success()
    for _ in range(200):
        dist.all_reduce(torch.ones(100), async_op=True)  # nobody keeps its Work
    dist.barrier()
    dist.destroy_process_group()


def futures_alone():
    """Whoever keeps the future need not keep its Work, whenever that goes: as DDP's reducer does it."""
    init()
    for number in range(300):
        work = dist.all_reduce(torch.ones(100000), async_op=True)
        future = work.get_future()
        while number % 2 and not work.is_completed():
            pass  # it goes when its operation has ended, and its future is about to be completed
        del work
        assert future.wait()[0][0] == SIZE
    dist.destroy_process_group()


def coalesced():
    init()
    xs = [torch.full((3,), float(i)) for i in range(4)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        for x in xs:
            dist.all_reduce(x)
    works.wait()
    assert [x[0].item() for x in xs] == [i * SIZE for i in range(4)]
    peer_to, peer_from = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), float(RANK)), peer_to),
                                        dist.P2POp(dist.irecv, got, peer_from)]):
        work.wait()
    assert got[0] == peer_from
    dist.destroy_process_group()


def lists_of_lists():
    """What the future of all_gather_coalesced holds."""
    init()
    out = [[torch.zeros(2), torch.zeros(1)] for _ in range(SIZE)]
    got = dist.all_gather_coalesced(out, [torch.full((2,), float(RANK)), torch.ones(1)], async_op=True).wait()
    assert [[len(each) for each in of_rank] for of_rank in got] == [[2, 1]] * SIZE, got
    assert out[1][0].tolist() == [1, 1], out
    dist.destroy_process_group()


class Silent(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was seen")


def under_a_mode():
    """What is written back to memory that is not contiguous is no operation of the program's."""
    init()
    for _ in range(20):
        x = torch.ones(4, 4)
        work = dist.all_reduce(x[:, 1], async_op=True)
        with Silent():
            work.wait()
        assert x[:, 1].tolist() == [SIZE] * 4, x
    dist.destroy_process_group()


def store_without_compare_set():
    class Poor(dist.Store):
        def __init__(self):
            super().__init__()
            self.held = dist.HashStore()

        def set(self, key, value):
            self.held.set(key, value)

        def get(self, key):
            return self.held.get(key)

        def add(self, key, amount):
            return self.held.add(key, amount)

        def check(self, keys):
            return self.held.check(keys)

        def wait(self, keys, timeout=None):
            self.held.wait(keys)
    with refused(dist.DistNetworkError, "torch's store lacks a call"):
        dist.init_process_group("tutti", store=Poor(), rank=0, world_size=1)


def refused_part():
    """A coalesced call of which a part is refused leaves nothing open."""
    init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.group.WORLD._start_coalescing(torch.device("cpu"))
    x = torch.ones(2)
    backend.allreduce([x])
    with refused(ValueError, "tag -1"):
        backend.send([x], (RANK + 1) % SIZE, -1)
    dist.barrier()
    y = torch.ones(2)
    dist.all_reduce(y)
    assert x[0] == y[0] == SIZE, (x, y)
    dist.destroy_process_group()


def left_part():
    """A coalesced call that an exception leaves fails what is waited for next, and takes in nothing more."""
    init()
    x, y = torch.ones(2), torch.ones(2)
    with refused(KeyError, "no batch"):
        with dist._coalescing_manager(device=torch.device("cpu")):
            dist.broadcast(x, 0, async_op=True)
            raise KeyError("no batch")
    with refused(RuntimeError, "an exception has left that call"):
        dist.broadcast(y, 0)
    dist.broadcast(y, 0)
    dist.barrier()
    dist.destroy_process_group()


def another_order():
    """Ranks of a group that are not in the order of the world."""
    init()
    backwards = list(range(SIZE))[::-1]
    group = dist.new_group(backwards, sort_ranks=False)
    parts = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_gather(parts, torch.tensor([float(RANK)]), group=group)
    assert [part.item() for part in parts] == backwards, parts
    dist.destroy_process_group()


def old_world():
    """One that was destroyed, and is held by a Work, makes no groups."""
    init()
    kept = dist.all_reduce(torch.ones(1), async_op=True)
    kept.wait()
    with ports.held_port() as own:
        port = torch.tensor([own])
        dist.broadcast(port, 0)
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(port.item())
        dist.init_process_group("gloo")
    group = dist.new_group(backend="tutti")
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    assert x[0] == SIZE
    dist.destroy_process_group()


def bools():
    """As + and * of torch: whether any is true, whether all are."""
    init()
    for op, expected in ((dist.ReduceOp.SUM, [True, False, True, SIZE > 1]), (dist.ReduceOp.PRODUCT, [True, False, SIZE == 1, False])):
        own = torch.tensor([True, False, RANK == 0, RANK != 0])
        parts = own.repeat(SIZE).chunk(SIZE)
        dist.all_reduce(own, op=op)
        assert own.tolist() == expected, (op, own)
        scattered = torch.zeros(4, dtype=torch.bool)
        dist.reduce_scatter(scattered, list(parts), op=op)
        assert scattered.tolist() == expected, (op, scattered)
    with refused(NotImplementedError, "bool has no average"):
        dist.all_reduce(own, op=dist.ReduceOp.AVG)
    dist.destroy_process_group()


def in_place_or_not():
    """Ranks may hold both sides of an all_to_all in one storage, in one place, or apart."""
    init()
    sent = torch.arange(float(2 * SIZE)) + 10 * RANK
    expected = [10.0 * rank + 2 * RANK + i for rank in range(SIZE) for i in range(2)]
    storage = torch.cat([sent, torch.zeros(2 * SIZE)])
    received = [storage[2 * SIZE:], sent, torch.zeros(2 * SIZE)][RANK]
    dist.all_to_all_single(received, [storage[:2 * SIZE], sent, sent][RANK])
    assert received.tolist() == expected, received
    dist.destroy_process_group()


def of_inference():
    """Tensors that were made in inference_mode, whether they lie side by side or not."""
    init()
    with torch.inference_mode():
        x = torch.ones(3, 4)
    dist.all_reduce(x[1])
    dist.all_reduce(x[:, 1])
    assert x.tolist() == [[1, SIZE, 1, 1], [SIZE, SIZE * SIZE, SIZE, SIZE], [1, SIZE, 1, 1]], x
    dist.destroy_process_group()


def fork_ranks(function):
    """The exit codes of two ranks that multiprocessing forks."""
    fork = torch.multiprocessing.get_context("fork")
    os.environ["WORLD_SIZE"] = "2"
    ranks = [fork.Process(target=function, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return [rank.exitcode for rank in ranks]


def of_a_fork(rank):
    os.environ["RANK"] = str(rank)
    init()
    x = torch.ones(10)
    assert dist.all_reduce(x, async_op=True).get_future().wait()[0][0] == 2
    dist.destroy_process_group()


def forked_after_import():
    """Ranks that multiprocessing forks from a program that knows the backend already."""
    import tutti.torch  # noqa: F401
    assert fork_ranks(of_a_fork) == [0, 0]


def leaves_a_thread_inside(rank):
    """One that Python waits for at its end: so do we, before the group ends."""
    import threading
    os.environ["RANK"] = str(rank)
    init()
    if rank == 1:
        time.sleep(0.5)
        dist.send(torch.ones(1), 0)
    else:
        threading.Thread(target=lambda: (dist.recv(torch.ones(1), 1), time.sleep(0.2), dist.get_world_size())).start()


def forked_with_a_thread_inside():
    assert fork_ranks(leaves_a_thread_inside) == [0, 0]


def keeps_a_pool(rank):
    """Whose workers wait for work: Python ends them at its own end, which comes after ours in a process of multiprocessing."""
    import concurrent.futures
    global pool
    os.environ["RANK"] = str(rank)
    init()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(int).result()
    dist.barrier()
    dist.destroy_process_group()


def forked_with_a_pool():
    assert fork_ranks(keeps_a_pool) == [0, 0]


def raises_beside_a_thread_inside(rank):
    """Its call ends with the exception, long before its timeout."""
    import threading
    os.environ["RANK"] = str(rank)
    init()
    dist.barrier()
    if rank == 0:
        threading.Thread(target=lambda: dist.recv(torch.ones(1), 1)).start()
        time.sleep(0.5)
        raise RuntimeError("told to")
    with refused(dist.DistBackendError, "its program ends by an exception: RuntimeError: told to"):
        dist.recv(torch.ones(1), 0, tag=1)


def forked_and_raises_beside_a_thread_inside():
    assert fork_ranks(raises_beside_a_thread_inside) == [1, 0]


def ends_by_exception_or_hears_of_it(rank):
    """As torch.multiprocessing.spawn ends a rank."""
    os.environ["RANK"] = str(rank)
    init()
    dist.barrier()
    if rank == 0:
        try:
            raise RuntimeError("told to")
        except RuntimeError:
            sys.exit(1)
    try:
        dist.recv(torch.ones(1), 0)
    except dist.DistBackendError as error:
        assert "its program ends by an exception: RuntimeError: told to" in str(error), error
    else:
        raise AssertionError("nothing was told")


def forked_and_ends_by_exception():
    assert fork_ranks(ends_by_exception_or_hears_of_it) == [1, 0]


def lost():
    """The last rank is killed inside, or before, an operation: the others name it, and their processes live."""
    import tutti.torch
    init()
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1 << 20), group=group)
    except dist.DistBackendError as error:
        assert f"rank {SIZE - 1}" in str(error) and "all_reduce #2" in str(error) and "torch's group" in str(error), error
    else:
        raise AssertionError("nobody was lost")
    failure = tutti.torch.failure(group)
    assert failure.code == "kPeerLost" and failure.global_ranks == (SIZE - 1,) and failure.number == 2, failure
    survivors = dist.new_group(list(range(SIZE - 1)), use_local_synchronization=True)
    x = torch.ones(1)
    dist.all_reduce(x, group=survivors)
    assert x[0] == SIZE - 1


def flight_recorder():
    """It sees what has completed and what never will, of blocking and of asynchronous calls."""
    from torch._C._distributed_c10d import _dump_fr_trace_json
    init()
    x = torch.ones(5)
    dist.all_reduce(x)
    dist.broadcast(x, 0, async_op=True).wait()
    hung = dist.irecv(x, 1, tag=7) if RANK == 0 else None
    entries = json.loads(_dump_fr_trace_json(backend="tutti"))["entries"]
    states = {entry["profiling_name"].split(" ")[0]: entry["state"] for entry in entries}
    assert states["tutti:all_reduce"] == states["tutti:broadcast"] == "completed", states
    assert hung is None or states["tutti:recv"] == "scheduled", states
    dist.barrier()  # rank 0 has looked
    if RANK == 1:
        dist.send(x, 0, tag=7)
    else:
        hung.wait()
    dist.destroy_process_group()


def init_soon(seconds):
    """Ranks may start at any time; what they call then has no more than this."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
    init(store=store, rank=RANK, world_size=SIZE, timeout=datetime.timedelta(seconds=seconds))
    return store


def late():
    import tutti.torch
    init_soon(3)
    dist.barrier()
    while RANK == 1 and tutti.torch.failure() is None:
        time.sleep(0.01)
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        assert "Timed out" in str(error) and "rank 1" in str(error), error
    else:
        raise AssertionError("rank 1 was not late")
    assert tutti.torch.failure().ranks == (1,)


def late_in_a_new_group():
    """The advice is what Python has."""
    store = init_soon(3)
    if RANK == 1:
        store.wait(["told"])
        store.set("seen", "")
        return
    with refused(dist.DistStoreError, "Timed out", "(init_process_group(timeout=))"):
        dist.new_group([0, 1], use_local_synchronization=True)
    store.set("told", "")
    store.wait(["seen"])


def different():
    """Both sides stand in the text."""
    init()
    x = torch.ones(3 if RANK == 0 else 4)
    try:
        dist.all_reduce(x)
    except dist.DistBackendError as error:
        assert "3" in str(error) and "4" in str(error) and "kCollectiveMismatch" in str(error), error
        assert str(error).endswith(". TORCH_DISTRIBUTED_DEBUG=INFO names the lines of Python"), error
    else:
        raise AssertionError("nobody has seen it")


def different_to_the_end():
    """No call tells it: the broadcasts are too small to wait for anybody. Told once."""
    init()
    dist.broadcast(torch.ones(4), src=RANK)
    with refused(dist.DistBackendError, "kCollectiveMismatch", "root"):
        dist.destroy_process_group()
    dist.destroy_process_group()


def different_beside_an_exception():
    """What is learned in the end does not take its place."""
    init()
    if RANK == 0:
        dist.broadcast(torch.ones(4), src=0)
        with refused(dist.DistBackendError, "kCollectiveMismatch"):
            dist.destroy_process_group()
        return
    try:
        try:
            raise ValueError("its own")
        finally:
            dist.destroy_process_group()
    except ValueError as error:
        assert str(error) == "its own", error


def different_and_asked_for():
    """destroy_process_group does not raise what tutti.torch.failure() has told."""
    import tutti.torch
    init()
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(100000 + RANK), group=group, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    assert tutti.torch.failure(group).code == "kCollectiveMismatch"
    dist.destroy_process_group(group)
    dist.barrier()
    dist.destroy_process_group()


def ends_well_with_other_roots():
    """So it says; but its numbers are wrong."""
    init()
    try:
        dist.broadcast(torch.ones(4), src=RANK)
        sys.exit(0)
    finally:
        dist.destroy_process_group()


def waits_for_a_while():
    init()
    store = dist.distributed_c10d._get_default_store()
    if RANK == 1:
        store.wait(["waited"])
    work = dist.barrier(async_op=True)
    if RANK == 0:
        with refused(RuntimeError, "Timed out", "rank 0 has waited 200 ms for barrier of torch's group 0", "goes on"):
            work.wait(datetime.timedelta(milliseconds=200))
        store.set("waited", "")
    work.wait()
    dist.destroy_process_group()


def shared_elements():
    """Before anything is sent."""
    init()
    with refused(ValueError, "strides [0]", "clone()"):
        dist.all_reduce(torch.ones(1).expand(4))
    x = torch.ones(1)
    dist.all_gather([torch.empty(4), torch.empty(4)], x.expand(4))
    dist.destroy_process_group()


def raises_beside_a_daemon():
    """The others are told by which exception."""
    import threading
    init()
    dist.barrier()
    if RANK == 0:
        threading.Thread(target=lambda: dist.recv(torch.ones(1), 1), daemon=True).start()
        time.sleep(0.5)
        raise ValueError("main raises")
    with refused(dist.DistBackendError, "rank 0 aborted the group", "ValueError: main raises"):
        dist.recv(torch.ones(1), 0, tag=1)


def raises_beside_a_thread():
    """Python waits for it, so its call ends with the exception, long before its timeout."""
    import threading
    init()
    dist.barrier()
    if RANK == 0:
        threading.Thread(target=lambda: dist.recv(torch.ones(1), 1)).start()
        time.sleep(0.5)
        raise ValueError("main raises")
    with refused(dist.DistBackendError, "its program ends by an exception: ValueError: main raises"):
        dist.recv(torch.ones(1), 0, tag=1)


def destroys_many_before_the_others():
    """All of them within the patience for one."""
    init()
    for _ in range(10):
        dist.new_group()
    dist.barrier()
    if RANK == 1:
        time.sleep(6)
    began = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - began < 5, time.monotonic() - began


def destroys_one_after_the_other():
    """Each after those who are late for it, for longer than the patience for one in all."""
    init()
    for number in range(8):
        group = dist.new_group()
        dist.barrier(group)
        is_last = number == 7
        if is_last and RANK == 0:
            dist.broadcast(torch.ones(1), 0, group=group)  # nobody else calls it
        if RANK == 1:
            time.sleep(0.4)
        try:
            dist.destroy_process_group(group)
            assert not is_last, "nobody was told"
        except RuntimeError as error:
            assert is_last and "broadcast" in str(error), error
    dist.destroy_process_group()


def begins_when_main_is_over():
    """The first group of a process, of a thread that Python waits for at its end."""
    import threading

    def work():
        threading.main_thread().join()
        init()
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == SIZE, x
        dist.destroy_process_group()
        print("worked", flush=True)
    threading.Thread(target=work).start()


def messages_beside_a_daemon():
    """A thread that Python does not wait for, in calls at every moment of the end."""
    import threading
    init()
    x = torch.ones(1)

    def pump():
        while True:
            (dist.recv if RANK else dist.send)(x, 1 - RANK)
    threading.Thread(target=pump, daemon=True).start()
    time.sleep(0.3)


def ends_beside_a_daemon_in_torch():
    """A thread that Python does not wait for comes back from a call of torch's as Python ends."""
    import threading
    init()
    x = torch.ones(1)

    def pump():
        while True:
            torch.add(x, 1)
    threading.Thread(target=pump, daemon=True).start()
    dist.barrier()


def terminate_in(seconds):
    """std::terminate in a native thread, of which Python knows nothing."""
    class Event(ctypes.Structure):  # struct sigevent
        _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("function", ctypes.c_void_p),
                    ("rest", ctypes.c_char * 64)]
    c, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = Event(notify=2, function=ctypes.cast(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev, ctypes.c_void_p))  # SIGEV_THREAD
    assert c.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0
    assert c.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, seconds, 0), None) == 0


class WhenPythonEnds:
    """Takes the place of sys.stdout, which Python flushes as it ends."""
    def __init__(self, call):
        self.call = call

    def flush(self):
        if sys.is_finalizing():
            call, self.call = self.call, lambda: None
            call()


def terminates_natively_as_python_ends():
    init()
    signal.alarm(60)  # for one that hangs

    def wait():
        terminate_in(1)
        time.sleep(30)
    sys.stdout = WhenPythonEnds(wait)


def terminates_natively_after_python():
    init()
    signal.alarm(60)
    ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
    sys.stdout = WhenPythonEnds(lambda: terminate_in(2))


def raises_beside_a_callback():
    """That of a future, in a daemon thread: it does not run once Python ends."""
    import threading
    init()
    dist.barrier()
    if RANK == 1:
        with refused(dist.DistBackendError, "rank 0 aborted the group", "ValueError: main raises"):
            dist.recv(torch.ones(1), 0, tag=1)
        return

    def receive():
        work = dist.irecv(torch.ones(1), 1)
        work.get_future().then(lambda _: time.sleep(0.2))
        work.wait()
    threading.Thread(target=receive, daemon=True).start()
    time.sleep(0.5)
    raise ValueError("main raises")


def calls_itself_rank_1():
    try:
        dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=10), rank=min(RANK, 1), world_size=SIZE)
    except Exception as error:
        assert "by hand" not in str(error), error
        if "already present" in str(error):
            assert "The same job? Then give each process its own RANK" in str(error), error
    else:
        raise AssertionError("two processes are rank 1")


def line_of_python():
    """With TORCH_DISTRIBUTED_DEBUG=INFO."""
    init()
    try:
        dist.all_reduce(torch.ones(3 if RANK == 0 else 4))
    except dist.DistBackendError as error:
        assert "ranks.py:" in str(error) and "TORCH_DISTRIBUTED_DEBUG" not in str(error), error
    else:
        raise AssertionError("nobody has seen it")


def many_groups():
    init()
    groups = [dist.new_group(list(range(1 + i % SIZE))) for i in range(300)]
    for i, group in enumerate(groups):
        if RANK < 1 + i % SIZE:
            x = torch.ones(1)
            dist.all_reduce(x, group=group)
            assert x[0] == 1 + i % SIZE
    dist.destroy_process_group()


def held():
    """Descriptors, threads and maps of this process."""
    count = [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]
    with open("/proc/self/maps") as file:
        return (*count, len(file.readlines()))


def nothing_left():
    init()
    seen = []
    for number in range(60):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.all_reduce(torch.ones(10), group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)
        del group
        if number in (9, 59):
            dist.barrier()
            for _ in range(100):  # helpers of a burst are about to end
                time.sleep(0.1)
                if not seen or (held()[0] <= seen[0][0] and held()[1] <= seen[0][1] + 1):
                    break
            seen.append(held())
    (files, threads, maps), (files_then, threads_then, maps_then) = seen
    # A helper may have come, with its stack and its heap.
    assert files_then <= files and threads_then <= threads + 1 and maps_then <= maps + 8, seen
    dist.destroy_process_group()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(float(index))


def workers():
    """DataLoader's, forked after init, disturb nothing."""
    init()
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=2):
            dist.all_reduce(batch)
    dist.destroy_process_group()


def in_a_worker():
    """A group that is used in a forked child is an error there, and goes on here."""
    init()
    if os.fork() == 0:
        try:
            dist.all_reduce(torch.ones(1))
            os._exit(1)
        except (dist.DistBackendError, ValueError) as error:
            os._exit(0 if "fork" in str(error) else 2)
    _, status = os.wait()
    assert status == 0, status
    dist.barrier()
    dist.destroy_process_group()


# ---- ends without destroy_process_group: EXPECTED is the code

def start_works():
    init()
    futures = [dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: f.value()) for _ in range(3)]
    return futures, dist.irecv(torch.ones(1), src=(RANK + 1) % SIZE, tag=9)


def ends_by_itself():
    globals()["kept"] = start_works()


def ends_with_other_roots():
    init()
    dist.broadcast(torch.ones(4), src=RANK)


def ends_with_a_thread_inside():
    import threading
    init()
    threading.Thread(target=lambda: dist.recv(torch.ones(1), src=(RANK + 1) % SIZE), daemon=True).start()
    time.sleep(0.5)


def ends_by_exception():
    globals()["kept"] = start_works()
    raise RuntimeError("told to")


def ends_by_sys_exit():
    globals()["kept"] = start_works()
    sys.exit(7)


def ends_by_os_exit():
    globals()["kept"] = start_works()
    store = dist.distributed_c10d._get_default_store()  # the first to go is lost to the other, whose calls say so
    if RANK == 0:
        store.set("started", "")
        store.wait(["seen"])
    else:
        store.wait(["started"])
        store.set("seen", "")
    os._exit(9)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # asked of one that hangs
    globals()[sys.argv[1]]()
