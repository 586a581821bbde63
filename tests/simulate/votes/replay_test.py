#!/usr/bin/env python3
"""Scripts of votes: a good one runs, and what is cut, of another version or makes no sense is refused in words.

In found/ are those that once violated something, shrunk.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

GOOD = {
    "version": 1, "votes": True, "seed": 7, "processes": [1, 2, 1], "usual_delay_ns": 200000, "longest_delay_ns": 200000,
    "kept": 256, "wanted": [{"hosts": [1, 2], "at_ns": 5000000}],
    "faults": [{"kind": "cut", "host": 1, "other": 2, "side": 0, "at_ns": 4000000, "effects": 0, "lasts_ns": 900000000}],
}


def changed(change):
    script = json.loads(json.dumps(GOOD))
    change(script)
    return json.dumps(script)


CASES = [
    (json.dumps(GOOD), 0, "all held"),
    (json.dumps(GOOD)[:100], 2, "parse error"),
    ("", 2, "parse error"),
    (changed(lambda s: s.update(version=2)), 2, "version 2"),
    (changed(lambda s: s.pop("votes")), 2, "not about votes"),
    (changed(lambda s: s.pop("seed")), 2, "seed"),
    (changed(lambda s: s.update(processes=[1])), 2, "from 2 to 8 hosts"),
    (changed(lambda s: s.update(processes=[1] * 9)), 2, "from 2 to 8 hosts"),
    (changed(lambda s: s.update(processes=[1, 0, 1])), 2, "1 to 4 processes"),
    (changed(lambda s: s.update(kept=0)), 2, "at least 1 entry"),
    (changed(lambda s: s["wanted"][0].update(hosts=[3])), 2, "a host that is not there"),
    (changed(lambda s: s["faults"][0].update(other=1)), 2, "a host that is not there"),
    (changed(lambda s: s["faults"][0].update(host=-1)), 2, "a host that is not there"),
    (changed(lambda s: s["faults"][0].update(at_ns=-1)), 2, "negative"),
    (changed(lambda s: s["faults"][0].update(kind="flood")), 2, "no fault 'flood'"),
]


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "script.json"
        for text, code, words in CASES:
            path.write_text(text)
            done = subprocess.run([program, "--replay", path], capture_output=True, text=True)
            said = done.stdout + done.stderr
            if done.returncode != code or words not in said:
                sys.exit(f"expected {code} and '{words}', got {done.returncode} and:\n{said}\nfor {text}")
    found = sorted((pathlib.Path(__file__).parent / "found").glob("*.json"))
    if not found:
        sys.exit("found/ is empty")
    for path in found:
        done = subprocess.run([program, "--replay", path], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{path}: {done.stdout}{done.stderr}")
    print(f"{len(CASES) + len(found)} scripts")


if __name__ == "__main__":
    main(sys.argv[1])
