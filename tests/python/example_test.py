"""examples/11_pytorch, trained a little in all its ways.

    example_test.py TUTTI [unittest's arguments]

TUTTI: the command. The package tutti is in PYTHONPATH. Run by the Python that has torch.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "11_pytorch" / "train.py"
TUTTI = sys.argv[1]
HOSTS = [sys.executable, str(ROOT / "tools" / "hosts.py")]
NOT_PERMITTED = 77
DEADLINE = 300
FULL = bool(os.environ.get("TUTTI_TEST_FULL"))
RESULT = re.compile(r"accuracy ([\d.]+)%  parameters (\w+) on all ranks")


# As rank N of a world by hand that becomes torchrun on the N-th host.
TORCHRUN = ("import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'torch.distributed.run', '--nnodes', os.environ['WORLD_SIZE'], "
            "'--node-rank', os.environ['RANK'], '--nproc-per-node', '2', '--master-addr', os.environ['MASTER_ADDR'], "
            "'--master-port', os.environ['MASTER_PORT'], *sys.argv[1:]])")


def train(launcher, *words, start=()):
    done = subprocess.run([*launcher, "--", sys.executable, *start, str(TRAIN), *words], capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout + done.stderr


class Example(unittest.TestCase):
    def result(self, launcher, *words, **how):
        code, output = train(launcher, *words, **how)
        if code == NOT_PERMITTED:
            self.skipTest(output)
        self.assertEqual(code, 0, output)
        found = RESULT.search(output)
        self.assertTrue(found, output)
        return float(found[1]), found[2]

    def test_it_learns_the_same_on_every_layout_of_hosts(self):
        words = ["--limit", "3000"]
        results = {self.result([TUTTI, "run", "-n", "4"], *words),
                   self.result([*HOSTS, "2", "--ranks", "1"], *words, start=["-c", TORCHRUN])}
        if FULL:
            results |= {self.result([*HOSTS, *layout], *words) for layout in (["2", "--ranks", "2"], ["4", "--ranks", "1"])}
        self.assertEqual(len(results), 1, results)
        self.assertGreater(results.pop()[0], 60)

    def test_the_other_models_and_fully_sharded(self):
        ways = [["--model", "resnet"], ["--model", "transformer", "--sharded"]]
        for words in ways + FULL * [["--model", "resnet", "--sharded"], ["--model", "transformer"], ["--sharded"]]:
            with self.subTest(words=words):
                self.result([TUTTI, "run", "-n", "2"], "--limit", "64", "--batch", "16", *words)

    def test_mistakes_are_named(self):
        for words, error in ((["--batch", "3"], "--batch 3 is no multiple of the 2 ranks"),
                             (["--data", "/nowhere"], "/nowhere/train-images-idx3-ubyte.gz is not there: apt-get install")):
            code, output = train([TUTTI, "run", "-n", "2"], *words)
            self.assertEqual(code, 1, output)
            self.assertIn(error, output)
        alone = subprocess.run([sys.executable, TRAIN], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(alone.returncode, 2)
        self.assertIn("tutti run -n 2 -- python3 train.py", alone.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
