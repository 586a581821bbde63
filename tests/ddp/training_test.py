"""Runs the training examples as a user does: output, bad data, interruption and resumption.

    training_test.py TUTTI DDP_LINEAR FASHION_MNIST
"""
import gzip
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from training import DEADLINE, ENVIRONMENT, hash_in, idx, rank_of_attempt, run, write_data

TUTTI, LINEAR, FASHION = sys.argv[1:4]


class Linear(unittest.TestCase):
    def test_every_rank_prints_its_loss(self):
        for ranks in (1, 2, 3):
            code, out, err = run(TUTTI, "run", "-n", str(ranks), LINEAR)
            self.assertEqual(code, 0, err)
            for rank in range(ranks):
                self.assertRegex(out, rf"Rank {rank}, Loss: \d+\.\d+")

    def test_without_a_launcher_it_is_a_world_of_one(self):
        code, out, err = run(LINEAR)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^Rank 0, Loss: \d+\.\d+\n$")


class BadInput(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        write_data(self.folder, train=20, test=20)
        self.images = self.folder / "train-images-idx3-ubyte.gz"
        self.labels = self.folder / "train-labels-idx1-ubyte.gz"

    def refused(self, *parts):
        code, out, err = run(FASHION, "--data", str(self.folder), "--epochs", "1")
        self.assertEqual(code, 1, out + err)
        for part in (*parts, "dataset-fashion-mnist", "--data"):
            self.assertIn(part, err)

    def test_missing(self):
        self.images.unlink()
        self.refused(self.images.name, "No such file")

    def test_gzip_cut_short(self):
        whole = self.images.read_bytes()
        self.images.write_bytes(whole[:len(whole) // 2])
        self.refused(self.images.name, "cut short")

    def test_content_cut_short(self):
        self.images.write_bytes(idx(bytes(19 * 784), 20, 28, 28))
        self.refused(self.images.name, "cut short", "15696 expected")

    def test_not_idx(self):
        self.images.write_bytes(gzip.compress(b"this is a text of some length"))
        self.refused(self.images.name, "no IDX file", "00000803")

    def test_not_even_gzip(self):
        self.images.write_bytes(b"<html>404</html>")
        self.refused(self.images.name, "no IDX file")

    def test_labels_of_another_set(self):
        self.labels.write_bytes(idx(bytes(19), 19))
        self.refused(self.labels.name, "19 labels for 20 images")

    def test_senseless_header(self):
        self.images.write_bytes(idx(b"", 1 << 31, 1 << 31, 28))
        self.refused(self.images.name, "senseless")

    def test_every_rank_fails_together(self):
        self.images.unlink()
        code, out, err = run(TUTTI, "run", "-n", "2", FASHION, "--data", str(self.folder))
        self.assertEqual(code, 1, out + err)
        self.assertIn("dataset-fashion-mnist", out + err)

    def test_arguments(self):
        for arguments in (["--epochs", "0"], ["--epochs", "1.5"], ["--lr"], ["--fast"], ["--fast", "1"], ["--resume"], ["--checkpoint-every", "5"],
                          ["--compress", "bf8"]):
            code, _, err = run(FASHION, *arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn("--help", err)

    def test_checkpoint_missing_or_foreign(self):
        file = self.folder / "run.pt"
        arguments = (FASHION, "--data", str(self.folder), "--checkpoint", str(file), "--resume")
        code, _, err = run(*arguments)
        self.assertEqual(code, 1)
        self.assertIn("no such checkpoint", err)
        file.write_bytes(b"no archive")
        code, _, err = run(*arguments)
        self.assertEqual(code, 1)
        self.assertIn("no checkpoint of this program", err)


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.folder = pathlib.Path(cls.holder.name)
        write_data(cls.folder)

    def command(self, ranks, *more):
        return (TUTTI, "run", "-n", str(ranks), FASHION, "--data", str(self.folder), "--epochs", "8", *more)

    def test_it_learns_and_reports(self):
        code, out, err = run(*self.command(2))
        self.assertEqual(code, 0, err)
        self.assertGreater(float(re.search(r"test accuracy ([\d.]+) %", out).group(1)), 95)
        self.assertRegex(out, r"rank\s+samples/s\s+communicating\s+last to arrive")
        for rank in range(2):
            self.assertRegex(out, rf"\b{rank}\s+\d+\s+[\d.]+ %\s+[\d.]+ %\n")
        self.assertIsNotNone(hash_in(out), out)
        self.assertNotRegex(out + err, r"[\x00-\x09\x0b-\x1f]", "control characters without a terminal")

    def test_it_learns_with_compressed_gradients(self):
        hashes = set()
        for more in (), ("--compress", "bf16"), ("--compress", "f16"):
            code, out, err = run(*self.command(2, *more))
            self.assertEqual(code, 0, err)
            self.assertGreater(float(re.search(r"test accuracy ([\d.]+) %", out).group(1)), 95)
            hashes.add(hash_in(out))
        self.assertEqual(len(hashes), 3, "each rounds otherwise")

    def interrupt(self, command, with_signal):
        """Runs on a terminal until the progress bar shows a step, sends the signal, returns what was printed."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as job:
            os.close(theirs)
            text, signalled, end = b"", False, time.monotonic() + DEADLINE
            try:
                while time.monotonic() < end:
                    if not select.select([ours], [], [], 1)[0]:
                        continue
                    try:
                        part = os.read(ours, 65536)
                    except OSError:  # the last holder of the other side has gone
                        break
                    if not part:
                        break
                    text += part
                    if not signalled and b" step " in text:
                        job.send_signal(with_signal)
                        signalled = True
                job.wait(timeout=DEADLINE)
            finally:
                job.kill()
                os.close(ours)
        self.assertTrue(signalled, text.decode())
        return text.decode().replace("\r\n", "\n")

    def test_an_interrupted_run_goes_on_to_the_same_bits(self):
        file = self.folder / "run.pt"
        # Long enough that the signal arrives before the end on a loaded machine as well.
        more = ("--checkpoint", str(file), "--epochs", "12")
        code, out, err = run(*self.command(2, *more))
        self.assertEqual(code, 0, err)
        uninterrupted = hash_in(out)
        self.assertIsNotNone(uninterrupted, out)
        for with_signal in (signal.SIGTERM, signal.SIGINT):
            text = self.interrupt(self.command(2, *more), with_signal)
            self.assertRegex(text, r"\[#*\.*\] epoch \d+/12 step \d+/\d+  loss [\d.]+  \d+ samples/s  communicating [\d.]+ %")
            resume = re.search(r"go on with: tutti (run -n 2 .*--resume)", text)
            self.assertTrue(resume, text)
            code, out, err = run(TUTTI, *resume.group(1).split())
            self.assertEqual(code, 0, err)
            self.assertEqual(hash_in(out), uninterrupted)
        code, out, err = run(*self.command(2, *more, "--resume", "--batch", "64"))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "was saved with --batch [0-9]+; go on with that, not with 64")
        code, out, err = run(*self.command(3, *more, "--resume"))
        self.assertEqual(code, 1)
        self.assertIn("rank_count 2", out + err)

    def test_a_killed_run_is_started_again_and_ends_with_the_same_bits(self):
        file = self.folder / "restarted.pt"
        code, out, err = run(*self.command(2, "--epochs", "12"))
        self.assertEqual(code, 0, err)
        uninterrupted = hash_in(out)
        self.assertIsNotNone(uninterrupted, out)
        command = (TUTTI, "run", "-n", "2", "--max-restarts", "3", "--failure-grace", "1s", FASHION, "--data", str(self.folder),
                   "--epochs", "12", "--checkpoint", str(file), "--checkpoint-every", "5")
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            for attempt in range(2):
                pid = rank_of_attempt(job, attempt, attempt, file, DEADLINE)
                self.assertIsNotNone(pid, f"attempt {attempt} has not saved")
                os.kill(pid, signal.SIGKILL)
            out, err = job.communicate(timeout=DEADLINE)
        self.assertEqual(job.returncode, 0, err)
        self.assertIn("; restart 2 of 3", err)
        self.assertRegex(out, r"going on after step \d+")
        self.assertEqual(hash_in(out), uninterrupted)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
