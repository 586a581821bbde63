"""Slurm on this host, from Debian's packages: daemons on ports and in a folder of their own, gone with the block.

    with slurm.start() as environment: subprocess.run(["srun", ...], env=environment)

Two nodes: this host by its name, and "other", which is this host again. With 64 CPUs each no job waits for the one before it.
"""
import atexit
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

STARTED_WITHIN = 90  # seconds
ENDED_WITHIN = 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NODES = (socket.gethostname().split(".")[0], "other")
CONFIGURATION = """\
ClusterName=tutti
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Unavailable(Exception):
    """Slurm is not installed here, and what is missing."""


class NotStarted(Exception):
    """A daemon of it that is installed does not start, and why."""


def prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@contextlib.contextmanager
def held_ports(count):
    """Nobody else is given them within the block. Servers that share addresses (SO_REUSEADDR) can listen there: nobody does yet."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("", 0))
        yield [each.getsockname()[1] for each in sockets]


def children():
    """Of this process, which inherits the orphans below it."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def end_all():
    """All that stands below this process ends, and is reaped: the daemons have nothing to save."""
    deadline = time.monotonic() + ENDED_WITHIN
    while below := children():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {below} do not end")
        for pid in below:
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def log_of(folder):
    lines = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".out"):
            with open(os.path.join(folder, name), errors="replace") as file:
                lines += [f"{name}: {line.rstrip()}" for line in file.readlines()[-5:]]
    return "\n".join(lines)


def wait_for(what, is_there, daemons, folder):
    deadline = time.monotonic() + STARTED_WITHIN
    while not is_there():
        ended = [name for name, daemon in daemons.items() if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            why = f"{', '.join(ended)} ended" if ended else f"not within {STARTED_WITHIN} s"
            raise NotStarted(f"{what} did not come: {why}\n{log_of(folder)}")
        time.sleep(0.02)


def guard():
    """Goes on in a child of this process: whichever of the two is killed, the other ends all that stands below, and leaves no file."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="tutti-slurm-")
    os.chmod(folder, 0o755)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("slurm: ended by SIGTERM"))
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        tempfile.tempdir = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    end_all()
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


@contextlib.contextmanager
def start():
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name, path=search_path())]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not installed: Debian's packages munge, slurmctld, slurmd, slurm-client")
    try:
        socket.getaddrinfo(None, 0, family=socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:  # slurmd asks like this
        raise Unavailable("this host has no address but loopback: slurmd does not start") from None
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="tutti-slurm-")
    os.chmod(folder, 0o755)  # else munged thinks that nobody reaches its socket
    try:
        with held_ports(3) as ports:
            yield start_daemons(folder, ports)
    finally:
        end_all()
        shutil.rmtree(folder)


def search_path():
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def start_daemons(folder, ports):
    configuration = os.path.join(folder, "slurm.conf")
    with open(configuration, "w") as file:
        file.write(CONFIGURATION.format(host=NODES[0], nodes=NODES, folder=folder, ports=ports, user=pwd.getpwuid(os.getuid()).pw_name))
    with open(os.path.join(folder, "cgroup.conf"), "w") as file:
        file.write("CgroupPlugin=cgroup/v1\n")  # none is used, but without this slurmd wants one to be mounted
    key = os.open(os.path.join(folder, "munge.key"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(key, os.urandom(128))
    os.close(key)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment.update(PATH=search_path(), SLURM_CONF=configuration)
    daemons = {}

    def run(name, *command):
        with open(os.path.join(folder, name + ".out"), "w") as out:
            daemons[name] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
                                             preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    run("munged", "munged", "--foreground", "--force", *(f"--{what}={folder}/munge.{ending}" for what, ending in (
        ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))))
    wait_for("munged's socket", lambda: os.path.exists(f"{folder}/munge.socket"), daemons, folder)
    run("slurmctld", "slurmctld", "-D", "-i")
    for node in NODES:
        run(f"slurmd.{node}", "slurmd", "-D", "-N", node)

    def are_idle():
        answer = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True, timeout=STARTED_WITHIN)
        return answer.stdout.strip() == f"idle {len(NODES)}"

    wait_for("Slurm's nodes", are_idle, daemons, folder)
    return environment
