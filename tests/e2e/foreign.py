#!/usr/bin/env python3
"""The examples under launchers that are not ours, started for real, and what each prints compared with what it must.

    foreign.py slurm --tutti TUTTI --programs PROGRAM...   srun, launchers inside it, tutti run in an allocation
    foreign.py torchrun --programs PROGRAM...              torchrun of Python's torch (tools/python_torch.sh)
    foreign.py launch --programs PROGRAM...                python -m torch.distributed.launch of the same
    foreign.py ddp --tutti TUTTI                           a Python program under tutti run
"""
import argparse
import collections
import contextlib
import ctypes
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

import slurm
from examples import EXAMPLES, FLAGS, LIMIT, MPI_FLAGS, SKIPPED, clean_environment

HERE = os.path.dirname(os.path.abspath(__file__))
THIS_NODE = ["-N1", "-w", slurm.NODES[0]]


class Skipped(Exception):
    pass


def run(command, environment, code=0, limit=LIMIT):
    """What it prints on stdout and stderr."""
    try:
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=limit, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        sys.exit(f"foreign: {command} did not end within {limit} s\n{error.stdout or b''}{error.stderr or b''}")
    if done.returncode != code:
        sys.exit(f"foreign: {command} exited with {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def read_terminal(terminal):
    """Until nobody has its other end open, or the time is over."""
    text, deadline = b"", time.monotonic() + LIMIT
    with contextlib.suppress(OSError):  # the end
        while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            text += os.read(terminal, 65536)
    return text.decode().replace("\r", "")


def on_terminal(command, environment):
    """What it prints, where it has a terminal."""
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdin=other_end, stdout=other_end, stderr=other_end, start_new_session=True)
    os.close(other_end)
    try:
        text = read_terminal(terminal)
        code = process.wait(timeout=LIMIT)
    finally:
        os.close(terminal)
        if process.poll() is None:
            process.kill()
            process.wait()
    if code != 0:
        sys.exit(f"foreign: {command} exited with {code}\n{text}")
    return text


def by_rank(text, form, ranks):
    """The lines of each rank, by the number that `form` finds before a line."""
    outputs = [[] for _ in range(ranks)]
    for line in text.splitlines():
        if match := re.match(form, line):
            outputs[int(match.group(1))].append(match.group(2))
    return outputs


def wait_for_file(path):
    deadline = time.monotonic() + LIMIT
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"foreign: {path} did not come within {LIMIT} s")
        time.sleep(0.02)
    return path


SRUN, TUTTI, OPEN_MPI, MPICH = r"^ *(\d+): (.*)$", r"^\[(\d+)\] (.*)$", r"^\[\d+,(\d+)\]<stdout>:(.*)$", r"^\[(\d+)\] (.*)$"


def check(what, outputs, wanted):
    if outputs != wanted:
        sys.exit(f"foreign: {what} printed\n{outputs}\ninstead of\n{wanted}")
    print(f"same prints: {what}")


def expected(name):
    ranks, prints = EXAMPLES[name]
    return ranks, [prints(rank) for rank in range(ranks)]


def check_says(what, text, *parts):
    for part in parts:
        if part not in text:
            sys.exit(f"foreign: {what}: no \"{part}\" in\n{text}")
    print(f"says so: {what}")


# ---- Slurm

def has_library(name):
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL(name))
    return False


def under_srun(programs, mpis, environment):
    """Also the backend mpi: which of them srun starts, its --mpi says."""
    starts_mpi = {"none": [], "pmi2": ["mpich"], "pmix": ["openmpi"]}
    if not has_library("libpmix.so"):
        print("left out: srun --mpi=pmix, which needs libpmix.so of libpmix-dev")
        del starts_mpi["pmix"]
    for way, starts in starts_mpi.items():
        of_mpi = MPI_FLAGS if set(starts) & set(mpis) else {}
        for name, program in programs.items():
            ranks, wanted = expected(name)
            plain = [] if way == "pmix" else FLAGS.get(name, [[]])
            for flags in plain + of_mpi.get(name, []):
                out, _ = run(["srun", f"--mpi={way}", *THIS_NODE, f"-n{ranks}", "-l", program, *flags], environment)
                check(f"srun --mpi={way}: {name} {' '.join(flags)}", by_rank(out, SRUN, ranks), wanted)


def two_steps_of_a_job(programs, environment):
    """Side by side, their ranks in turn: by the job alone, or by a port, they would meet."""
    ranks, wanted = expected("one_to_many")
    with tempfile.TemporaryDirectory() as folder:
        step = f"srun --exact -n{ranks} -l -o {folder}/$step sh -c 'sleep 0.$SLURM_LOCALID; exec \"$0\"' {programs['one_to_many']} & "
        run(["salloc", "--quiet", *THIS_NODE, f"-n{2 * ranks}", "sh", "-c", f"step=a; {step} a=$!; step=b; {step} wait $a && wait $!"], environment)
        for name in "ab":
            with open(os.path.join(folder, name)) as file:
                check(f"two steps of one job: {name}", by_rank(file.read(), SRUN, ranks), wanted)


def over_two_nodes(programs, environment):
    ranks, wanted = expected("all_reduce")
    command = ["srun", "--mpi=none", "-N2", f"-n{ranks}", "-l", programs["all_reduce"]]
    _, err = run(command, environment, code=1)
    check_says("a step over two nodes", err, "They are on several hosts", slurm.NODES[0], slurm.NODES[1], "set MASTER_ADDR")
    with slurm.held_ports(1) as [port]:
        out, _ = run(command, dict(environment, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)))
    check("srun over two nodes with MASTER_ADDR and MASTER_PORT", by_rank(out, SRUN, ranks), wanted)


def who(launcher, ranks, tutti, environment):
    """What `tutti env` finds in each task of srun."""
    command = ["srun", *THIS_NODE, f"-n{ranks}", "-l", "--mpi=pmi2", tutti, "env", "--json"]
    out, _ = run(command, environment)
    found = [json.loads("\n".join(lines))["identity"] for lines in by_rank(out, SRUN, ranks)]
    check(f"srun -n{ranks} tutti env", [(each["launcher"], each["rank"]) for each in found], [(launcher, rank) for rank in range(ranks)])


def around_other_launchers(tutti, programs, environment):
    """srun is the outer shell: the inner launcher wins."""
    ranks, wanted = expected("all_reduce")
    program = programs["all_reduce"]
    srun = ["srun", *THIS_NODE, "-n1"]
    out, _ = run([*srun, "--mpi=pmi2", tutti, "run", "-n", str(ranks), program], environment)
    check("srun tutti run", by_rank(out, TUTTI, ranks), wanted)
    if shutil.which("mpirun.openmpi"):
        root = dict(environment, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        mpirun = ["mpirun.openmpi", "--oversubscribe", "--tag-output", "-n", str(ranks), program]
        check("srun --pty mpirun.openmpi", by_rank(on_terminal([*srun, "--pty", *mpirun], root), OPEN_MPI, ranks), wanted)
    if shutil.which("mpiexec.mpich"):
        mpiexec = ["mpiexec.mpich", "-prepend-rank", "-n", str(ranks), program]
        out, _ = run([*srun, "--mpi=pmi2", "--overlap", *mpiexec], environment)
        check("srun --mpi=pmi2 mpiexec.mpich", by_rank(out, MPICH, ranks), wanted)
    who("no launcher", 1, tutti, environment)
    who("Slurm", 2, tutti, environment)


def in_an_allocation(tutti, programs, environment):
    """tutti run takes the number of ranks from it."""
    ranks, wanted = expected("all_reduce")
    program = programs["all_reduce"]
    salloc = ["salloc", "--quiet", *THIS_NODE]
    source = f"tutti run: {ranks} ranks: SLURM_NTASKS={ranks} of Slurm's job "
    for words in [f"-n{ranks}"], [f"--ntasks-per-node={ranks}"]:
        out, err = run([*salloc, *words, tutti, "run", program], environment)
        check(f"salloc {words[0]} tutti run", by_rank(out, TUTTI, ranks), wanted)
        check_says(f"salloc {words[0]} tutti run", err, source)
    out, err = run([*salloc, f"-n{ranks}", tutti, "run", "--dry-run", program], environment)
    check_says("tutti run --dry-run", out + err, source, f"rank {ranks - 1} -> host")
    out, _ = run([*salloc, "-n2", tutti, "run", "-n", str(ranks), program], environment)
    check("salloc -n2 tutti run -n 3", by_rank(out, TUTTI, ranks), wanted)
    with tempfile.TemporaryDirectory() as folder:
        script = f"{tutti} run {program}; mv {folder}/out {folder}/whole"
        run(["sbatch", *THIS_NODE, f"-n{ranks}", "-o", f"{folder}/out", "--wrap", script], environment)
        with open(wait_for_file(f"{folder}/whole")) as file:  # `sbatch --wait` looks every ten seconds
            check("sbatch, tutti run", by_rank(file.read(), TUTTI, ranks), wanted)
    _, err = run(["salloc", "--quiet", "-N2", "-n4", tutti, "run", program], environment, code=2)
    check_says("tutti run in two nodes", err, "has 2 nodes", slurm.NODES[0], slurm.NODES[1], "srun PROGRAM", "-n N")
    _, err = run(["srun", *THIS_NODE, "-n2", tutti, "run", program], environment, code=2)
    check_says("srun -n2 tutti run", err, "srun has started this command 2 times", "srun -n 1 tutti run -n 2")
    _, err = run(["srun", *THIS_NODE, "-n2", tutti, "run", "-n", "1", "true"], environment)
    check("srun -n2 tutti run -n 1", err.count("srun has started this command 2 times"), 1)


def under_slurm(options, programs):
    slurm.guard()
    try:
        with slurm.start() as more:
            environment = dict(clean_environment(), **{name: more[name] for name in ("PATH", "SLURM_CONF")})
            under_srun(programs, options.mpis, environment)
            two_steps_of_a_job(programs, environment)
            over_two_nodes(programs, environment)
            around_other_launchers(options.tutti, programs, environment)
            in_an_allocation(options.tutti, programs, environment)
            with contextlib.suppress(Skipped):
                folder, _ = python_torch()
                in_turn(["srun", *THIS_NODE, "-n1", "--mpi=pmi2", f"{folder}/bin/torchrun"], {"all_reduce": programs["all_reduce"]}, environment)
    except slurm.Unavailable as error:
        raise Skipped(str(error)) from error


# ---- Python's torch

def python_torch():
    """Its folder, and an environment in which its torchrun and python3 come first."""
    source = os.path.dirname(os.path.dirname(HERE))
    folder = os.environ.get("PYTHON_TORCH_ROOT")
    if not folder:
        out, _ = run([f"{source}/tools/python_torch.sh", "--where", f"{source}/third_party"], os.environ)
        folder = out.strip()
    if not os.path.exists(f"{folder}/complete"):
        raise Skipped("Python's torch is missing: tools/python_torch.sh third_party makes it; PYTHON_TORCH_ROOT names another place")
    if not os.access(f"{folder}/bin/python3", os.X_OK):
        raise Skipped(f"{folder}/bin/python3 may not be run by this user")
    environment = clean_environment()
    environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
    return folder, environment


def read_log(folder, rank):
    """What a rank has printed, by torchrun's --log-dir."""
    [path] = [os.path.join(parent, "stdout.log") for parent, _, files in os.walk(folder)
              if "stdout.log" in files and os.path.basename(parent) == str(rank)]
    with open(path) as file:
        return file.read()


def in_turn(command, programs, environment):
    """Runs programs of equal ranks under one start of torchrun, and compares."""
    groups = collections.defaultdict(list)
    for name in programs:
        groups[EXAMPLES[name][0]].append(name)
    for ranks, names in groups.items():
        script = 'for program; do echo "== $program"; "$program" || exit; done'
        with tempfile.TemporaryDirectory() as folder:
            words = ["--nproc-per-node", str(ranks), "--redirects", "1", "--log-dir", folder]
            plain = [programs[names[0]]] if len(names) == 1 else ["sh", "-c", script, "sh", *(programs[name] for name in names)]
            run([*command, *words, "--no-python", *plain], environment)
            outputs = [read_log(folder, rank) for rank in range(ranks)]
        for name in names:
            lines = [text.split(f"== {programs[name]}\n")[-1].split("== ")[0].splitlines() for text in outputs]
            check(f"{' '.join(map(os.path.basename, command))}: {name}", lines, expected(name)[1])


def under_torchrun(_, programs):
    folder, environment = python_torch()
    in_turn([f"{folder}/bin/torchrun"], programs, environment)
    if shutil.which("mpirun.openmpi"):  # the outer shell
        root = dict(environment, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        in_turn(["mpirun.openmpi", "-n", "1", f"{folder}/bin/torchrun"], {"all_reduce": programs["all_reduce"]}, root)


def under_launch(_, programs):
    folder, environment = python_torch()
    in_turn([f"{folder}/bin/python3", "-m", "torch.distributed.launch", "--use-env"], programs, environment)


def ddp(options, _):
    """TCPStore takes the port that the agent holds for it."""
    _, environment = python_torch()
    ranks = 2
    out, _ = run([options.tutti, "run", "-n", str(ranks), "--", "python3", f"{HERE}/ddp.py"], environment)
    check("tutti run python3 ddp.py", by_rank(out, TUTTI, ranks), [[f"rank {rank} of {ranks}: as one process"] for rank in range(ranks)])


def main():
    ways = {"slurm": under_slurm, "torchrun": under_torchrun, "launch": under_launch, "ddp": ddp}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=ways)
    parser.add_argument("--tutti")
    parser.add_argument("--programs", nargs="*", default=[])
    parser.add_argument("--mpis", nargs="*", default=[], help="mpich, openmpi: with the backend mpi, too")
    options = parser.parse_args()
    try:
        ways[options.way](options, {os.path.basename(program): program for program in options.programs})
    except Skipped as why:
        print(f"SKIPPED: {why}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
