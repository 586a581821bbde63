"""What pip asks for the version of the wheel: the project's, and which torch its backend is built for, if any."""
import os
import pathlib
import re
import subprocess
import sys

FIND = "import importlib.metadata as m; print(*[d.version for d in m.distributions(name='torch')][:1])"


def dynamic_metadata(field, settings):
    cmake = (pathlib.Path(__file__).parent.parent / "CMakeLists.txt").read_text()
    version = re.search(r"^project\(tutti VERSION (\S+)", cmake, re.MULTILINE)[1]
    torch = torch_version()
    return f"{version}+torch{torch}" if torch else version


def torch_version():
    """"2.15", of the environment that pip installs into: what is built in isolation cannot import it. cmake/python.cmake asks in
    the same way."""
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    found = subprocess.run([sys.executable, "-c", FIND], env=outside, capture_output=True, text=True, check=True).stdout.strip()
    return ".".join(found.split(".")[:2]) or None
