"""What pip asks for the version of the wheel: the project's, and which torch its backend is built for, if any."""
import importlib.metadata
import pathlib
import re
import site
import sysconfig


def dynamic_metadata(field, settings):
    cmake = (pathlib.Path(__file__).parent.parent / "CMakeLists.txt").read_text()
    version = re.search(r"^project\(tutti VERSION (\S+)", cmake, re.MULTILINE)[1]
    torch = torch_version()
    return f"{version}+torch{torch}" if torch else version


def torch_version():
    """"2.15", of the environment that pip installs into: what is built in isolation cannot import it. cmake/python.cmake looks at
    the same places."""
    where = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    for found in importlib.metadata.distributions(name="torch", path=where):
        return ".".join(found.version.split(".")[:2])
    return None
