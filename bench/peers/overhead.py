#!/usr/bin/env python3
"""What the backends gloo and mpi cost over their bare libraries, in one run. How: bench/peers/README.md.

  bench/peers/overhead.py                     the whole table, about two minutes
  bench/peers/overhead.py --libraries gloo --sizes 64K

`checked` and `unchecked` (TUTTI_CHECK=off) are Tutti's public call; `nonblocking` is TUTTI_MPI_MODE=nonblocking.
Ratios are medians over the rounds of one call's time to the bare library's in the same round.
"""
import argparse
import pathlib
import shutil
import statistics
import tempfile

import run

SLACK_US = 1.0  # what a call may cost besides its factor
# library: (what must hold where, factor)
AIMS = {
    "gloo": {"unchecked": lambda size: 1.05, "checked": lambda size: 2 if size < 1 << 20 else 1.05},
    "openmpi": {"checked": lambda size: 1.05},
    "mpich": {"checked": lambda size: 1.05},
}
MODES = ["unchecked", "checked", "nonblocking"]


def peer_of(library, mode):
    return f"tutti-{library}" + ("" if mode == "checked" else f"-{mode}")


def row_of(cell, library, mode):
    """The mode's median time and ratio, and whether the aim holds; None where it was not measured."""
    name = peer_of(library, mode)
    if name not in cell["rounds"][0]["us"]:
        return None
    rounds = [(r["us"][name], r["us"][library]) for r in cell["rounds"]]
    aim = AIMS[library].get(mode, lambda size: None)(cell["size"])
    small = cell["size"] < 1 << 20 and library == "gloo" and mode == "checked"
    slack = 0 if small else SLACK_US  # 2x stands without it
    return {"us": statistics.median(ours for ours, _ in rounds),
            "ratio": statistics.median(ours / bare for ours, bare in rounds),
            "aim": aim and f"{aim:g}x" + (" + 1 us" if slack else ""),
            "holds": aim and statistics.median((ours - slack) / bare for ours, bare in rounds) <= aim}


def shown(row):
    if row is None:
        return "-"
    text = f"{row['us']:.4g} ({row['ratio']:.2f}x)"
    return text if row["aim"] is None else f"{text} {'holds' if row['holds'] else 'MISSED'}: {row['aim']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=run.ROOT / "build" / "release", type=pathlib.Path, help="build folder")
    parser.add_argument("--n", default=2, type=int, help="ranks (2)")
    parser.add_argument("--sizes", default="8,64K,16M", help="bytes (8,64K,16M)")
    parser.add_argument("--libraries", default="gloo,openmpi,mpich")
    parser.add_argument("--rounds", default=41, type=int, help="per cell (41)")
    parser.add_argument("--json", default=run.ROOT / "docs" / "evidence" / "overhead.json", type=pathlib.Path)
    options = parser.parse_args()
    lock = run.hold_lock()
    sizes = [run.size_of(s) for s in options.sizes.split(",")]
    report = {"what": "all_reduce f32 sum in place through Tutti and by the bare library", **run.machine(), "n": options.n,
              "libraries": {}}
    print(f"{report['what']}, n = {options.n}; {report['cpu']}, {report['cores']} cores, load {report['load'][0]:.1f} at "
          f"the start; commit {report['commit']}, {report['date']}\n")
    print("| library | bytes | bare, us | " + " | ".join(MODES) + " |\n|---|---|---|" + "---|" * len(MODES))
    for library in options.libraries.split(","):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        peers, cells = [], []
        modes = MODES if library != "gloo" else MODES[:2]
        try:
            peers = run.start_peers([library, *(peer_of(library, mode) for mode in modes)], options.n, options.build.resolve(),
                                    folder, max(sizes))
            for peer in peers:
                peer.warm_up(min(sizes))
            for size in sizes if peers else []:
                cell = run.measure_cell(peers, size, options.rounds, lambda: run.probe(options.build))
                cell["rows"] = {mode: row_of(cell, library, mode) for mode in MODES}
                cells.append(cell)
                bare = statistics.median(r["us"][library] for r in cell["rounds"])
                print(f"| {library} | {run.size_name(size)}{'' if cell['steady'] else ' ~'} | {bare:.4g} | "
                      + " | ".join(shown(row) for row in cell["rows"].values()) + " |", flush=True)
        finally:
            for peer in peers:
                peer.stop()
            shutil.rmtree(folder, ignore_errors=True)
        report["libraries"][library] = cells
    run.write_report(report, options.json)
    del lock


if __name__ == "__main__":
    main()
