"""PyTorch's own DistributedTest over the backend "tutti".

    distributed_suite.py [--world-size N] [--gpu-tests] [--spawn] [--if-full] [--backend B] [--json FILE] [PATTERN ...]

PATTERN: parts of names of tests; all without. A test that fails and is not known to (known_failures.py) fails the run, and so does one
that is known to and passes. --gpu-tests: also those written for GPUs, on the CPU (cuda_is_cpu.py). Ranks are forked; --spawn starts an
interpreter for each, as PyTorch does it, which takes ten times as long. --if-full: skipped (77) unless TUTTI_TEST_FULL is set.

The gates of the suite that name other backends are opened, and nothing else of it is changed.
"""
import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import unittest

SUITE = "torch.testing._internal.distributed.distributed_test"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--gpu-tests", action="store_true")
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--if-full", action="store_true")
    parser.add_argument("--at-least", type=int, default=1, help="tests that must pass")
    parser.add_argument("--json")
    parser.add_argument("patterns", nargs="*")
    return parser.parse_args()


def set_environment(options):
    """Which is what the suite reads, in spawned ranks too."""
    os.environ.update(BACKEND=options.backend, WORLD_SIZE=str(options.world_size), OMP_NUM_THREADS="1",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="90", SUITE_GPU_TESTS="1" if options.gpu_tests else "")


class LikeGloo(str):
    """The name of a backend to which tests for gloo, MPI and NCCL apply."""
    __hash__ = lambda self: hash("gloo")  # noqa: E731  so that it is found in a set of names

    def __eq__(self, other):
        return str.__eq__(self, other) or other == str("gloo")

    def __ne__(self, other):
        return other not in ("gloo", "mpi", "nccl" if os.environ["SUITE_GPU_TESTS"] else "mpi") and str.__ne__(self, other)


def opened(source, backend):
    """The source of the suite with its gates open."""
    changes = [
        (r'^BACKEND = os.environ\["BACKEND"\]', 'BACKEND = LIKE_GLOO(os.environ["BACKEND"])'),
        (r"(SUPPORTED_BACKENDS = \[)", rf'\1"{backend}", '),
        (r'backend="nccl"', f'backend="{backend}"'),
        (r"def sync\(cls, wait_for=None, timeout=10\)", "def sync(cls, wait_for=None, timeout=60)"),  # a busy machine
    ]
    for pattern, replacement in changes:
        source, count = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        if count == 0:
            raise RuntimeError(f"this version of the suite has no {pattern!r}: its gates have changed")
    return source


def load():
    """The suite as a module, as spawned ranks import it, too."""
    from torch import distributed
    from torch.testing._internal import common_distributed as common
    if not distributed.is_backend_available(os.environ["BACKEND"]):
        import tutti.torch  # noqa: F401  torch before 2.15 does not look for it
    common.logger.setLevel("WARNING")  # a line for each rank that is started
    sys.modules["torchvision"] = None  # the suite trains its ResNet-50 where it is there, for minutes
    backend = os.environ["BACKEND"]
    for names in common.DistTestCases.backend_feature.values():
        names.add(backend)
    if int(os.environ["WORLD_SIZE"]) > 2:  # it wants 8 ranks for groups of two; 3 are enough
        common.skip_if_small_worldsize = lambda test: test
    if os.environ["SUITE_GPU_TESTS"]:
        import cuda_is_cpu
        cuda_is_cpu.install(common)
    spec = importlib.util.find_spec(SUITE)
    with open(spec.origin) as file:
        source = opened(file.read(), backend)
    module = importlib.util.module_from_spec(spec)
    module.LIKE_GLOO = LikeGloo
    sys.modules[SUITE] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    import torch.testing._internal.distributed as parent
    parent.distributed_test = module
    return module


def make_case(suite, spawn):
    import torch

    class DistributedTest(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            if spawn:
                self._spawn_processes()
            else:
                self._start_processes(torch.multiprocessing.get_context("fork").Process)

    # Under this name spawned ranks find it: the module is run again there.
    DistributedTest.__module__ = "__main__"
    DistributedTest.__qualname__ = "DistributedTest"
    return DistributedTest


class Results(unittest.TestResult):
    """A line for each test, and who passed, failed and was skipped for which reason."""

    def __init__(self, total):
        super().__init__()
        self.total, self.passed, self.texts, self.reasons = total, [], {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def tell(self, test, outcome):
        name = test.id().split(".")[-1]
        print(f"{self.testsRun:3} of {self.total}  {time.monotonic() - self.began:6.1f} s  {outcome:8} {name}", flush=True)
        return name

    def addSuccess(self, test):
        self.passed.append(self.tell(test, "passed"))

    def addFailure(self, test, error):
        self.texts[self.tell(test, "FAILED")] = self._exc_info_to_string(error, test)

    addError = addFailure

    def addSkip(self, test, reason):
        self.reasons[self.tell(test, "skipped")] = reason


def main():
    options = parse()
    if options.if_full and "TUTTI_TEST_FULL" not in os.environ:
        print("only with TUTTI_TEST_FULL=1")
        return 77
    set_environment(options)
    import known_failures
    import torch
    case = make_case(load(), options.spawn)
    globals()["DistributedTest"] = case
    names = [name for name in unittest.TestLoader().getTestCaseNames(case)
             if not options.patterns or any(pattern in name for pattern in options.patterns)]
    results = Results(len(names))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for name in names:
            case(name).run(results)
    known = known_failures.of(options, torch.__version__)
    unknown = {name: text for name, text in results.texts.items() if name not in known}
    mended = [name for name in results.passed if name in known]
    for name, text in unknown.items():
        print(f"\n{name}\n{text[-4000:]}")
    for name in mended:
        print(f"{name} passes: take it out of known_failures.py")
    print(f"{options.backend}, {options.world_size} ranks: {len(results.passed)} passed, {len(unknown)} failed, "
          f"{len(results.texts) - len(unknown)} failed as known, {len(results.reasons)} skipped")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"passed": results.passed, "failed": results.texts, "skipped": results.reasons}, file, indent=1)
    if len(results.passed) < options.at_least:
        print(f"at least {options.at_least} must pass")
        return 1
    return 1 if unknown or mended else 0


if __name__ == "__main__":
    sys.exit(main())
