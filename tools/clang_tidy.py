#!/usr/bin/env python3
"""Runs clang-tidy over the project's own sources of a build, as many at a time as there are cores."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="folder with compile_commands.json")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    options = parser.parse_args()
    commands = json.loads((pathlib.Path(options.build) / "compile_commands.json").read_text())
    sources = sorted({entry["file"] for entry in commands})
    sources = [s for s in sources if s.startswith((f"{ROOT}/src/", f"{ROOT}/cli/")) and options.only in s]
    if not sources:
        sys.exit("clang_tidy: no source matches")

    def check(source):
        command = ["clang-tidy-14", "--quiet", "-p", options.build, source]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode or "warning:" in done.stdout else ""

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [text for text in pool.map(check, sources) if text]
    print("\n".join(complaints), end="\n" if complaints else "")
    print(f"clang-tidy: {len(sources)} files, {len(complaints)} with complaints", file=sys.stderr)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
