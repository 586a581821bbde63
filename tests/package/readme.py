#!/usr/bin/env python3
"""Runs every shell and C++ block of README.md, in order: shell blocks in the checkout, C++ blocks against an installed prefix.
Builds a copy of a training example and of what it shares with others against that prefix as well."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a finished build with libtorch")
    options = parser.parse_args()
    text = (options.source / "README.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)
    unknown = {kind for kind, _ in blocks} - {"sh", "cpp"}
    if unknown or len(blocks) < 4:
        sys.exit(f"readme: {len(blocks)} blocks, kinds nobody runs: {unknown}")
    with tempfile.TemporaryDirectory() as home:
        prefix = pathlib.Path(home) / "prefix"
        cache = os.environ.get("CCACHE_DIR", str(pathlib.Path.home() / ".cache/ccache"))  # not below the new HOME
        environment = dict(os.environ, HOME=home, CCACHE_DIR=cache)
        run(["cmake", "--install", options.build, "--prefix", prefix], environment, options.source)
        check_libraries(prefix, environment)
        build_example(options.source / "examples", pathlib.Path(home) / "copy", prefix, environment)
        for number, (kind, block) in enumerate(blocks):
            print(f"readme: block {number + 1} ({kind})", flush=True)
            if kind == "sh":
                run(["bash", "-euo", "pipefail", "-c", block], environment, options.source)
            else:
                run_program(block, pathlib.Path(home) / f"block{number}", prefix, environment)


def check_libraries(prefix, environment):
    """Each installed library finds what it needs by itself: the linker drops those that a program does not name."""
    alone = {name: value for name, value in environment.items() if name != "LD_LIBRARY_PATH"}
    for library in sorted(prefix.rglob("libtutti*.so")):
        needs = subprocess.run(["ldd", library], env=alone, capture_output=True, text=True).stdout
        missing = [line.strip() for line in needs.splitlines() if "not found" in line]
        if missing:
            sys.exit(f"readme: {library.name} does not find {missing}")


def build_example(examples, copy, prefix, environment):
    """Each of those with a shared part configures by itself; one is built."""
    shutil.copytree(examples / "common", copy / "common")
    for name in ("07_fashion_mnist", "08_resnet", "09_transformer"):
        shutil.copytree(examples / name, copy / name)
        run(["cmake", "-S", copy / name, "-B", copy / name / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"], environment, copy)
    run(["cmake", "--build", copy / name / "build"], environment, copy)
    run([copy / name / "build/transformer", "--help"], environment, copy)


def run_program(block, folder, prefix, environment):
    components = "COMPONENTS torch" if "tutti/torch.h" in block else ""
    target = "tutti::torch" if components else "tutti::tutti"
    folder.mkdir()
    (folder / "main.cc").write_text(block)
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(block CXX)\n"
        f"find_package(tutti 0.1 REQUIRED {components})\nadd_executable(block main.cc)\n"
        f"target_link_libraries(block PRIVATE {target})\n")
    run(["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], environment, folder)
    run(["cmake", "--build", folder / "build"], environment, folder)
    run([prefix / "bin/tutti", "run", "-n", "2", folder / "build/block"], environment, folder)


def run(command, environment, cwd):
    done = subprocess.run(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"readme: exit code {done.returncode} of {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
