#!/usr/bin/env python3
"""Measures all_reduce and send/recv of two ranks on two hosts (network namespaces) beside Gloo and Open MPI over TCP and beside
iperf3, in one run. How: bench/peers/README.md. Needs root, iproute2, iperf3.

  bench/peers/net.py                          the whole table
  bench/peers/net.py --sizes 8,64M --rounds 5 some cells
  bench/peers/net.py --rate 1gbit             with links of that rate

send/recv: half of the time of a message there and back.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import run

sys.path.insert(0, str(run.ROOT / "tools"))
import hosts  # noqa: E402

SIZES = "8,64,1K,8K,64K,256K,1M,4M,16M,64M"
OPERATIONS = {"all_reduce": None, "send/recv": [-1]}  # the algorithms that workers are asked for; None: their own
# What Open MPI calls in place of ssh: the address of a host, and a command.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec {space}$((${{host##*.}} - 1)) unshare -u sh -c 'hostname "host-$0"; exec sh -c "$1"' "$host" "$*"
"""


class Iperf:
    """One stream from the first host to the second."""

    def __init__(self, network):
        self.client = ["ip", "netns", "exec", network.name(0), "iperf3", "-c", hosts.address(1), "-J", "-t"]
        self.server = subprocess.Popen(["ip", "netns", "exec", network.name(1), "iperf3", "-s"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)  # it reports clients that were ended

    def gigabytes_per_s(self, seconds=2):
        done = subprocess.run([*self.client, str(seconds)], capture_output=True, text=True)
        return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9

    def stop(self):
        self.server.kill()
        self.server.wait()


def start_peers(network, wanted, build, folder, largest):
    space = network.name("")
    agent = folder / "agent"
    agent.write_text(AGENT.format(space=space))
    agent.chmod(0o700)
    there = ["ip", "netns", "exec", space + "{rank}"]
    tail = ["{pipes}", largest]
    tcp = [word for name, value in (("btl", "tcp,self"), ("pml", "ob1"), ("btl_tcp_if_include", "eth0"), ("oob_tcp_if_include", "eth0"),
                                    ("plm_rsh_agent", agent)) for word in ("--mca", name, value)]
    addresses = [hosts.address(0), hosts.address(1)]
    by_hand = {"RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": addresses[0], "MASTER_PORT": "29500"}
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    (folder / "store").mkdir()
    table = {
        "tutti": ("peer_tutti", lambda p: [*there, p, *tail], by_hand, True),
        "gloo": ("peer_gloo", lambda p: [*there, p, *tail, "{rank}", 2, folder / "store", "eth0"], {}, True),
        "openmpi": ("peer_openmpi", lambda p: ["ip", "netns", "exec", space + "0", "mpirun.openmpi", *tcp, "--bind-to", "none", "-n", 2,
                                               "--host", ",".join(f"{a}:1" for a in addresses), p, *tail], mpi, False),
    }
    peers = []
    for name in wanted:
        program, command, environment, per_rank = table[name]
        path = build / "bench" / "peers" / program
        if not path.exists():
            print(f"{name}: not built here, left out", file=sys.stderr)
            continue
        peers.append(run.Peer(name, 2, command(path), folder, environment, per_rank))
    return peers


def measure(network, options, build, sizes):
    """(cells by operation and size, names of the peers, GB/s of iperf3)."""
    cells, rates, names = {operation: {} for operation in OPERATIONS}, [], []
    starts = min(options.starts, options.rounds)
    for start in range(starts):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        peers, iperf = [], Iperf(network)
        try:
            peers = start_peers(network, options.peers.split(","), build, folder, max(sizes))
            names = [peer.name for peer in peers]
            own = {peer.name: peer.algorithms for peer in peers}
            for peer in peers:
                peer.warm_up(min(sizes))
            rounds = options.rounds * (start + 1) // starts - options.rounds * start // starts
            for operation, algorithms in OPERATIONS.items():
                for peer in peers:
                    peer.algorithms = algorithms or own[peer.name]
                for size in sizes:
                    cell = run.measure_cell(peers, size, rounds, lambda: run.probe(build))
                    kept = cells[operation].setdefault(size, {**cell, "rounds": [], "dropped": 0})
                    kept["rounds"] += cell["rounds"]
                    kept["dropped"] += cell["dropped"]
                rates.append(iperf.gigabytes_per_s())
            print(f"net: start {start + 1} of {starts} measured", file=sys.stderr)
        finally:
            iperf.stop()
            for peer in peers:
                peer.stop()
            shutil.rmtree(folder, ignore_errors=True)
    for operation, by_size in cells.items():
        for cell in by_size.values():
            cell["steady"] = cell["dropped"] <= options.rounds and len(cell["rounds"]) >= 7
            if operation == "send/recv":
                for entry in cell["rounds"]:
                    entry["us"] = {name: us / 2 for name, us in entry["us"].items()}
    return cells, names, rates


def shown(us):
    return f"{us:.3g}" if us < 1000 else f"{us:,.0f}"


def markdown(operation, by_size, names):
    others = [name for name in names if name != names[0]]
    lines = [f"### {operation}: microseconds (how many times {names[0]}'s; the least and the most)", "",
             f"| bytes | {names[0]} | GB/s | " + " | ".join(others) + " |", "|---|" + "---|" * (len(others) + 2)]
    for size, cell in by_size.items():
        s = cell["summary"] = run.summary(cell, names, names[0])
        row = [run.size_name(size) + ("" if cell["steady"] else " ~"), f"**{shown(s['us'][names[0]])}**", f"{size / s['us'][names[0]] / 1e3:.3g}"]
        row += [f"{shown(s['us'][name])} ({s['ratio'][name][0]:.2f}x; {s['ratio'][name][1]:.2f}, {s['ratio'][name][2]:.2f})" for name in others]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes ({SIZES})")
    parser.add_argument("--peers", default="tutti,gloo,openmpi", help="the first is the subject")
    parser.add_argument("--rate", default="", help="what each host can send: 1gbit (as fast as it goes)")
    parser.add_argument("--rounds", default=9, type=int, help="per cell (9; under 7 a cell counts as unsteady)")
    parser.add_argument("--starts", default=3, type=int, help="of all peers, among which the rounds are divided (3)")
    parser.add_argument("--json", default=run.ROOT / "docs" / "evidence" / "net.json", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("iperf3"):
        sys.exit("net: needs root (network namespaces) and iperf3")
    lock = run.hold_lock()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hosts.interrupt)
    hosts.remove_stale()
    sizes = [run.size_of(size) for size in options.sizes.split(",")]
    report = {"what": "two ranks on two hosts (network namespaces): all_reduce f32 sum in place, send/recv", "rate": options.rate or "none",
              **run.machine()}
    print(f"{report['what']}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f} at the start; "
          f"commit {report['commit']}, {report['date']}")
    network = hosts.Network()
    try:
        network.build(2, options.rate)
        cells, names, rates = measure(network, options, options.build.resolve(), sizes)
    finally:
        network.take_down()
    for operation, by_size in cells.items():
        print("\n" + markdown(operation, by_size, names), flush=True)
    conclude(report, cells, names, rates, max(sizes))
    run.write_report(report, options.json)
    del lock


def conclude(report, cells, names, rates, largest):
    """What the aims are about: nowhere slower than Gloo, large messages beside iperf3."""
    own = largest / cells["send/recv"][largest]["summary"]["us"][names[0]] / 1e3
    iperf = statistics.median(rates)
    print(f"\niperf3: {iperf:.2f} GB/s (median of {len(rates)}, from {min(rates):.2f} to {max(rates):.2f}); "
          f"send/recv of {run.size_name(largest)}: {own:.2f} GB/s, {100 * own / iperf:.0f} %")
    slower = [f"{operation} of {run.size_name(size)} ({cell['summary']['ratio']['gloo'][0]:.2f}x)" for operation, by_size in cells.items()
              for size, cell in by_size.items() if "gloo" in names and cell["summary"]["ratio"]["gloo"][0] < 1]
    print(f"Gloo is faster in: {', '.join(slower) or 'no cell'}")
    report.update(iperf3_gb_per_s=rates, send_recv_share_of_iperf3=own / iperf, gloo_faster_in=slower,
                  tables=[{"operation": operation, "cells": list(by_size.values())} for operation, by_size in cells.items()])


if __name__ == "__main__":
    main()
