#!/usr/bin/env python3
"""Soak `real --hosts N`: soak_real, whose ranks are on hosts of their own: network namespaces as `./dev hosts` makes them. Each of the
scripts that run at a time has N, the ranks of a host are in its namespace, and they meet over TCP at an address of rank 0's host.
A script that cuts a link asks for it here. At the end nothing may be left on any host. Other options go to soak_real (--help)."""
import argparse
import contextlib
import ctypes
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import over_hosts
from over_hosts import hosts


def serve(network, end):
    """Cuts links for ranks: "2500 0>1 1>0" for so many ms, and "0" mends all. Each is answered once it is done."""
    until = None
    while True:
        ready, _, _ = select.select([end], [], [], None if until is None else max(0, until - time.monotonic()))
        asked = end.recv(4096).decode().split() if ready else ["0"]
        if not asked:
            return
        network.mend(set(network.broken))
        until = None
        if ways := [tuple(map(int, way.split(">"))) for way in asked[1:]]:
            network.cut(ways)
            until = time.monotonic() + int(asked[0]) / 1000
        if ready:
            end.send(b"done")


def run_real(options, networks):
    """Its exit code. It ends with this process."""
    libc, words, inherited = ctypes.CDLL(None), [], []
    for network in networks:
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=serve, args=(network, own), daemon=True).start()
        inherited.append(its)
        words += ["--on", f"{network.name('')},{hosts.address(0)},{its.fileno()}"]
    command = [options.build / "tests/simulate/real/soak_real", "--hosts", str(options.hosts), *words, *options.others]
    process = subprocess.Popen(command, pass_fds=[end.fileno() for end in inherited],
                               preexec_fn=lambda: libc.prctl(hosts.PR_SET_PDEATHSIG, signal.SIGKILL))
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()


def soak(options):
    with contextlib.ExitStack() as stack:
        networks = [stack.enter_context(over_hosts.Hosts(options.hosts)) for _ in range(options.jobs)]
        code = run_real(options, networks)
        left = [what for network in networks for what in over_hosts.Leftovers(network, options.hosts).after(5)]
        for what in left:
            print(f"left behind: {what}")
        return code or (1 if left else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=over_hosts.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="2 or more")
    parser.add_argument("--jobs", type=int, default=8, help="scripts at a time (8)")
    options, options.others = parser.parse_known_args()
    if not 2 <= options.hosts <= 64:
        parser.error(f"--hosts {options.hosts}: from 2 to 64")
    return over_hosts.run(soak, options)


if __name__ == "__main__":
    sys.exit(main())
