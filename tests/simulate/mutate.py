#!/usr/bin/env python3
"""Inverts each condition of the judges in turn, and expects a test or the simulator to notice.

    tests/simulate/mutate.py [--build build/release] [--rounds 10000] [--out FILE] [FILE...]

FILE: sources under src/control/judge; all without. A line per condition: noticed by the judges' own tests, or by the
simulator within that many rounds, or SURVIVED. Survivors that are argued below need not be noticed. Exit code 1: one
without an argument survived.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/soak"))
import over_hosts  # noqa: E402

JUDGES = ROOT / "src/control/judge"
SIMULATOR = "tests/simulate/soak_simulate"
TESTS = [f"tests/control/control_judge_{name}_test" for name in ("look", "group", "deadlock")]

# file, condition as it stands -> why nobody need notice that it is inverted
ARGUED = {
    ("deadlock.cc", "if (next >= facts.size() || next == facts.rank) return {};"):
        "a member that is garbage is looked up then, past the end of the facts: AddressSanitizer's to notice "
        "(JudgeAwaited.NobodyWhereThatIsNotKnown)",
}

OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "&&": "||", "||": "&&"}


def closing(text, opening):
    """Index of the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError("a bracket is not closed")


def without_comments(text):
    return re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)


def conditions(text):
    """(line, what stands there, begin, end, what is put there) of every condition in a source."""
    code = without_comments(text)
    found = []

    def add(begin, end, instead):
        line = code.count("\n", 0, begin) + 1
        found.append((line, text.splitlines()[line - 1].strip(), begin, end, instead))

    whole = set()
    for match in re.finditer(r"\bif \(", code):
        begin, end = match.end(), closing(code, match.end() - 1)
        inner = code[begin:end]
        declared = re.match(r"(?s)\s*const .*?; ", inner)
        if declared:
            begin += declared.end()
        elif re.match(r"\s*(const|auto) ", inner):
            continue  # a declaration: what it declares is tested elsewhere
        add(begin, end, f"!({text[begin:end]})")
        whole.add(begin)
    for match in re.finditer(r" (==|!=|<=|>=|<|>|&&|\|\|) ", code):
        begin = max((b for b in whole if b <= match.start()), default=-1)
        alone = begin >= 0 and match.start() < closing(code, code.rindex("(", 0, begin)) and \
            not re.search(r"&&|\|\|", code[begin:closing(code, code.rindex("(", 0, begin))])
        if alone and match[1] not in ("&&", "||"):
            continue  # the same as the whole condition inverted
        add(match.start(1), match.end(1), OPPOSITE[match[1]])
    for match in re.finditer(r"(?<=return )!(?=\w)|(?<=&& )!(?=\w)|(?<=\|\| )!(?=\w)", code):
        add(match.start(), match.end(), "")
    for match in re.finditer(r"(?<= )(\w+(?:\.\w+)*) \?(?= )", code):
        add(match.start(1), match.end(1), f"!{match[1]}")
    return sorted(found)


class Build:
    """Compiles one source anew and links programs with it."""

    def __init__(self, path):
        self.path = path
        self.commands = json.loads((path / "compile_commands.json").read_text())

    def objects(self, source):
        """Of the product and of the simulator."""
        for entry in self.commands:
            if pathlib.Path(entry["file"]).resolve() == source:
                yield entry["command"], entry["directory"]

    def program(self, folder, source, changed, target):
        """The path of `target` with `changed` in the place of `source`; None if that does not compile."""
        link = subprocess.run(["ninja", "-t", "commands", "-s", target], cwd=self.path, check=True, capture_output=True,
                              text=True).stdout.strip().split("&& ")
        line = next(part for part in link if f" -o {target}" in part)
        for command, directory in self.objects(source):
            own = re.search(r" -o (\S+)", command).group(1)
            if f" {own} " not in line:
                continue
            new = command.replace(f" -o {own}", f" -o {folder}/changed.o").replace(f" -c {source}", f" -w -c {changed}")
            new = re.sub(r" -M\S+( \S+\.(?:d|o))?(?= )", "", new.replace("-Werror", ""))
            if subprocess.run(new, shell=True, cwd=directory, capture_output=True).returncode != 0:
                return None
            line = line.replace(f" {own} ", f" {folder}/changed.o ")
        program = folder / pathlib.Path(target).name
        subprocess.run(line.replace(f"-o {target}", f"-o {program}"), shell=True, check=True, cwd=self.path)
        return program


def notices(program, arguments, seconds):
    try:
        return subprocess.run([program, *arguments], capture_output=True, timeout=seconds).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def judge(build, source, text, condition, rounds):
    """Who notices that `condition` is inverted: "test", "simulator", "compiler" or "" for nobody."""
    _, _, begin, end, instead = condition
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        changed = folder / "changed.cc"
        changed.write_text(text[:begin] + instead + text[end:])
        for target in TESTS:
            program = build.program(folder, source, changed, target)
            if program is None:
                return "compiler"
            if notices(program, ["--gtest_brief=1"], 60):
                return "test"
        program = build.program(folder, source, changed, SIMULATOR)
        script = ["--script", str(folder / "violation.json")]
        return "simulator" if notices(program, ["--rounds", str(rounds), "--seed", "1", *script], 600) else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=10000)
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file with what was found")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    build = Build(options.build.resolve())
    began = time.monotonic()
    counts, survivors = {}, []
    sources = [source for source in sorted(JUDGES.glob("*.cc")) if not options.files or source.name in options.files]
    mutants = [(source, text, condition) for source in sources for text in [source.read_text()] for condition in conditions(text)]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        judged = pool.map(lambda mutant: judge(build, *mutant, options.rounds), mutants)
        for (source, text, (line, stands, begin, end, instead)), who in zip(mutants, judged):
            argued = ARGUED.get((source.name, stands), "")
            counts[who or "nobody"] = counts.get(who or "nobody", 0) + 1
            if not who:
                survivors.append({"file": source.name, "line": line, "condition": stands,
                                  "inverted": f"{text[begin:end]} -> {instead}", "argued": argued})
            print(f"{who or ('survived' if argued else 'SURVIVED'):10} {source.name}:{line}: {stands[:90]}"
                  f"{'' if who else '  [' + instead + ']'}{': ' + argued if argued and not who else ''}", flush=True)
    seconds = time.monotonic() - began
    print(f"{sum(counts.values())} conditions inverted in {seconds:.0f} s, noticed by: {counts}")
    if options.out and not options.files:  # of some: the evidence of all stays
        options.out.write_text(json.dumps({**over_hosts.machine("mutate"), "conditions": sum(counts.values()), "noticed by": counts, "seconds": round(seconds),
                                           "rounds": options.rounds, "survivors": survivors}, indent=1) + "\n")
    return 1 if any(not survivor["argued"] for survivor in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
