"""The backend "tutti" of torch.distributed as its users meet it: ranks.py by ranks of its own.

    backend_test.py PACKAGES TUTTI [unittest's arguments]

PACKAGES: a folder with the package tutti, for PYTHONPATH. TUTTI: the command. Run by the Python that has torch.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ports

PACKAGES, TUTTI = sys.argv[1:3]
HERE = pathlib.Path(__file__).resolve().parent
DEADLINE = 120


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "TORCH_", "RANK", "WORLD_"))}
    return {**kept, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1", **more}


def end_hung(rank):
    """Asks it, and the children that have not become other programs, where their Python threads are; kills all a second later."""
    os.killpg(rank.pid, signal.SIGUSR1)
    time.sleep(1)
    os.killpg(rank.pid, signal.SIGKILL)
    rank.wait()


def run_ranks(function, size, **more):
    """(exit code, what it wrote) of each rank."""
    outputs = [tempfile.TemporaryFile(mode="w+") for _ in range(size)]
    with ports.held_port() as port:
        shared = environment(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more)
        ranks = [subprocess.Popen([sys.executable, str(HERE / "ranks.py"), function], stdout=output, stderr=subprocess.STDOUT,
                                  env=shared | {"RANK": str(rank)}, start_new_session=True)
                 for rank, output in enumerate(outputs)]
        end = time.monotonic() + DEADLINE
        try:
            while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
                time.sleep(0.02)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    end_hung(rank)
    texts = []
    for output in outputs:
        with output:
            output.seek(0)
            texts.append(output.read())
    return [(rank.returncode, text) for rank, text in zip(ranks, texts)]


def run_python(code, python=sys.executable, **more):
    done = subprocess.run([python, "-c", code], env=environment(**more), capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stderr


class Ranks(unittest.TestCase):
    def check(self, function, size=2, codes=None, **more):
        ended = run_ranks(function, size, **more)
        for rank, (code, text) in enumerate(ended):
            self.assertEqual(code, (codes or [0] * size)[rank], f"rank {rank} of {function}:\n{text[-3000:]}")
            self.assertNotIn("terminate called", text)
        return ended


class Backend(Ranks):
    def test_registration(self):
        self.check("registration")

    def test_awaited_at_the_meeting(self):
        for _, text in self.check("awaited_at_the_meeting"):
            self.assertEqual(text, "")  # no warning of torch's store

    def test_not_there(self):
        self.check("not_there")

    def test_named_by_device(self):
        self.check("named_by_device")

    def test_beside_gloo(self):
        self.check("beside_gloo", 3)

    def test_bad_arguments(self):
        self.check("bad_arguments")

    def test_too_short_a_timeout(self):
        self.check("too_short_a_timeout", 1)

    def test_not_contiguous(self):
        self.check("not_contiguous", 3)

    def test_beyond_gloo(self):
        self.check("beyond_gloo", 3)

    def test_futures(self):
        self.check("futures", 3)

    def test_futures_alone(self):
        self.check("futures_alone")

    def test_coalesced(self):
        self.check("coalesced", 3)

    def test_refused_part(self):
        self.check("refused_part")

    def test_left_part(self):
        self.check("left_part")

    def test_another_order(self):
        self.check("another_order", 3)

    def test_old_world(self):
        self.check("old_world")

    def test_forked_after_import(self):
        self.check("forked_after_import", 1)

    def test_bools(self):
        self.check("bools", 3)

    def test_in_place_or_not(self):
        self.check("in_place_or_not", 3)

    def test_of_inference(self):
        self.check("of_inference")

    def test_forked_with_a_thread_inside(self):
        self.check("forked_with_a_thread_inside", 1)

    def test_forked_and_raises_beside_a_thread_inside(self):
        self.check("forked_and_raises_beside_a_thread_inside", 1)

    def test_forked_and_ends_by_exception(self):
        self.check("forked_and_ends_by_exception", 1)

    def test_lost(self):
        self.check("lost", 3, [0, 0, -9])

    def test_flight_recorder(self):
        self.check("flight_recorder", TORCH_FR_BUFFER_SIZE="100")

    def test_late(self):
        self.check("late")

    def test_late_in_a_new_group(self):
        self.check("late_in_a_new_group")

    def test_different(self):
        self.check("different")

    def test_different_to_the_end(self):
        self.check("different_to_the_end", 3)

    def test_different_beside_an_exception(self):
        self.check("different_beside_an_exception")

    def test_different_and_asked_for(self):
        self.check("different_and_asked_for")

    def test_different_beside_sys_exit(self):
        self.check("ends_well_with_other_roots", 2, [1, 1])

    def test_waits_for_a_while(self):
        self.check("waits_for_a_while")

    def test_shared_elements(self):
        self.check("shared_elements")

    def test_raises_beside_a_daemon(self):
        self.check("raises_beside_a_daemon", 2, [1, 0])

    def test_raises_beside_a_thread(self):
        self.check("raises_beside_a_thread", 2, [1, 0])

    def test_destroys_many_before_the_others(self):
        self.check("destroys_many_before_the_others")

    def test_destroys_one_after_the_other(self):
        self.check("destroys_one_after_the_other")

    def test_begins_when_main_is_over(self):
        for _, text in self.check("begins_when_main_is_over"):
            self.assertIn("worked", text)

    def test_messages_beside_a_daemon(self):
        for _ in range(5):
            self.check("messages_beside_a_daemon")

    def test_ends_beside_a_daemon_in_torch(self):
        self.check("ends_beside_a_daemon_in_torch")

    def test_native_faults_as_python_ends(self):
        """They end the process, as anywhere."""
        for function in ("terminates_natively_as_python_ends", "terminates_natively_after_python"):
            for code, text in run_ranks(function, 1):
                self.assertEqual(code, -signal.SIGABRT, f"{function}:\n{text[-3000:]}")

    def test_lists_of_lists(self):
        self.check("lists_of_lists")

    def test_under_a_mode(self):
        self.check("under_a_mode")

    def test_store_without_compare_set(self):
        self.check("store_without_compare_set", 1)

    def test_forked_with_a_pool(self):
        self.check("forked_with_a_pool", 1)

    def test_raises_beside_a_callback(self):
        self.check("raises_beside_a_callback", 2, [1, 0])

    def test_two_that_call_themselves_rank_1(self):
        self.check("calls_itself_rank_1", 3)

    def test_line_of_python(self):
        self.check("line_of_python", TORCH_DISTRIBUTED_DEBUG="INFO")

    def test_detail(self):
        self.check("registration", TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_many_groups(self):
        self.check("many_groups")

    def test_nothing_left(self):
        self.check("nothing_left")

    def test_workers(self):
        self.check("workers")

    def test_in_a_worker(self):
        self.check("in_a_worker")

    def test_another_backend_in_the_environment(self):
        """Inside always native."""
        self.check("named_by_device", TUTTI_BACKEND="mpi")


class Ends(Ranks):
    """Without destroy_process_group: the program's own code, nothing of ours in its way, and nobody is told of a loss."""

    def ends(self, function, code):
        for _, text in self.check(function, 2, [code, code]):
            self.assertNotIn("was lost", text)

    def test_by_itself(self):
        self.ends("ends_by_itself", 0)

    def test_with_other_roots(self):
        for _, text in self.check("ends_with_other_roots"):
            self.assertIn("the ranks disagree about operation #1", text)

    def test_with_a_thread_inside(self):
        self.check("ends_with_a_thread_inside")

    def test_by_exception(self):
        self.ends("ends_by_exception", 1)

    def test_by_sys_exit(self):
        self.ends("ends_by_sys_exit", 7)

    def test_by_os_exit(self):
        self.check("ends_by_os_exit", 2, [9, 9])


class Launched(unittest.TestCase):
    """Under `tutti run`."""

    def run_tutti(self, code):
        done = subprocess.run([TUTTI, "run", "-n", "2", sys.executable, "-c", code], env=environment(), capture_output=True, text=True,
                              timeout=DEADLINE)
        return done.returncode, done.stdout + done.stderr

    def test_all_reduce(self):
        code, text = self.run_tutti("import torch, torch.distributed as d; d.init_process_group('tutti'); x = torch.ones(1); d.all_reduce(x);"
                                    "assert x[0] == 2; d.destroy_process_group()")
        self.assertEqual(code, 0, text)

    def run_after_a_sum(self, code):
        return self.run_tutti("import os, signal, sys, time, torch, torch.distributed as d; d.init_process_group('tutti'); rank = d.get_rank();"
                              f"x = torch.ones(4); d.all_reduce(x)\n{code}")

    def test_who_failed_first(self):
        code, text = self.run_after_a_sum("if rank == 1: sys.exit(7)\nwhile True: d.all_reduce(x)")
        self.assertEqual(code, 7, text)
        self.assertRegex(text, "ROOT CAUSE: rank 1 .* left the group")

    def test_what_ranks_did(self):
        code, text = self.run_after_a_sum("if rank == 0: d.recv(x, 1)\ntime.sleep(1); os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(code, 137, text)
        self.assertRegex(text, "ROOT CAUSE: rank 1 .* killed by SIGKILL")
        self.assertRegex(text, r"rank 0: .*last completed all_reduce #1\(f32 x 4, sum\) for torch's group 0")

    def test_who_was_late(self):
        code, text = self.run_tutti("import datetime, os, time, torch, torch.distributed as d; rank = int(os.environ['RANK'])\n"
                                    "s = d.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, rank == 0)\n"
                                    "d.init_process_group('tutti', store=s, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=3))\n"
                                    "if rank == 1: time.sleep(6)\nelse: d.all_reduce(torch.ones(1))\nd.destroy_process_group()")
        self.assertNotEqual(code, 0)
        self.assertRegex(text, r"ROOT CAUSE: rank 1 .*exit code 0")
        self.assertIn("had not entered", text)
        self.assertNotIn("goodbye", text)

    def test_a_circle(self):
        code, text = self.run_after_a_sum("d.recv(x, 1 - rank)")
        self.assertNotEqual(code, 0)
        self.assertIn("kDeadlock: recv (rank 0) for torch's group 0: deadlock: rank 0 waits in recv(f32 x 4, from 1, tag 0) for rank 1", text)
        self.assertIn("change the order of the calls, or use batch_isend_irecv or async_op=True", text)  # what Python has

    def test_a_circle_with_a_long_timeout(self):
        """torch gives it as a float of seconds, which is rounded once."""
        code, text = self.run_tutti("import datetime, torch, torch.distributed as d; d.init_process_group('tutti', timeout=datetime.timedelta(hours=24));"
                                    "d.recv(torch.ones(1), 1 - d.get_rank())")
        self.assertNotEqual(code, 0)
        self.assertIn("kDeadlock", text)

    def test_another_rank_than_the_launchers(self):
        code, text = self.run_tutti("import os, torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, 1, True);"
                                    "d.init_process_group('tutti', store=s, rank=1 - int(os.environ['RANK']), world_size=2)")
        self.assertNotEqual(code, 0)
        self.assertRegex(text, "ValueError: tutti: init_process_group was given rank [01], and `tutti run` RANK=[01]: leave it out, or, "
                               "where the program starts its ranks itself, start the program without `tutti run`")


class Imports(unittest.TestCase):
    def test_without_torch(self):
        without = [python for python in ("/usr/bin/python3",)
                   if os.path.exists(python) and run_python("import torch", python, PYTHONPATH="")[0] != 0]
        if not without:
            self.skipTest("no Python here is without torch")
        self.assertEqual(run_python("import tutti", without[0])[0], 0)
        code, text = run_python("import tutti.torch", without[0])
        self.assertNotEqual(code, 0)
        self.assertRegex(text, r"ImportError: tutti\.torch needs PyTorch, which is not installed here: install torch 2\.15")

    def test_another_minor_version(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "torch-2.14.1.dist-info")
            other.mkdir()
            (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n")
            code, text = run_python("import tutti.torch", PYTHONPATH=f"{folder}:{PACKAGES}")
        self.assertNotEqual(code, 0)
        self.assertRegex(text, r"ImportError: tutti\.torch was built for torch 2\.15, and torch 2\.14\.1 is installed")

    def test_the_strangers_package(self):
        """`tutti` on PyPI is not ours, and has the same import name."""
        with tempfile.TemporaryDirectory() as folder:
            stranger = pathlib.Path(folder, "tutti-1.0.dist-info")
            stranger.mkdir()
            (stranger / "METADATA").write_text("Metadata-Version: 2.1\nName: tutti\nVersion: 1.0\n")
            code, text = run_python("import tutti.torch", PYTHONPATH=f"{folder}:{PACKAGES}")
        self.assertNotEqual(code, 0)
        self.assertIn("ImportError: the distribution `tutti` 1.0", text)
        self.assertIn("pip uninstall tutti", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
