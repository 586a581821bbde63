#!/usr/bin/env python3
"""Soak `strangers`: who is not of a job of two hosts, and what he can do to it or see of it.

At level auth, while the world is not complete and while it works: so many idle sockets at the store's port and at a rank's door, of
which the job has at most 32 MiB; no listener at a wildcard address; the secret in no argument, variable or line; another user is
refused at the local socket, and over TCP without the secret. There and at level integrity, at both ports: a hello that comes a byte at
a time is cut off; what a rank has said (recorded from its packets) is believed from nobody else, and a proof is no answer to itself.
At opportunistic another user comes in over TCP until the world is complete, and the job says so; at the local socket he is refused.
On one host nobody listens at all."""
import json
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
PATIENCE = 2  # s, after which who has not said all is dropped
HELLO, PROOF = 80, 32  # bytes; docs/wire.md
LEVELS = {"auth": 2, "integrity": 3}  # there
MAGIC = b"TUTTihs1"
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


def connected(address):
    host, _, port = address.rpartition(":")
    end = socket.create_connection((host.strip("[]"), int(port)), timeout=20)
    end.settimeout(10)
    return end


def hear(end):
    """What comes until the other end closes, or for 10 s; and whether it has closed."""
    heard = b""
    try:
        while said := end.recv(4096):
            heard += said
    except ConnectionError:
        pass
    except TimeoutError:
        return heard, False
    return heard, True


def drip(address, level):
    """Of this process: a hello, a byte every 0.2 s; says after how many seconds the other end has closed."""
    began = time.monotonic()
    with connected(address) as end:
        end.settimeout(0.2)
        for byte in MAGIC + struct.pack("<II", 1, level) + bytes(HELLO):
            try:
                end.sendall(bytes([byte]))
                if end.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            print("never")
            return
    print(f"{time.monotonic() - began:.2f}")


def record():
    """Of this process, until its input ends: what comes to this host over TCP; then, by port, how the first caller there began."""
    begun = {}  # (address, port, own port) -> {sequence number: bytes}
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as wire:
        wire.bind(("eth0", 0x0800))
        wire.settimeout(0.05)
        print("records", flush=True)
        os.set_blocking(0, False)
        while sys.stdin.buffer.read(1) is None:
            try:
                packet, (_, _, kind, *_) = wire.recvfrom(1 << 16)
            except TimeoutError:
                continue
            at = (packet[0] & 15) * 4
            if kind == socket.PACKET_OUTGOING or packet[9] != socket.IPPROTO_TCP:
                continue
            source, own, number = struct.unpack_from("!HHI", packet, at)
            size = struct.unpack_from("!H", packet, 2)[0] or len(packet)  # none: larger than that field holds
            payload = packet[at + (packet[at + 12] >> 4) * 4:size]
            parts = begun.setdefault((packet[12:16], source, own), {})
            if payload and len(parts) < 20:
                parts.setdefault(number, payload)
    calls = {}
    for (_, _, own), parts in begun.items():
        said = b"".join(parts[number] for number in sorted(parts))
        if said.startswith(MAGIC) and len(said) >= HELLO + PROOF:
            calls.setdefault(own, said.hex())
    print(json.dumps(calls))


def repeat(address, said):
    """Of this process: says at `address` what a rank has said; then its hello alone, and the proof of the reply as its own."""
    said = bytes.fromhex(said)
    for confirm in (lambda _: said[HELLO:], lambda reply: reply[-PROOF:]):
        with connected(address) as end:
            end.sendall(said[:HELLO])
            reply = end.recv(HELLO + PROOF, socket.MSG_WAITALL)
            try:
                end.sendall(confirm(reply))
            except ConnectionError:
                pass
            heard, is_closed = hear(end)
        answer = struct.unpack_from("<I", reply, 16)[0] if len(reply) == HELLO + PROOF else "nothing"
        print("refused" if is_closed and not heard else f"closed: {is_closed}, heard {heard[:60]!r}", f"(its hello was answered by {answer})", flush=True)


class Strangers:
    def __init__(self, options, network, folder):
        self.options, self.network = options, network
        self.program = options.build / "tests/soak/links_rank"
        self.folder = pathlib.Path(folder)
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

    def drips(self, level, what, address):
        said = self.inside(1, sys.executable, __file__, "drip", address, LEVELS[level]).communicate()[0].strip()
        is_cut_off = re.fullmatch(r"\d+\.\d+", said) and float(said) < PATIENCE + 2
        self.expect(f"at {level}, at {what}: a hello that comes a byte at a time", is_cut_off, f"cut off after {said} s")

    def recorder(self):
        recorder = self.inside(0, sys.executable, __file__, "record")
        recorder.stdout.readline()
        return recorder

    def repeats(self, recorder, level, what, address):
        calls = json.loads(recorder.communicate()[0])
        said = calls.get(address.rpartition(":")[2])
        if said is None:
            return self.expect(f"at {level} a call to {what} was recorded", False, f"{address}: {list(calls)}")
        lines = self.inside(1, sys.executable, __file__, "repeat", address, said).communicate()[0].splitlines()
        for how, line in zip(("what a rank has said, once more", "its proof sent back"), lines + ["nothing"] * 2):
            self.expect(f"at {level}, at {what}: {how}", line.startswith("refused"), line)

    def as_other_user(self, level, secret, wait=2):
        """Rank 3 of the job, by another user on a third host."""
        variables = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(PORT),
                     "TUTTI_SECURITY": level, "TUTTI_TIMEOUT": "20s", **({"TUTTI_SECRET_FILE": secret} if secret else {})}
        return self.inside(2, self.program, "late", "1", wait, user=OTHER_USER, env=variables)

    def auth(self):
        recorder = self.recorder()
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
        self.repeats(recorder, "auth", "the store's port", store)
        self.drips("auth", "the store's port", store)
        recorder = self.recorder()
        crowds = [self.crowd("the store's port", store, pids[0])]
        self.go.touch()
        if not job.wait_for("ready", range(4), 60):
            self.expect("the world is complete beside them", False, job.text())
        self.look_at_listeners("while ranks work")
        door = self.await_listener(pids[1], [store])
        self.repeats(recorder, "auth", "a rank's door", door)
        self.drips("auth", "a rank's door", door)
        crowds.append(self.crowd("a rank's door", door, pids[1]))
        self.look_for_secret(job, pids)
        codes = job.wait_ends(range(4), 60)
        self.expect("the job has its result", set(codes.values()) == {0} and len(job.said("done")) == 4, f"exit codes {sorted(codes.values())}")
        self.expect("the secret is in no line", self.secret not in job.text(), f"{len(job.lines)} lines at TUTTI_LOG=debug")
        job.end()
        for crowd in crowds:
            crowd.communicate()

    def integrity(self):
        recorder = self.recorder()
        job = self.job("integrity", LATE, {"TUTTI_SECRET_FILE": self.secret_file(self.secret)})
        pids = [process.pid for process in job.ranks.processes]
        store = self.await_listener(pids[0])
        port, until = store.rpartition(":")[2], time.monotonic() + 20
        while not self.inside(0, "ss", "-Htn", "state", "established", f"sport = :{port}").communicate()[0].strip():
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        time.sleep(1)  # for rank 2 to call, and to say its hello
        self.repeats(recorder, "integrity", "the store's port", store)
        self.drips("integrity", "the store's port", store)
        recorder = self.recorder()
        self.go.touch()
        if not job.wait_for("ready", range(4), 60):
            self.expect("at integrity the world is complete", False, job.text())
        door = self.await_listener(pids[1], [store])
        self.repeats(recorder, "integrity", "a rank's door", door)
        self.drips("integrity", "a rank's door", door)
        codes = job.wait_ends(range(4), 60)
        self.expect("at integrity the job has its result", set(codes.values()) == {0} and len(job.said("done")) == 4,
                    f"exit codes {sorted(codes.values())}")
        job.end()

    def look_for_secret(self, job, pids):
        seen = b"".join(pathlib.Path(f"/proc/{pid}/{what}").read_bytes() for pid in pids for what in ("cmdline", "environ"))
        self.expect("the secret is in no argument and no variable", b"TUTTI_SECRET_FILE=" in seen and self.secret.encode() not in seen,
                    f"{len(seen)} bytes of {len(pids)} processes")

    def opportunistic(self):
        job = self.job("opportunistic", 2)
        self.await_listener(job.ranks.processes[0].pid)
        said = self.inside(0, sys.executable, __file__, "knock", f"@tutti-0-{PORT}", user=OTHER_USER).communicate()[0].strip()
        self.expect("at opportunistic another user at the local socket", said == "refused", said)
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
        self.integrity()
        self.opportunistic()
        self.one_host()
        over_hosts.write_evidence(self.options, "strangers", {"sockets": self.options.sockets, "found": self.found, "wrong": self.wrong})
        print(f"strangers: {len(self.found)} looked at, {len(self.wrong)} wrong", file=sys.stderr)
        return 1 if self.wrong else 0


def resident_mib(pid):
    return int(re.search(r"^VmRSS:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1]) / 1024


def soak(options):
    # The job's secret lies in the folder, and goes with it.
    with tempfile.TemporaryDirectory(prefix="tutti_strangers_") as folder, over_hosts.Hosts(3) as network:
        return Strangers(options, network, folder).run()


def main():
    if sys.argv[1:2] == ["hold"]:
        return hold(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["knock"]:
        return knock(sys.argv[2])
    if sys.argv[1:2] == ["drip"]:
        return drip(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["record"]:
        return record()
    if sys.argv[1:2] == ["repeat"]:
        return repeat(*sys.argv[2:4])
    parser = over_hosts.parser(__doc__)
    parser.add_argument("--sockets", type=int, default=10_000, help="idle, at each of two ports (10000)")
    return over_hosts.run(soak, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
