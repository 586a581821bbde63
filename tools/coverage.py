#!/usr/bin/env python3
"""Line coverage of a build with TUTTI_COVERAGE, by folder, and branches where decisions are taken: control/judge.

    tools/coverage.py BUILD                    what its tests have run so far
    tools/coverage.py BUILD --missed FOLDER    the lines of a folder that none of them has run (or all branches of, in control/judge)

A process that is killed says nothing of what it ran: lines that only such ranks reach count as missed."""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
BRANCHES = ("control/judge",)
IMPLICIT = re.compile(r"\s*((struct|class)\b|\}$)")  # members and destructor calls that only the compiler has written


def read(notes):
    """What gcov says of one object. Without counts (nobody has linked it, or no program with it has ended) all of it is missed."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", notes.name], cwd=notes.parent,
                          capture_output=True, text=True)
    return [file for line in done.stdout.splitlines() if line.startswith("{") for file in json.loads(line)["files"]]


def collect(build):
    """file -> line -> how often; file -> (line, number of branches) -> how often each was taken. Exceptions are no branches. What
    is compiled twice with other options may have other branches: those are not added up."""
    lines = collections.defaultdict(collections.Counter)
    branches = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for files in pool.map(read, sorted(pathlib.Path(build).resolve().rglob("*.gcno"))):
            for file in files:
                name = os.path.relpath(file["file"], ROOT)
                if not name.startswith(("src/", "include/", "cli/")):
                    continue
                source = dict(enumerate((ROOT / name).read_text().splitlines(), 1))
                for line in file["lines"]:
                    if IMPLICIT.match(source.get(line["line_number"], "}")):
                        continue
                    lines[name][line["line_number"]] += line["count"]
                    taken = [branch["count"] for branch in line["branches"] if not branch["throw"]]
                    if taken or line["count"] > 0:
                        before = branches[name].get((line["line_number"], len(taken)), [0] * len(taken))
                        branches[name][line["line_number"], len(taken)] = [a + b for a, b in zip(before, taken)]
    return lines, branches


def folder_of(name):
    return str(pathlib.PurePath(name).parent).removeprefix("src/")


def share(counts):
    """"93.1 % of 1044"."""
    return f"{100 * hits(counts) / len(counts):5.1f} % of {len(counts):5}" if counts else "-"


def hits(counts):
    return sum(1 for count in counts if count > 0)


def branch_counts(of_file):
    """line -> how often each branch was taken, as the compilation has it in which most were."""
    share_of = lambda counts: hits(counts) / len(counts) if counts else 1
    best = {}
    for (line, _), counts in of_file.items():
        if line not in best or share_of(counts) > share_of(best[line]):
            best[line] = counts
    return best


def print_missed(folder, lines, branches):
    for name in sorted(name for name in lines if folder_of(name) == folder):
        text = (ROOT / name).read_text().splitlines()
        by_line = branch_counts(branches[name]) if folder in BRANCHES else {}
        for line, count in sorted(lines[name].items()):
            counts = by_line.get(line, [])
            if count == 0 or hits(counts) < len(counts):
                what = f"{hits(counts)} of {len(counts)} branches" if count > 0 else "missed"
                print(f"{name}:{line}: {what}: {text[line - 1].strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--missed", metavar="FOLDER")
    options = parser.parse_args()
    lines, branches = collect(options.build)
    if options.missed:
        print_missed(options.missed, lines, branches)
        return
    for folder in sorted({folder_of(name) for name in lines}):
        inside = [name for name in lines if folder_of(name) == folder]
        line = f"{folder:20} lines {share([count for name in inside for count in lines[name].values()])}"
        if folder in BRANCHES:
            line += f", branches {share([count for name in inside for counts in branch_counts(branches[name]).values() for count in counts])}"
        print(line)


if __name__ == "__main__":
    main()
