#!/usr/bin/env python3
"""Scripts of the simulator: a good one runs, and what is cut, of another version or makes no sense is refused in words.

In found/ are those that once violated something, shrunk.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

GOOD = {
    "version": 3, "seed": 7, "put_aside": 0.05, "hiccup": 0, "timeout_ms": 200, "patience_ms": 0, "cores": 1,
    "processes": [0, 1, 1], "hosts": [], "delay_us": 1,
    "goes_on": [False, False, True], "keeps": [True, False, False],
    "groups": [{"of": -1, "ranks": [0, 1, 2]}, {"of": 0, "ranks": [2, 0]}],
    "steps": [{"do": "make", "group": 1},
              {"do": "collective", "group": 1, "op": "broadcast", "root": 0, "count": 20000, "how": "callback"},
              {"do": "message", "group": 1, "from": 1, "to": 0, "tag": 3, "buffered": False, "any": True, "count": 5000,
               "how": "work", "how_to": "thread", "cancel_after_us": 0}],
    "faults": [{"kind": "die", "who": 1, "at": 900, "lasts_ns": 0, "other": 0, "one_way": False}],
}


def changed(change):
    script = json.loads(json.dumps(GOOD))
    change(script)
    return json.dumps(script)


CASES = [
    (json.dumps(GOOD), 0, "all held"),
    (json.dumps(GOOD)[:100], 2, "parse error"),
    ("", 2, "parse error"),
    (changed(lambda s: s.update(version=1)), 2, "version 1"),
    (changed(lambda s: s.pop("seed")), 2, "seed"),
    (changed(lambda s: s.update(processes=[])), 2, "from 1 to 4096 ranks"),
    (changed(lambda s: s.update(processes=list(range(257)), goes_on=[True] * 257, keeps=[True] * 257)), 2,
     "a host has at most 256 ranks"),
    (changed(lambda s: s.update(processes=[0, 2, 2])), 2, "processes are numbered"),
    (changed(lambda s: s["groups"][1].update(ranks=[2, 2])), 2, "group 1 has a rank twice"),
    (changed(lambda s: s["groups"][1].update(ranks=[])), 2, "group 1 has no ranks"),
    (changed(lambda s: s["groups"][1].update(ranks=[3])), 2, "a rank that the world has not"),
    (changed(lambda s: s["groups"][1].update(of=1)), 2, "group 1 is made of group 1"),
    (changed(lambda s: s["steps"][0].update(do="dance")), 2, "'dance' is none of collective"),
    (changed(lambda s: s["steps"][1].update(group=9)), 2, "group 9, which there is not"),
    (changed(lambda s: s["steps"][1].update(root=2)), 2, "a rank that its group has not"),
    (changed(lambda s: s["steps"][1].update(op="dance")), 2, "'dance' is no collective"),
    (changed(lambda s: s["steps"][1].update(op="barrier")), 2, "step 1 needs a root, or none"),
    (changed(lambda s: s["steps"][1].update(how="later")), 2, "'later' is none of waits, work"),
    (changed(lambda s: s["steps"][1].update(count=-1)), 2, "step 1 moves -1 floats"),
    (changed(lambda s: s["steps"][2].update(count=0)), 2, "step 2 moves 0 floats"),
    (changed(lambda s: s["steps"][2].update(to=1)), 2, "step 2 is a message to its sender"),
    (changed(lambda s: s["steps"][2].pop("any")), 2, "any"),
    (changed(lambda s: s.update(cores=0)), 2, "a machine has cores"),
    (changed(lambda s: s["faults"][0].update(who=2)), 2, "befalls 2, who is not there"),
    (changed(lambda s: s["faults"][0].update(pinned=True, who=2, at=1)), 0, "all held"),
    (changed(lambda s: s["faults"][0].update(pinned=True, who=3, at=1)), 2, "befalls 3, who is not there"),
    (changed(lambda s: s.update(hosts=[0, 1])), 0, "all held"),
    (changed(lambda s: (s.update(hosts=[0, 1]), s["faults"][0].update(kind="cut", who=1, other=0))), 0, "all held"),
    (changed(lambda s: (s.update(hosts=[0, 1]), s["faults"][0].update(kind="lose", who=1))), 0, "all held"),
    (changed(lambda s: (s.update(hosts=[0, 1]), s["faults"][0].update(kind="freeze", who=1, lasts_ns=10**8))), 0, "all held"),
    (changed(lambda s: s.update(hosts=[0])), 2, "hosts has a value for each process"),
    (changed(lambda s: s.update(hosts=[1, 1])), 2, "hosts are numbered"),
    (changed(lambda s: s.update(delay_us=0)), 2, "takes its time"),
    (changed(lambda s: s["faults"][0].update(kind="lose", who=0)), 2, "a fault of a host where there is one"),
    (changed(lambda s: (s.update(hosts=[0, 1]), s["faults"][0].update(kind="lose", who=2))), 2, "befalls 2, who is not there"),
    (changed(lambda s: (s.update(hosts=[0, 1]), s["faults"][0].update(kind="cut", who=1, other=1))), 2, "host 1 is cut from 1"),
    (changed(lambda s: s["faults"][0].update(kind="flood")), 2, "'flood' is none of none, die"),
]

ARGUMENTS = [
    ["--rounds", "-1"], ["--rounds", "0"], ["--rounds", "99999999999999999999999"], ["--seed", "18446744073709551615"], ["--seed", "-1"],
    ["--jobs", "0"], ["--jobs", "-1"], ["--ranks", "-5"], ["--ranks", "5000"], ["--hosts", "99"], ["--out", "/nonexistent/figures.json"],
]


def main(simulator):
    for arguments in ARGUMENTS:
        done = subprocess.run([simulator, "--rounds", "1", *arguments] if arguments[0] != "--rounds" else [simulator, *arguments],
                              capture_output=True, text=True)
        if done.returncode <= 0 or arguments[0] not in done.stdout + done.stderr:
            sys.exit(f"{arguments} were taken ({done.returncode}): {done.stdout}{done.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "script.json"
        for text, code, words in CASES:
            path.write_text(text)
            done = subprocess.run([simulator, "--replay", path], capture_output=True, text=True)
            said = done.stdout + done.stderr
            if done.returncode != code or words not in said:
                sys.exit(f"expected {code} and '{words}', got {done.returncode} and:\n{said}\nfor {text}")
        path.write_text("{")
        done = subprocess.run([simulator, "--expect", "--replay", path], capture_output=True, text=True)
        if done.returncode != 2 or "parse error" not in done.stderr:
            sys.exit(f"expected 2 and a parse error, got {done.returncode} and:\n{done.stdout}{done.stderr}")
    found = sorted((pathlib.Path(__file__).parent / "found").glob("*.json"))
    if not found:
        sys.exit("found/ is empty")
    for path in found:
        done = subprocess.run([simulator, "--replay", path], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{path}: {done.stdout}{done.stderr}")
    print(f"{len(CASES) + len(found)} scripts")


if __name__ == "__main__":
    main(sys.argv[1])
