#!/usr/bin/env python3
"""Hosts on one machine: network namespaces joined by a bridge, and ranks started by hand in them.

    tools/hosts.py 2 --ranks 2 --rate 100mbit -- ./program args
    tools/hosts.py 3 --cut 0-1@5+9 -- ./program      hosts 0 and 1 do not reach each other, from second 5 to 14

Every rank gets RANK, WORLD_SIZE, MASTER_ADDR (an address of the first host), MASTER_PORT, OMP_NUM_THREADS=1 and OMP_WAIT_POLICY=PASSIVE.
The bridge is in a namespace of its own, so that nothing of it is seen outside. Needs root and iproute2. The soaks over hosts
(tests/soak) and ./dev bench net make their hosts with this, too.
"""
import argparse
import concurrent.futures
import ctypes
import fcntl
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time

PREFIX = "tutti-hosts-"
LOCKS = pathlib.Path(tempfile.gettempdir())
# What makes a process a rank of another launcher.
OF_LAUNCHERS = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_.*|PMIX?_.*"
                          r"|MPI_LOCAL.*|SLURM_.*|TUTTI_(AGENT|RANK|WORLD_SIZE|INIT_METHOD|HOST_ID))$")
PR_SET_PDEATHSIG = 1
NOT_PERMITTED = 77
NOBODY = "02:77:00:00:00:00"  # a hardware address that no host has


# What `ip` says where there is no right to namespaces, or a kernel without them, bridges or veth.
REFUSED = re.compile(r"not permitted|permission denied|not supported|unknown device type|read-only file system", re.I)


class Failed(Exception):
    """A command has failed that should not."""


class NotPermitted(Failed):
    """This machine lets us make no namespaces: whoever needs some is skipped."""


def is_not_installed(missing):
    """Whether a FileNotFoundError is of the programs of iproute2."""
    return missing.filename in ("ip", "tc", "ss")


def ip(*words, commands=None):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, input=commands)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """The namespaces. Their names hold a random tag, which is locked for as long as this process lives."""

    def __init__(self):
        self.tag = secrets.token_hex(4)
        self.lock = (LOCKS / f"{PREFIX}{self.tag}.lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.made, self.broken = [], set()

    def name(self, what):
        return f"{PREFIX}{self.tag}-{what}"

    def add(self, what):
        ip("netns", "add", self.name(what))
        self.made.append(self.name(what))
        return self.name(what)

    def build(self, hosts, rate):
        try:
            self.build_hosts(hosts)
        except Failed as failure:
            raise NotPermitted(str(failure)) if REFUSED.search(str(failure)) else failure
        if rate:
            self.limit(hosts, rate)

    def build_hosts(self, hosts):
        hub = self.add("hub")
        ip("-n", hub, "link", "add", "hub", "type", "bridge")
        ip("-n", hub, "link", "set", "hub", "up")
        for host in range(hosts):
            space = self.add(host)
            ip("-n", hub, "link", "add", f"p{host}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", hub, "link", "set", f"p{host}", "master", "hub", "up")
            ip("-n", space, "addr", "add", f"{address(host)}/16", "dev", "eth0")
            ip("-n", space, "-6", "addr", "add", f"{address6(host)}/64", "dev", "eth0", "nodad")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def limit(self, hosts, rate):
        for host in range(hosts):
            done = subprocess.run(["tc", "-n", self.name(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb",
                                   "latency", "50ms"], capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"--rate {rate}: {done.stderr.strip()} (as `tc` writes it: 100mbit, 1gbit)")

    def cut(self, ways):
        """For each (a, b) of `ways` nothing that host a sends reaches host b: it goes to a hardware address that nobody has.
        Neither end is told."""
        self.change(ways, "replace", f"lladdr {NOBODY} nud permanent")
        self.broken |= set(ways)

    def mend(self, ways):
        self.change(self.broken & set(ways), "del", "")
        self.broken -= set(ways)

    def change(self, ways, verb, entry):
        def change_of(host):
            others = [b for a, b in ways if a == host]
            commands = "".join(f"neigh {verb} {to} {entry} dev eth0\n" for b in others for to in (address(b), address6(b)))
            ip("-n", self.name(host), "-batch", "-", commands=commands)
        changed = sorted({a for a, _ in ways})
        with concurrent.futures.ThreadPoolExecutor(max(1, len(changed))) as at_once:
            list(at_once.map(change_of, changed))  # Failed, if one has

    def sent(self, host):
        """Bytes that the host has given to its link, headers of Ethernet and IP included."""
        return json.loads(ip("-n", self.name(host), "-j", "-s", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]

    def take_down(self):
        while self.made:
            remove(self.made.pop())
        pathlib.Path(self.lock.name).unlink(missing_ok=True)
        self.lock.close()


def address(host):
    return f"10.77.{(host + 1) // 256}.{(host + 1) % 256}"


def address6(host):
    return f"fd77::{host + 1:x}"


def ways_of(what, hosts):
    """The ways, from host to host, that a cut takes: `1`: host 1 from all others; `0-1`: that pair; `0>1`: what 0 sends to 1."""
    one, kind, other = re.fullmatch(r"(\d+)(?:([->])(\d+))?", what).groups()
    ends = [(int(one), host) for host in range(hosts) if host != int(one)] if kind is None else [(int(one), int(other))]
    if not all(a != b and max(a, b) < hosts for a, b in ends):
        raise ValueError(what)
    return ends if kind == ">" else ends + [(b, a) for a, b in ends]


def remove(space):
    """Ends all that is in a namespace of ours, grandchildren included, and the namespace."""
    for _ in range(100):
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
        if not pids:
            break
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    subprocess.run(["ip", "netns", "del", space], capture_output=True)


def remove_stale():
    """What one that was killed has left: nobody holds its lock."""
    for path in LOCKS.glob(f"{PREFIX}*.lock"):
        try:
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tag = path.name.removeprefix(PREFIX).removesuffix(".lock")
                for line in ip("netns", "list").splitlines():
                    if line.startswith(f"{PREFIX}{tag}-"):
                        remove(line.split()[0])
                path.unlink(missing_ok=True)
        except OSError:  # held, or another user's
            continue


class Ranks:
    """Processes that were started by hand, `each` on every host. Their lines go to `hear(rank, is_error, line)`, else out, with
    the rank before them."""

    def __init__(self, network, hosts, each, command, port=29500, hear=None, more=None):
        self.printing = threading.Lock()
        self.hear = hear or self.print
        self.processes = []
        self.readers = []
        variables = {"WORLD_SIZE": str(hosts * each), "MASTER_ADDR": address(0), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                     "OMP_WAIT_POLICY": "PASSIVE", **(more or {})}
        for rank in range(hosts * each):
            self.start(network.name(rank // each), rank, command, variables)

    def start(self, space, rank, command, variables):
        env = {name: value for name, value in os.environ.items() if not OF_LAUNCHERS.match(name)}
        env.update(variables, RANK=str(rank))
        libc = ctypes.CDLL(None)
        process = subprocess.Popen(["ip", "netns", "exec", space, *command], env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                   preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        self.processes.append(process)
        for source in (process.stdout, process.stderr):
            reader = threading.Thread(target=self.copy, args=(rank, source, source is process.stderr), daemon=True)
            reader.start()
            self.readers.append(reader)

    def copy(self, rank, source, is_error):
        for line in source:
            with self.printing:
                self.hear(rank, is_error, line)

    @staticmethod
    def print(rank, is_error, line):
        target = (sys.stderr if is_error else sys.stdout).buffer
        target.write(f"[{rank}] ".encode() + line + (b"" if line.endswith(b"\n") else b"\n"))
        target.flush()

    def wait(self, grace):
        """The exit code of the first that fails; the others have some time to end by themselves then."""
        code, until = 0, None
        while running := [process for process in self.processes if process.poll() is None]:
            code = code or self.first_failure()
            if code and until is None:
                until = time.monotonic() + grace
            if until is not None and time.monotonic() > until:
                print(f"hosts: {len(running)} ranks still ran {grace:g} s after the first had failed: ended", file=sys.stderr)
                break
            time.sleep(0.01)
        code = code or self.first_failure()
        self.end()
        return code

    def first_failure(self):
        for process in self.processes:
            if process.poll() not in (None, 0):
                return process.returncode if process.returncode > 0 else 128 - process.returncode
        return 0

    def end(self):
        for number, patience in ((signal.SIGTERM, 2), (signal.SIGKILL, 5)):
            running = [process for process in self.processes if process.poll() is None]
            for process in running:
                process.send_signal(number)  # of a process that is not reaped yet: its pid is nobody else's
            until = time.monotonic() + patience
            while any(process.poll() is None for process in running) and time.monotonic() < until:
                time.sleep(0.01)
        for reader in self.readers:
            reader.join(1)


def parse():
    parser = argparse.ArgumentParser(prog="./dev hosts", usage="./dev hosts N [--ranks M] [--rate R] [--cut CUT]... [--bytes] [--port P] [--grace S] -- CMD",
                                     description="N hosts on this machine (network namespaces), M ranks in each")
    parser.add_argument("hosts", type=int, metavar="N")
    parser.add_argument("--ranks", type=int, default=1, metavar="M", help="on each host (1)")
    parser.add_argument("--rate", default="", metavar="R", help="what each host can send: 100mbit, 1gbit (as fast as it goes)")
    parser.add_argument("--cut", action="append", default=[], metavar="WHAT@AT[+FOR]",
                        help="a link that breaks AT seconds after the start, for FOR seconds or for good; WHAT: 1 is host 1 from all others, "
                             "0-1 that pair, 0>1 what 0 sends to 1")
    parser.add_argument("--bytes", action="store_true", help="say in the end how much each host has sent")
    parser.add_argument("--port", type=int, default=29500, metavar="P", help="MASTER_PORT (29500)")
    parser.add_argument("--grace", type=float, default=10, metavar="S", help="seconds for the others when one has failed (10)")
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    options.command = command
    try:
        options.cut = [read_cut(cut, options.hosts) for cut in options.cut]
    except (AttributeError, ValueError):
        parser.error(f"--cut {' '.join(options.cut)}: WHAT@AT[+FOR] with WHAT 1, 0-1 or 0>1 of {options.hosts} hosts, as in 0-1@5+9")
    if not command:
        parser.error("no command: ./dev hosts N -- CMD")
    if not 1 <= options.hosts <= 1000 or options.ranks < 1:
        parser.error(f"{options.hosts} hosts with {options.ranks} ranks each: from 1 to 1000 hosts, at least one rank")
    return options


def read_cut(text, hosts):
    what, at, _, seconds = re.fullmatch(r"([^@]+)@([\d.]+)(\+([\d.]+))?", text).groups()
    return ways_of(what, hosts), float(at), float(seconds) if seconds else None


def start_cut(network, ways, at, seconds):
    """A thread that cuts and mends at its times, and ends with the process."""
    def live():
        try:
            time.sleep(at)
            network.cut(ways)
            if seconds is not None:
                time.sleep(seconds)
                network.mend(ways)
        except Failed as failure:
            if network.made:  # else the job has ended meanwhile
                print(f"hosts: --cut: {failure}", file=sys.stderr)
    threading.Thread(target=live, daemon=True).start()


def interrupt(number, _frame):
    raise SystemExit(128 + number)


def main():
    options = parse()
    if os.geteuid() != 0:
        print("hosts: network namespaces need root: sudo ./dev hosts ...", file=sys.stderr)
        return NOT_PERMITTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    network, ranks = None, None
    try:
        remove_stale()
        network = Network()
        network.build(options.hosts, options.rate)
        ranks = Ranks(network, options.hosts, options.ranks, options.command, options.port)
        for cut in options.cut:
            start_cut(network, *cut)
        code = ranks.wait(options.grace)
        for host in range(options.hosts if options.bytes else 0):
            print(f"hosts: host {host} sent {network.sent(host):,} bytes", file=sys.stderr)
        return code
    except Failed as failure:
        print(f"hosts: {failure}", file=sys.stderr)
        return NOT_PERMITTED if isinstance(failure, NotPermitted) else 2 if "--rate" in str(failure) else 1
    except FileNotFoundError as missing:
        if not is_not_installed(missing):
            raise
        print(f"hosts: {missing.filename} is not installed: apt-get install iproute2", file=sys.stderr)
        return NOT_PERMITTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # what was made is taken down, whatever comes now
        if ranks:
            ranks.end()
        if network:
            network.take_down()


if __name__ == "__main__":
    sys.exit(main())
