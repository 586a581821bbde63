#!/usr/bin/env python3
"""Builds and installs the wheel as users do, and tries what is in it where the checkout is gone.

    tests/python/wheel_test.py [--torch FOLDER] [--out FOLDER]

In an empty environment without torch, then in one with the torch of FOLDER (tools/python_torch.sh makes one): `pip install .`, the
command, the backend under torchrun and `tutti run`, what the wheel's libraries need from outside, and its size. pip needs a network.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 8 << 20
SYSTEM = r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so\.\d"
TORCH = r"lib(torch|torch_cpu|torch_python|c10)\.so"
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("tutti")
x = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {x.tolist()}", flush=True)
dist.destroy_process_group()
"""
EXPECTED = ["rank 0 of 2 has [3.0, 3.0, 3.0, 3.0]", "rank 1 of 2 has [3.0, 3.0, 3.0, 3.0]"]


def say(text):
    print(f"wheel: {text}", flush=True)


def run(*command, expect=0, **options):
    """What it says; the test ends where its exit code is another one."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, **options)
    if (done.returncode == 0) != (expect == 0):
        sys.exit(f"wheel: exit code {done.returncode} of {' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return done.stdout


def require(holds, what):
    if not holds:
        sys.exit(f"wheel: {what}")


class Environment:
    """A virtual environment; with `torch`, the packages of that one's are in it."""

    def __init__(self, folder, torch=None):
        self.folder = folder
        run(sys.executable, "-m", "venv", folder)
        if torch is None:
            return
        site = next(folder.glob("lib/python3*/site-packages"))
        for package in next(torch.glob("lib/python3*/site-packages")).iterdir():
            if not (site / package.name).exists():
                (site / package.name).symlink_to(package)

    def bin(self, name):
        return self.folder / "bin" / name

    def python(self, text, **options):
        return run(self.bin("python"), "-c", text, cwd="/", **options)

    def install(self, checkout, *options, expect=0):
        started = time.monotonic()
        text = run(self.bin("pip"), "install", "--disable-pip-version-check", "--no-deps", *options, checkout, expect=expect)
        say(f"pip install . in {self.folder.name}{', refused' if expect else ''}: {time.monotonic() - started:.0f} s")
        return text


def copy_of_checkout(folder):
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def check_without_torch(environment):
    environment.python("import tutti")
    said = environment.python("import tutti.torch", expect=1)
    require("there was no PyTorch where Tutti was built" in said, f"import tutti.torch says {said}")
    require(re.fullmatch(r"\d+\.\d+\.\d+", version_of(environment)), f"version {version_of(environment)}")
    said = run(environment.bin("tutti"), "run", "-n", "2", "--", "sh", "-c", "echo rank $RANK", cwd="/")
    require(sorted(re.findall(r"rank \d", said)) == ["rank 0", "rank 1"], f"tutti run says {said}")


def check_other_torch(environment, checkout, build):
    """No wheel says that it is for a torch that it does not serve."""
    site = next(environment.folder.glob("lib/python3*/site-packages"))
    for name, text in (("torch/__init__.py", ""), ("torch-2.14.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.14.0\n")):
        (site / name).parent.mkdir()
        (site / name).write_text(text)
    said = environment.install(checkout, *build, expect=1)
    require("c10d is unknown" in " ".join(said.split()) and "torch 2.14.0" in said, f"pip install beside torch 2.14 says {said[-2000:]}")


def version_of(environment):
    return environment.python("import importlib.metadata as m; print(m.version('tutti-distributed'))").strip()


def check_with_torch(environment, folder):
    require(re.fullmatch(r"\d+\.\d+\.\d+\+torch2\.15", version_of(environment)), f"version {version_of(environment)}")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE")}
    for command in (["torchrun", "--standalone", "--nproc-per-node=2"], ["tutti", "run", "-n", "2", "--", environment.bin("python")]):
        start = [environment.bin("python"), "-m", "torch.distributed.run"] if command[0] == "torchrun" else [environment.bin("tutti")]
        said = run(*start, *command[1:], program, cwd="/", env=plain)
        require(sorted(re.findall(r"rank \d of .*\]", said)) == EXPECTED, f"{command[0]} says {said}")


def check_contents(wheel, folder):
    """What its libraries need is beside them, in the system of every Linux, or torch's; and they look there alone."""
    require(wheel.stat().st_size <= MOST_BYTES, f"{wheel.name} has {wheel.stat().st_size} bytes, and may have {MOST_BYTES}")
    zipfile.ZipFile(wheel).extractall(folder)
    binaries = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    names = {path.name for path in binaries}
    require({"libtutti.so.0.1", "tutti"} <= names, f"{wheel.name} holds {sorted(names)}")
    for path in binaries:
        dynamic = run("readelf", "-d", path)
        for needed in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
            allowed = needed in names or re.fullmatch(SYSTEM, needed) or path.name.startswith("_backend") and re.fullmatch(TORCH, needed)
            require(allowed, f"{path.name} needs {needed}, which is not in the wheel")
        for paths in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic):
            require(all(each.startswith("$ORIGIN") for each in paths.split(":")), f"{path.name} looks in {paths}")
    say(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.2f} MiB, {', '.join(sorted(names))}")


def check_tag(environment, wheel):
    run(environment.bin("pip"), "install", "--disable-pip-version-check", "auditwheel")
    said = run(environment.bin("auditwheel"), "show", wheel)
    tag = re.search(r'"(manylinux_\w+)"', said)  # that torch's libraries are outside is known, and counts for no tag
    require(tag, f"auditwheel grants no tag: {said}")
    say(f"auditwheel grants {tag[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=pathlib.Path, help="a virtual environment with torch 2.15; without it that part is left out")
    parser.add_argument("--out", type=pathlib.Path, help="where the last wheel is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutti-wheel.") as work:
        work = pathlib.Path(work)
        checkout = copy_of_checkout(work / "checkout")
        build = ["-C", f"build-dir={checkout / 'build/wheel'}"]  # nothing is compiled twice
        bare = Environment(work / "bare")
        said = bare.install(checkout, *build, "-C", "cmake.define.TUTTI_WITH_PYTHON=ON", expect=1)
        require("was asked for and is off" in said, f"pip install with TUTTI_WITH_PYTHON=ON and no torch says {said[-2000:]}")
        check_other_torch(Environment(work / "another"), checkout, build)
        bare.install(checkout, *build)
        kept = work / "kept"
        where = options.torch and Environment(work / "with_torch", options.torch.resolve())
        if where:
            where.install(checkout, *build)
        last = where or bare
        run(last.bin("pip"), "wheel", "--disable-pip-version-check", "--no-deps", "-w", kept, *build, checkout)
        shutil.rmtree(checkout)
        check_without_torch(bare)
        if where:
            check_with_torch(where, work)
        wheel = next(kept.glob("*.whl"))
        check_contents(wheel, work / "contents")
        check_tag(bare, wheel)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            shutil.copy2(wheel, options.out)
    say("all held" if options.torch else "all held; --torch was not given, so that torch's part was left out")


if __name__ == "__main__":
    main()
