#!/usr/bin/env python3
"""Plants violations of each rule in a copy of the tree, each in a file of its own, and expects tools/tidy.py to name them."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Folder -> what to plant there and what tidy must say of it; or a file, which is replaced.
PLANTED = {
    "src/base": [
        ('#include "group/process_group.h"\n', "base may not include group"),
        ("void f() { ::poll(nullptr, 0, 0); }\n", "blocking call"),
        ("void f() { usleep(1); }\n", "blocking call"),
        ('const char* f() { return getenv("X"); }\n', "environment is read"),
        ("// " + "x" * 120 + "\n", "100 allowed"),
        ("// TO" + "DO: later\n", "work left"),
        ("// As src/base/nowhere.h says.\n", "does not exist"),
        ("void f() {\n" + "  g();\n" * 59 + "}\n", "a function of 61 lines"),
        ("class C {\n public:\n  C() : a_{1} {\n" + "    g();\n" * 59 + "  }\n  int a_;\n};\n", "a function of 61 lines"),
        (("int f() {\n" + "  g();\n" * 39 + "}\n\n") * 40, "1 % of the functions"),
    ],
    "src/base/comments": [
        ("// ---- a banner\n// -----------------\n", "a banner is one line"),
        ("/// Errors    kTimeout: who is missing, or\n/// range.\n", "begins at the margin"),
        ("/// Errors Every call throws\n///           kSystem.\n", "out of its column"),
        ("/// Does not overlap. Threads   No state.\n", "out of its column"),
        ("// A comment that was as long as a line may be until somebody added a word or two to it. In a\n// place, many\n"
         "// ranks meet.\n", "in the middle of a sentence"),
        ('const char* f() {\n  return "that a rank has died will be found late, "\n         "when "\n         "a timeout ends";\n}\n',
         "a string was cut"),
    ],
    "src/net": [("std::thread t;\n", "std::thread outside")],
    "src/group": [('#include "launch/job.h"\n', "group may not include launch")],
    "src/control": [
        ('#include "native/native.h"\n', "control may not include native"),
        ('#include "control/board/layout.h"\n', "the layout of the board"),
        ('#include "control/board/line.h"\n', "the layout of the board"),
        ('#include "control/board/own_line.h"\nauto f(Board& b) { return b.find_line(SlotIndex(0), 1)->entered.load(); }\n', "a line of the board"),
    ],
    "src/control/judge": [
        ('#include "control/host.h"\n', "control/judge may not include control"),
        ('#include "control/board/board.h"\n', "control/judge may not include control/board"),
        ('#include "net/fd.h"\n', "control/judge may not include net"),
        ("auto f() { return Clock::now(); }\n", "a judge or a vote knows no clock"),
        ("std::mutex mutex;\n", "a judge or a vote knows no clock"),
    ],
    "src/control/memory": [('#include "control/host.h"\n', "control/memory includes control, which includes control/memory")],
    "src/control/board": [('#include "control/membership.h"\n', "control/board may not include control")],
    "src/world.cc": [
        ('#include "launch/job.h"\n', "world may not include launch"),
        ('#include "launch/job.h"\n', "may include rendezvous, and does not"),
    ],
    "src/launch/CMakeLists.txt": [("target_sources(tutti_objects PRIVATE job.cc)\n", "no part of the library")],
    "cli": [('#include "kernels/kernels.h"\n', "cli may not include kernels")],
    "src/new_folder": [("int x;\n", "stands in no folder of the layout")],
    "docs": [
        ("[x](nowhere.md)\n", "does not exist"),
        ("`native/nowhere` does it, in `src/native`\n", "native/nowhere does not exist"),
        ("See tests/base/nowhere_test.cc.\n", "does not exist"),
    ],
    "docs/wire.md": [("## Between hosts (version 1)\n", "kWireVersion in src/control/hosts/hello.h is another version")],
}


def main(source):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        shutil.copytree(source, tree, ignore=shutil.ignore_patterns("build", "third_party", ".git", "__pycache__"))
        expected = []
        for place, cases in PLANTED.items():
            for number, (text, complaint) in enumerate(cases):
                name = place if place.endswith((".cc", ".txt", ".md")) else f"{place}/planted{number}.{'md' if place == 'docs' else 'cc'}"
                (tree / name).parent.mkdir(exist_ok=True)
                (tree / name).write_text(text)
                expected.append((name, complaint, text))
        done = subprocess.run([sys.executable, tree / "tools/tidy.py"], capture_output=True, text=True)
        lines = done.stdout.splitlines()
        for name, complaint, text in expected:
            if not any(line.startswith(name + ":") and complaint in line for line in lines):
                sys.exit(f"tidy did not report {complaint!r} for {text!r} in {name}:\n{done.stdout}")
        if done.returncode == 0:
            sys.exit("tidy complains and ends with 0")
    print(f"every rule fires ({len(expected)} planted)")


if __name__ == "__main__":
    main(sys.argv[1])
