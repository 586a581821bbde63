#!/usr/bin/env python3
"""Soak `strangers`: who is not of a job of two hosts, and what he can do to it or see of it.

At level auth, while the world is not complete and while it works: so many idle sockets at the store's port and at a rank's door, of
which the job has at most 32 MiB; no listener at a wildcard address; the secret in no argument, variable or line; another user is
refused at the local socket, and over TCP without the secret. At opportunistic he comes in over TCP until the world is complete, and
the job says so. On one host nobody listens at all."""
import os
import pathlib
import re
import resource
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time

import over_hosts
from over_hosts import hosts

OTHER_USER = 1000
PORT = 29500
LATE = 12  # s that the last rank lets the others wait in an all_reduce
MOST_MIB = 32
HELD = 'while [ "$RANK" = 3 ] && [ ! -e "$GO" ]; do sleep 0.05; done; exec "$@"'


def hold(address, count):
    """Of this process: opens so many connections, says a word, and holds them until its input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    host, _, port = address.rpartition(":")
    held = [socket.create_connection((host.strip("[]"), int(port)), timeout=20) for _ in range(count)]
    print(len(held), flush=True)
    sys.stdin.read()


def knock(address):
    """Of this process: what the local socket at `address` says to a hello of the store."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(5)
        end.connect("\0" + address.removeprefix("@"))
        try:
            end.sendall(struct.pack("<IIQ IIiiQQ", 32, 100, 0, 0x53545554, 3, -1, 0, 0, 0))
            said = end.recv(100)
        except ConnectionError:
            said = b""
        print("refused" if said == b"" else f"heard {said!r}")


class Strangers:
    def __init__(self, options, network):
        self.options, self.network = options, network
        self.program = options.build / "tests/soak/links_rank"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti_strangers_"))
        self.folder.chmod(0o755)
        self.secret = secrets.token_hex(32)
        self.found, self.wrong = {}, []

    def expect(self, what, is_right, figure):
        self.found[what] = {"right": bool(is_right), "found": figure}
        if not is_right:
            self.wrong.append(what)
        print(f"strangers: {'right' if is_right else 'WRONG'}: {what}: {figure}", file=sys.stderr)

    def secret_file(self, text, user=0):
        path = self.folder / f"secret-{user}"
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, user, user)
        return str(path)

    def inside(self, host, *words, user=None, **more):
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return subprocess.Popen(["ip", "netns", "exec", self.network.name(host), *as_user, *map(str, words)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)

    def listeners(self):
        """(address, pid) of all who listen over TCP on any host."""
        lines = [line for host in range(3) for line in self.inside(host, "ss", "-Hltnp").communicate()[0].splitlines()]
        return [(line.split()[3], int((re.findall(r"pid=(\d+)", line) or ["0"])[0])) for line in lines]

    def job(self, level, wait, more=None):
        self.go = self.folder / f"go-{level}"
        variables = {"TUTTI_SECURITY": level, "GO": str(self.go), "TUTTI_TIMEOUT": "120s", "TUTTI_LOG": "debug", **(more or {})}
        return over_hosts.Job(self.network, 2, 2, ["sh", "-c", HELD, "sh", self.program, "late", "1", wait], more=variables)

    def await_listener(self, pid, more_than=()):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            of_rank = [address for address, owner in self.listeners() if owner == pid and address not in more_than]
            if of_rank:
                return of_rank[0]
            time.sleep(0.1)
        raise RuntimeError("nobody listens")

    def look_at_listeners(self, when):
        addresses = sorted(address for address, _ in self.listeners())
        everywhere = [address for address in addresses if address.startswith(("0.0.0.0:", "*:", "[::]:"))]
        self.expect(f"no wildcard address, {when}", addresses and not everywhere, " ".join(addresses))

    def crowd(self, what, address, pid):
        """Idle connections from the other host; held until they are let go."""
        before, count = resident_mib(pid), self.options.sockets
        crowd = self.inside(1, sys.executable, __file__, "hold", address, count)
        opened = crowd.stdout.readline().strip()
        time.sleep(0.5)
        grown = resident_mib(pid) - before
        self.expect(f"idle sockets at {what}", opened == str(count) and grown <= MOST_MIB,
                    f"{opened} at {address}, {grown:+.1f} MiB resident")
        return crowd

    def as_other_user(self, level, secret, wait=2):
        """Rank 3 of the job, by another user on a third host."""
        variables = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(PORT),
                     "TUTTI_SECURITY": level, "TUTTI_TIMEOUT": "20s", **({"TUTTI_SECRET_FILE": secret} if secret else {})}
        return self.inside(2, self.program, "late", "1", wait, user=OTHER_USER, env=variables)

    def auth(self):
        job = self.job("auth", LATE, {"TUTTI_SECRET_FILE": self.secret_file(self.secret)})
        pids = [process.pid for process in job.ranks.processes]
        store = self.await_listener(pids[0])
        self.look_at_listeners("while ranks come")
        said = self.inside(0, sys.executable, __file__, "knock", f"@tutti-0-{PORT}", user=OTHER_USER).communicate()[0].strip()
        self.expect("another user at the local socket", said == "refused", said)
        same = self.inside(0, sys.executable, __file__, "knock", f"@tutti-0-{PORT}").communicate()[0].strip()
        self.expect("our own user there is answered", same.startswith("heard"), same[:60])
        for secret in ("", self.secret_file(secrets.token_hex(32), OTHER_USER)):
            said = self.as_other_user("auth", secret).communicate()[0].strip()
            self.expect(f"another user over TCP, with {'another' if secret else 'no'} secret", said.startswith("failed"), said[:200])
        crowds = [self.crowd("the store's port", store, pids[0])]
        self.go.touch()
        if not job.wait_for("ready", range(4), 60):
            self.expect("the world is complete beside them", False, job.text())
        self.look_at_listeners("while ranks work")
        crowds.append(self.crowd("a rank's door", self.await_listener(pids[1], [store]), pids[1]))
        self.look_for_secret(job, pids)
        codes = job.wait_ends(range(4), 60)
        self.expect("the job has its result", set(codes.values()) == {0} and len(job.said("done")) == 4, f"exit codes {sorted(codes.values())}")
        self.expect("the secret is in no line", self.secret not in job.text(), f"{len(job.lines)} lines at TUTTI_LOG=debug")
        job.end()
        for crowd in crowds:
            crowd.communicate()

    def look_for_secret(self, job, pids):
        seen = b"".join(pathlib.Path(f"/proc/{pid}/{what}").read_bytes() for pid in pids for what in ("cmdline", "environ"))
        self.expect("the secret is in no argument and no variable", b"TUTTI_SECRET_FILE=" in seen and self.secret.encode() not in seen,
                    f"{len(seen)} bytes of {len(pids)} processes")

    def opportunistic(self):
        job = self.job("opportunistic", 2)
        self.await_listener(job.ranks.processes[0].pid)
        guest = self.as_other_user("opportunistic", "")
        said = guest.communicate()[0].strip()
        codes = job.wait_ends(range(3), 60)
        self.expect("at opportunistic another user comes in over TCP", "done" in said and set(codes.values()) == {0}, said.splitlines()[-1])
        banner = [text for _, text in job.lines if "TUTTI_SECURITY" in text]
        self.expect("and the banner says so", any("join" in text for text in banner), " | ".join(banner)[:400])
        job.end()

    def one_host(self):
        job = self.inside(0, self.options.build / "cli/tutti", "run", "-n", "2", self.program, "late", "1", 2)
        time.sleep(1)
        addresses = [address for address, _ in self.listeners()]
        said = job.communicate()[0]
        self.expect("on one host nobody listens", not addresses and said.count("done") == 2, " ".join(addresses) or "no listener")

    def run(self):
        self.auth()
        self.opportunistic()
        self.one_host()
        over_hosts.write_evidence(self.options, "strangers", {"sockets": self.options.sockets, "found": self.found, "wrong": self.wrong})
        print(f"strangers: {len(self.found)} looked at, {len(self.wrong)} wrong", file=sys.stderr)
        return 1 if self.wrong else 0


def resident_mib(pid):
    return int(re.search(r"^VmRSS:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1]) / 1024


def soak(options):
    with over_hosts.Hosts(3) as network:
        return Strangers(options, network).run()


def main():
    if sys.argv[1:2] == ["hold"]:
        return hold(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["knock"]:
        return knock(sys.argv[2])
    parser = over_hosts.parser(__doc__)
    parser.add_argument("--sockets", type=int, default=10_000, help="idle, at each of two ports (10000)")
    return over_hosts.run(soak, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
