"""Runs the examples 08 and 09 as a user does, at a small size: one rank and two, the plot, bad input, interruption and resumption.

    models_test.py TUTTI RESNET TRANSFORMER
"""
import collections
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from training import DEADLINE, ENVIRONMENT, hash_in, rank_of_attempt, run, write_data

TUTTI, RESNET, TRANSFORMER = sys.argv[1:4]
SVG = "{http://www.w3.org/2000/svg}"
CONTEXT = 64


def write_text(file):
    """A text that is easy to learn."""
    file.write_text("".join(f"{number} and {number + 1} make {2 * number + 1}.\n" for number in range(300)))


def pair_entropy(text):
    """Of a character given the one before it, in nats."""
    pairs, firsts = collections.Counter(zip(text, text[1:])), collections.Counter(text[:-1])
    return sum(count * math.log(firsts[pair[0]] / count) for pair, count in pairs.items()) / (len(text) - 1)


class Model:
    """The tests of both; STEPS is what the command takes."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        cls.prepare()
        cls.plot = cls.folder / "two.svg"
        cls.whole = run(*cls.command(2, "--plot", str(cls.plot)))

    @classmethod
    def command(cls, ranks, *more):
        return TUTTI, "run", "-n", str(ranks), *cls.words(), *more

    def hashes(self, out):
        """Of the parameters and of the buffers, which are the same on all ranks."""
        found = re.findall(r"(?:parameter|buffer) hash [0-9a-f]{16} on every rank", out)
        self.assertIsNotNone(hash_in(out), out)
        self.assertEqual(len(found), self.HASHES, out)
        return found

    def check_plot(self, file):
        root = xml.etree.ElementTree.parse(file).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        training, held_out = [line.get("points").split() for line in root.iter(SVG + "polyline")]
        self.assertEqual(len(training), self.STEPS)
        self.assertEqual(len(held_out), self.STEPS // math.ceil(self.STEPS / 20) + (self.STEPS % math.ceil(self.STEPS / 20) > 0))
        words = " ".join(root.itertext())
        for part in ("step", "loss in nats per", "training", "held out"):
            self.assertIn(part, words)
        self.assertFalse(list(self.folder.glob("*.part")))

    def test_two_ranks(self):
        code, out, err = self.whole
        self.assertEqual(code, 0, err)
        self.hashes(out)
        self.check_result(out)
        self.check_plot(self.plot)

    def test_one_rank(self):
        plot = self.folder / "one.svg"
        code, out, err = run(*self.words(), "--plot", str(plot))
        self.assertEqual(code, 0, err)
        self.hashes(out)
        self.check_result(out)
        self.check_plot(plot)

    def test_a_killed_and_interrupted_run_ends_with_the_same_bits(self):
        file, plot = self.folder / "run.pt", self.folder / "again.svg"
        words = (*self.words(), "--checkpoint", str(file), "--checkpoint-every", str(self.STEPS // 3), "--plot", str(plot))
        command = (TUTTI, "run", "-n", "2", "--max-restarts", "1", "--failure-grace", "1s", *words)
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            pid = rank_of_attempt(job, 0, 1, file, DEADLINE)
            self.assertIsNotNone(pid, "the first attempt has not saved")
            os.kill(pid, signal.SIGKILL)
            self.assertIsNotNone(rank_of_attempt(job, 1, 0, file, DEADLINE), "the second attempt has not saved")
            job.send_signal(signal.SIGTERM)
            out, err = job.communicate(timeout=DEADLINE)
        self.assertIn("; restart 1 of 1", err)
        self.assertRegex(out, r"going on after step \d+")
        resume = re.search(r"saved after step \d+; go on with: tutti (run -n 2 .*--resume)", out)
        self.assertTrue(resume, out + err)
        code, out, err = run(TUTTI, *resume.group(1).split())
        self.assertEqual(code, 0, err)
        self.assertEqual(self.hashes(out), self.hashes(self.whole[1]))
        self.assertEqual(plot.read_bytes(), self.plot.read_bytes())

    def test_a_plot_that_cannot_be_written_is_said_at_the_start(self):
        for plot in (self.folder / "nowhere/loss.svg", self.folder):
            code, out, err = run(*self.command(2, "--plot", str(plot)))
            self.assertEqual(code, 1, out + err)
            self.assertIn(f"{plot}: cannot be written: ", err)
            self.assertNotIn("hash", out)
        self.assertFalse(pathlib.Path(f"{self.folder}.part").exists())

    def test_arguments(self):
        for arguments in (["--batch", "0"], ["--lr"], ["--fast", "1"], ["--resume"], ["--checkpoint-every", "5"], ["--plot"]):
            code, _, err = run(self.words()[0], *arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn("--help", err)
        code, out, _ = run(self.words()[0], "--help")
        self.assertEqual(code, 0)
        for option in ("--batch", "--lr", "--seed", "--limit", "--plot", "--checkpoint", "--checkpoint-every", "--resume"):
            self.assertIn(f"\n  {option} ", out)

    def test_checkpoint_missing_or_foreign(self):
        file = self.folder / "foreign.pt"
        for content, says in ((None, "no such checkpoint"), (b"no archive", "no checkpoint of this program")):
            if content:
                file.write_bytes(content)
            code, _, err = run(*self.words(), "--checkpoint", str(file), "--resume")
            self.assertEqual(code, 1)
            self.assertIn(says, err)


class ResNet(Model, unittest.TestCase):
    STEPS, HASHES = 12, 2

    @classmethod
    def prepare(cls):
        write_data(cls.folder, train=100, test=50)

    @classmethod
    def words(cls):
        return RESNET, "--data", str(cls.folder), "--epochs", "3", "--limit", "48", "--batch", "12"

    def check_result(self, out):
        self.assertRegex(out, r"test accuracy [\d.]+ %, loss [\d.]+\n")

    def test_fewer_images_than_a_batch(self):
        code, out, err = run(*self.words(), "--limit", "11")
        self.assertEqual(code, 1, out + err)
        self.assertIn("a rank has 11 training images, fewer than its 12 of a batch", err)

    def test_data_missing(self):
        code, out, err = run(RESNET, "--data", str(self.folder / "nowhere"))
        self.assertEqual(code, 1, out + err)
        for part in ("train-images-idx3-ubyte.gz", "No such file", "dataset-fashion-mnist", "--data"):
            self.assertIn(part, err)


class Transformer(Model, unittest.TestCase):
    STEPS, HASHES = 30, 1

    @classmethod
    def prepare(cls):
        cls.text = cls.folder / "text.txt"
        write_text(cls.text)

    @classmethod
    def words(cls):
        return TRANSFORMER, "--text", str(cls.text), "--steps", "30", "--batch", "16"

    def check_result(self, out):
        loss, entropy = map(float, re.search(r"held-out loss ([\d.]+) nats per character, entropy of its character pairs ([\d.]+)", out).groups())
        text = self.text.read_text()
        self.assertAlmostEqual(entropy, pair_entropy(text[len(text) - len(text) // 10:]), delta=0.00051)
        self.assertLess(loss, 0.8 * math.log(len(set(text))), "it has not begun to learn")

    def refused(self, *parts, more=()):
        code, out, err = run(TRANSFORMER, "--text", str(self.folder / "other"), *more)
        self.assertEqual(code, 1, out + err)
        for part in (str(self.folder / "other"), "--text", *parts):
            self.assertIn(part, err)

    def test_text_missing(self):
        self.refused("No such file")

    def test_text_shorter_than_a_sample(self):
        other = self.folder / "other"
        self.addCleanup(other.unlink)
        other.write_text("x" * CONTEXT)
        self.refused(f"holds {CONTEXT} characters", f"take {2 * (CONTEXT + 1)}")
        other.write_text("x" * 1000)
        self.refused("holds 20 characters", more=("--limit", "20"))

    def test_folder_without_a_text(self):
        other = self.folder / "other"
        other.mkdir()
        self.addCleanup(other.rmdir)
        self.refused("holds 0 characters")

    def test_folder(self):
        """Files come in the order of their names; links and folders are left out."""
        folder = self.folder / "texts"
        folder.mkdir()
        text = self.text.read_text()
        for name, part in (("b", text[3000:]), ("a", text[:3000])):
            (folder / name).write_text(part)
        (folder / "c").symlink_to(self.text)
        (folder / "d").mkdir()
        hashes = []
        for path in (self.text, folder):
            code, out, err = run(*self.command(2, "--text", str(path), "--steps", "3"))
            self.assertEqual(code, 0, err)
            hashes.append(self.hashes(out))
        self.assertEqual(*hashes)

    def test_checkpoint_of_another_text(self):
        file, other = self.folder / "text.pt", self.folder / "another.txt"
        code, _, err = run(*self.words(), "--steps", "2", "--checkpoint", str(file), "--checkpoint-every", "2")
        self.assertEqual(code, 0, err)
        text = self.text.read_text()
        for content, says in ((text + "1 and 2 make 3.\n", "dataset_count"), (text[:-1] + "!", "a model with other shapes")):
            other.write_text(content)
            code, _, err = run(*self.words(), "--text", str(other), "--checkpoint", str(file), "--resume")
            self.assertEqual(code, 1, err)
            self.assertIn(says, err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
