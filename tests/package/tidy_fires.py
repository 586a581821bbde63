#!/usr/bin/env python3
"""Plants one violation of each rule in a copy of the tree and expects tools/tidy.py to name it."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

PLANTED = {
    "src/base/planted.cc": [
        ('#include "group/process_group.h"\n', "base may not include group"),
        ("void f() { ::poll(nullptr, 0, 0); }\n", "blocking call"),
        ("void f() { usleep(1); }\n", "blocking call"),
        ('const char* f() { return getenv("X"); }\n', "environment is read"),
        ("// " + "x" * 120 + "\n", "100 allowed"),
        ("// TO" + "DO: later\n", "work left"),
    ],
    "include/tutti/log.h": [
        ("// ---- a banner\n// -----------------\n", "a banner is one line"),
        ("/// Errors    kTimeout: who is missing, or\n/// range.\n", "begins at the margin"),
        ("/// Errors Every call throws\n///           kSystem.\n", "out of its column"),
        ("/// Does not overlap. Threads   No state.\n", "out of its column"),
        ("// A comment that was as long as a line may be until somebody added a word or two to it. In a\n// place, many\n"
         "// ranks meet.\n", "in the middle of a sentence"),
        ('const char* f() {\n  return "that a rank has died will be found late, "\n         "when "\n         "a timeout ends";\n}\n',
         "a string was cut"),
    ],
    "src/net/planted.cc": [("std::thread t;\n", "std::thread outside")],
    "src/group/planted.cc": [('#include "launch/job.h"\n', "group may not include launch")],
    "src/control/planted.cc": [
        ('#include "native/native.h"\n', "control may not include native"),
        ('#include "control/board/layout.h"\n', "the layout of the board"),
    ],
    "src/control/judge/planted.cc": [
        ('#include "control/host.h"\n', "control/judge may not include control"),
        ('#include "control/board/board.h"\n', "control/judge may not include control/board"),
        ('#include "net/fd.h"\n', "control/judge may not include net"),
        ("auto f() { return Clock::now(); }\n", "a judge knows no clock"),
        ("std::mutex mutex;\n", "a judge knows no clock"),
    ],
    "src/control/board/planted.cc": [('#include "control/membership.h"\n', "control/board may not include control")],
    "src/world.cc": [('#include "launch/job.h"\n', "world may not include launch")],
    "cli/planted.cc": [('#include "native/native.h"\n', "cli may not include native")],
    "src/new_folder/planted.cc": [("int x;\n", "stands in no folder of the layout")],
    "docs/planted.md": [("[x](nowhere.md)\n", "does not exist")],
}


def main(source):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        shutil.copytree(source, tree, ignore=shutil.ignore_patterns("build", "third_party", ".git"))
        tidy = [sys.executable, tree / "tools/tidy.py"]
        for name, cases in PLANTED.items():
            for text, expected in cases:
                path = tree / name
                path.parent.mkdir(parents=True, exist_ok=True)
                before = path.read_text() if path.exists() else None
                path.write_text(text)
                done = subprocess.run(tidy, capture_output=True, text=True)
                path.unlink() if before is None else path.write_text(before)
                if done.returncode == 0 or not any(line.startswith(name) and expected in line for line in done.stdout.splitlines()):
                    sys.exit(f"tidy did not report {expected!r} for {text!r} in {name}:\n{done.stdout}")
    print("every rule fires")


if __name__ == "__main__":
    main(sys.argv[1])
