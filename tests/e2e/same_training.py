#!/usr/bin/env python3
"""The examples that train, under every launcher there is: the same losses and, to the last bit, the same parameters.

    same_training.py --tutti TUTTI --programs DDP_LINEAR FASHION_MNIST

The numbers are those of this CPU: what ranks started by hand print is what all others must.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile

import foreign
import slurm
from examples import by_hand, clean_environment

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
from training import write_data  # noqa: E402

RANKS = 2
STEADY = re.compile(r"Rank \d+, Loss|test accuracy|parameter hash \w+ on every rank$")  # not the speeds


def steady(outputs):
    return [[line for line in lines if STEADY.match(line)] for lines in outputs]


def of_tags(form):
    """Runs a command whose launcher puts the rank before each line."""
    def outputs(command, environment):
        out, _ = foreign.run(command, environment)
        return foreign.by_rank(out, form, RANKS)
    return outputs


def of_log_files(command, environment):
    """Runs a command of torchrun, which keeps what each rank prints."""
    with tempfile.TemporaryDirectory() as folder:
        split = command.index("--no-python")
        foreign.run([*command[:split], "--redirects", "1", "--log-dir", folder, *command[split:]], environment)
        return [foreign.read_log(folder, rank).splitlines() for rank in range(RANKS)]


def launchers(tutti, environment):
    """Name -> (words before the program, how to read what its ranks print, environment)."""
    root = dict(environment, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    count = str(RANKS)
    yield "tutti run", [tutti, "run", "-n", count], of_tags(foreign.TUTTI), environment
    if shutil.which("mpirun.openmpi"):
        yield "mpirun.openmpi", ["mpirun.openmpi", "--oversubscribe", "--tag-output", "-n", count], of_tags(foreign.OPEN_MPI), root
    if shutil.which("mpiexec.mpich"):
        yield "mpiexec.mpich", ["mpiexec.mpich", "-prepend-rank", "-n", count], of_tags(foreign.MPICH), environment
    try:
        folder, of_python = foreign.python_torch()
    except foreign.Skipped as why:
        print(f"left out: torchrun and torch.distributed.launch: {why}")
    else:
        of_python["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
        words = [f"--nproc-per-node={count}", "--no-python"]
        yield "torchrun", [f"{folder}/bin/torchrun", *words], of_log_files, of_python
        launch = [f"{folder}/bin/python3", "-m", "torch.distributed.launch", "--use-env"]
        yield "torch.distributed.launch", [*launch, *words], of_log_files, of_python
    with contextlib.ExitStack() as daemons:
        try:
            of_slurm = daemons.enter_context(slurm.start())
        except slurm.Unavailable as why:
            print(f"left out: srun: {why}")
            return
        of_slurm = dict(environment, **{name: of_slurm[name] for name in ("PATH", "SLURM_CONF")})
        yield "srun", ["srun", "--mpi=none", *foreign.THIS_NODE, f"-n{count}", "-l"], of_tags(foreign.SRUN), of_slurm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--programs", nargs="+", required=True)
    options = parser.parse_args()
    slurm.guard()
    os.environ["OMP_NUM_THREADS"] = "1"  # convolutions add in an order that threads change
    with tempfile.TemporaryDirectory() as data:
        write_data(pathlib.Path(data))
        flags = {"fashion_mnist": ["--data", data, "--epochs", "2"]}
        commands = [[program, *flags.get(os.path.basename(program), [])] for program in options.programs]
        wanted = [steady(by_hand(command[0], command[1:], RANKS)) for command in commands]
        for command, lines in zip(commands, wanted):
            if not all(lines[:1]):
                sys.exit(f"same_training: {command} by hand printed nothing to compare")
        for name, words, outputs, environment in launchers(options.tutti, clean_environment()):
            for command, lines in zip(commands, wanted):
                found = steady(outputs([*words, *command], environment))
                foreign.check(f"{name}: {os.path.basename(command[0])}", found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
