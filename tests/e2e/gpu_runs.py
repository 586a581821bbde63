#!/usr/bin/env python3
"""What tools/gpu.py says of programs that pass, fail, skip, crash and hang: scripts that behave as GoogleTest's do."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = """#!/bin/sh
file=${1#--gtest_output=xml:}
echo '<testsuites><testsuite>%s</testsuite></testsuites>' >"$file"
exit %d
"""
CASE = '<testcase classname="Suite" name="%s" status="%s">%s</testcase>'
GOOD, BAD = CASE % ("Good", "run", ""), CASE % ("Bad", "run", '<failure message="x"/>')
SKIPPED = CASE % ("Skipped", "run", '<skipped message="a_test.cc:7&#x0A;one device&#x0A;"/>')
PROGRAMS = {  # script, seconds, passed, failed, skipped, what is said of it
    "passes": (REPORT % (GOOD + SKIPPED, 0), 20, 1, 0, 1, "1 skipped: one device"),
    "fails": (REPORT % (GOOD + BAD, 1), 20, 1, 1, 0, "failed: Suite.Bad"),
    "crashes": ("#!/bin/sh\necho '[ RUN      ] Suite.One'\necho '[       OK ] Suite.One (3 ms)'\necho '[ RUN      ] Suite.Two'\nkill -SEGV $$\n",
                20, 1, 1, 0, "ended with -11 in Suite.Two"),
    "hangs": ("#!/bin/sh\necho '[ RUN      ] Suite.One'\nsleep 600 & sleep 600\n", 1, 0, 1, 0, "not done after 1 s in Suite.One"),
    "ends_badly": (REPORT % (GOOD, 3), 20, 1, 1, 0, "ended with 3"),
}


def run(folder, *words):
    return subprocess.run([sys.executable, ROOT / "tools/gpu.py", "--build", folder, "--out", folder / "out", *words],
                          capture_output=True, text=True, timeout=100)


def check(good, what, job):
    if not good:
        sys.exit(f"{what}\nexit code {job.returncode}\n{job.stdout}{job.stderr}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for program, (script, *_) in PROGRAMS.items():
            (folder / program).write_text(script)
            (folder / program).chmod(0o755)
        (folder / "gpu_programs.txt").write_text("".join(f"{program} {words[1]} \n" for program, words in PROGRAMS.items()))
        job = run(folder, "--only", "passes")
        check(job.returncode == 0, "one that passes", job)
        job = run(folder, *(word for program in PROGRAMS if program != "passes" for word in ("--only", program)))
        check(job.returncode == 1, "the others do not", job)
        rows = {row["program"]: row for row in json.loads((folder / "out/gpu.json").read_text())["rows"]}
        text = (folder / "out/gpu.md").read_text()
        for program, (_, _, passed, failed, skipped, note) in PROGRAMS.items():
            row = rows.get(program, {})
            check([row.get(key) for key in ("passed", "failed", "skipped")] == [passed, failed, skipped], f"{program}: {row}", job)
            check(f"- {program}: {note}\n" in text, f"{program}: {note}\n{text}", job)
        check(re.search(r"^\| all \| 8 \| 4 \| 4 \| 1 \|", text, re.MULTILINE), f"the sum\n{text}", job)
        job = run(folder, "--budget", "0")
        check(job.returncode == 1 and "passes: not run, the 0 s are spent: --only passes" in job.stdout, "no time", job)
        job = run(folder, "--only", "nothing")
        check(job.returncode == 2 and "there are passes, fails" in job.stderr, "no such program", job)
        print("good")


if __name__ == "__main__":
    main()
