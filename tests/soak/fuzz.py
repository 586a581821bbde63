#!/usr/bin/env python3
"""Soak `fuzz`: libFuzzer makes inputs for every parser of bytes from outside (tests/fuzz), under the sanitizers for addresses and
undefined behaviour; none may crash one, hold it up for 10 s, or make it take memory for what has only been announced.
Each parser's figures say by which commit, when and with which seed it was run; those of parsers that are left out (--only) stay."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import over_hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
MOST_MIB = 16  # taken at once
# The run-times of clang 14 need address-space randomisation off on newer kernels.
PLAINLY = ["setarch", "-R"] if subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode == 0 else []


class Fuzzing:
    def __init__(self, options):
        self.options, self.parsers, self.lock = options, {}, threading.Lock()
        machine = over_hosts.machine("fuzz")
        self.run_of_it = {key: machine[key] for key in ("commit", "date", "cpu", "cores", "load")} | {"seed": options.seed}
        self.names = sorted(path.name.removeprefix("fuzz_") for path in (options.build / "tests/fuzz").glob("fuzz_*"))
        if options.only:
            asked = set(options.only.split(","))
            if unknown := sorted(asked - set(self.names)):
                sys.exit(f"fuzz: --only {','.join(unknown)}: there are {', '.join(self.names)}")
            self.names = sorted(asked)

    def fuzz(self, name):
        """One parser for its time, from what was found before and the inputs of the tests."""
        grown, found = self.options.build / "corpus" / name, self.options.build / "found"
        for folder in (grown, found):
            folder.mkdir(parents=True, exist_ok=True)
        program = self.options.build / "tests/fuzz" / f"fuzz_{name}"
        command = [*PLAINLY, program, grown, CORPUS / name, f"-max_total_time={self.options.seconds}", "-timeout=10",
                   f"-malloc_limit_mb={MOST_MIB}", "-print_final_stats=1", f"-seed={self.options.seed}",
                   f"-artifact_prefix={found}/{name}-"]
        environment = dict(os.environ, ASAN_OPTIONS="detect_stack_use_after_return=1")
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                  timeout=self.options.seconds + 120)
            self.take(name, program, done.returncode, done.stdout)
        except subprocess.TimeoutExpired as late:
            self.take(name, program, -1, f"{late.stdout}\nfuzz: it did not end\n")

    def take(self, name, program, code, said):
        last = (re.findall(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)", said, re.M) or [("0", "0", "0")])[-1]
        executions = int((re.findall(r"executed_units: (\d+)", said) or ["0"])[-1])
        inputs = re.findall(r"Test unit written to (\S+)", said)
        right = code == 0 and executions > 0 and int(last[0]) > 0
        with self.lock:
            self.parsers[name] = {"executions": executions, "seconds": self.options.seconds, "edges": int(last[0]),
                                  "features": int(last[1]), "corpus": int(last[2]), "crashes": 0 if right else max(1, len(inputs)),
                                  **self.run_of_it}
            print(f"fuzz: {len(self.parsers)} of {len(self.names)}: {name}: {executions} inputs, {last[0]} edges, "
                  f"{'clean' if right else 'WRONG'}", file=sys.stderr)
            if not right:
                print("\n".join(said.splitlines()[-60:]), file=sys.stderr)
            for each in inputs:
                print(f"fuzz: once more: {program} {each}; mended, it belongs into {CORPUS.relative_to(ROOT)}/{name}", file=sys.stderr)

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.fuzz, self.names))
        crashes = sum(parser["crashes"] for parser in self.parsers.values())
        print(f"fuzz: {len(self.parsers)} parsers, {sum(parser['executions'] for parser in self.parsers.values())} inputs, "
              f"{crashes} crashes", file=sys.stderr)
        if self.options.out:
            self.options.out.write_text(json.dumps(merged(self.options.out, self.parsers), indent=2) + "\n")
        return 0 if self.parsers and crashes == 0 else 1


def merged(path, parsers):
    """The evidence in `path` with these parsers in it, less those that exist no more."""
    kept = json.loads(path.read_text())["parsers"] if path.exists() else {}
    together = {name: figures for name, figures in {**kept, **parsers}.items() if (ROOT / f"tests/fuzz/{name}.cc").exists()}
    return {"soak": "fuzz", "parsers": dict(sorted(together.items())), "executions": sum(each["executions"] for each in together.values()),
            "crashes": sum(each["crashes"] for each in together.values())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz", help="build folder of the preset fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each parser")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little") + 1)
    parser.add_argument("--only", help="parsers, with commas between")
    parser.add_argument("--out", type=pathlib.Path, help="JSON goes here")
    return Fuzzing(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
