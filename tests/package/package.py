#!/usr/bin/env python3
"""Builds and runs example 01 in the three ways a user would: find_package, pkg-config, add_subdirectory."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

EXAMPLE = "examples/01_one_to_many"
EXPECTED = ["worker_0 sent data to Rank 1", "worker_1 has received data from rank 0"]


def sh(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        print(f"$ {' '.join(map(str, command))}\n{done.stdout}")
        sys.exit(f"package: exit code {done.returncode}")
    return done.stdout


def run_example(tutti, program, environment, way):
    done = subprocess.run([tutti, "run", "-n", "2", "--", program], env=environment, text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    missing = [line for line in EXPECTED if line not in done.stdout]
    if done.returncode or missing:
        sys.exit(f"package: {way}: exit code {done.returncode}, missing {missing}\n{done.stdout}\n{done.stderr}")
    print(f"package: {way}: ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--linkage", choices=["shared", "static"], required=True)
    options = parser.parse_args()
    source, work = options.source, options.work
    shared = f"-DBUILD_SHARED_LIBS={'ON' if options.linkage == 'shared' else 'OFF'}"
    for folder in ("prefix", "user", "sub", "sub-build", "user-build"):
        shutil.rmtree(work / folder, ignore_errors=True)
    prefix = work / "prefix"
    # The flags of the release preset under ./dev test, so that ccache need not compile again.
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_WERROR=ON"]
    quiet = ["-DTUTTI_BUILD_TESTS=OFF", "-DTUTTI_BUILD_EXAMPLES=OFF", "-DTUTTI_BUILD_BENCH=OFF", "-DTUTTI_WITH_TORCH=OFF",
             "-DTUTTI_WITH_PYTHON=OFF"]
    sh(["cmake", "-S", source, "-B", work / "build", "-G", "Ninja", *flags,
        f"-DCMAKE_INSTALL_PREFIX={prefix}", shared, *quiet])
    sh(["cmake", "--build", work / "build"])
    sh(["cmake", "--install", work / "build"])
    libraries = next(path.parent for path in prefix.rglob("libtutti.*"))
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    tutti = prefix / "bin/tutti"
    if "tutti 0." not in sh([tutti, "--version"], env=environment):
        sys.exit("package: installed `tutti --version` does not begin with its version")

    # 1. find_package, in a copy of the example's folder: copy the folder, start a project.
    shutil.copytree(source / EXAMPLE, work / "user")
    sh(["cmake", "-S", work / "user", "-B", work / "user-build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"])
    sh(["cmake", "--build", work / "user-build"])
    run_example(tutti, work / "user-build/one_to_many", environment, f"find_package, {options.linkage}")
    for component, reason in {"torch": "built without its component 'torch'",
                              "gloo": "no component 'gloo': it has torch and test_kit. Backends are none"}.items():
        shutil.rmtree(work / "absent-build", ignore_errors=True)
        absent = subprocess.run(["cmake", "-S", source / "tests/package/absent", "-B", work / "absent-build",
                                 f"-DCOMPONENT={component}", f"-DCMAKE_PREFIX_PATH={prefix}"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if absent.returncode == 0 or reason not in " ".join(absent.stdout.split()):
            sys.exit(f"package: find_package of an absent component must fail and say why:\n{absent.stdout}")

    # A backend of one's own, loaded by name, against the conformance suite.
    if options.linkage == "shared":
        shutil.rmtree(work / "backend-build", ignore_errors=True)
        sh(["cmake", "-S", source / "tests/package/backend", "-B", work / "backend-build", "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}"])
        sh(["cmake", "--build", work / "backend-build"])
        out = sh([tutti, "run", "-n", "3", "--", work / "backend-build/check", "store"],
                 env=dict(environment, TUTTI_BACKEND_PATH=str(work / "backend-build")))
        if "store: " not in out or " 0 wrong" not in out:
            sys.exit(f"package: the sample backend does not conform:\n{out}")
        print("package: the sample backend conforms")

    # 2. pkg-config.
    environment["PKG_CONFIG_PATH"] = str(libraries / "pkgconfig")
    static = ["--static"] if options.linkage == "static" else []
    flags_of_others = [word for word in sh(["pkg-config", "--cflags", *static, "tutti"], env=environment).split()
                       if word.startswith("-D")]
    if flags_of_others:
        sys.exit(f"package: pkg-config hands {flags_of_others} to users")
    words = sh(["pkg-config", "--cflags", "--libs", *static, "tutti"], env=environment).split()
    sh(["g++", *map(str, sorted((work / "user").glob("*.cc"))), "-o", work / "by_pkg_config", *words])
    run_example(tutti, work / "by_pkg_config", environment, f"pkg-config, {options.linkage}")

    # 3. add_subdirectory.
    (work / "sub").mkdir()
    (work / "sub/CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user CXX)\n"
        f"add_subdirectory({source} tutti)\nadd_executable(one_to_many {work}/user/main.cc)\n"
        "target_link_libraries(one_to_many PRIVATE tutti::tutti)\n")
    as_part = ["cmake", "-S", work / "sub", "-B", work / "sub-build", "-G", "Ninja", shared, "-DTUTTI_WITH_TORCH=OFF",
               "-DTUTTI_WITH_PYTHON=OFF"]
    for given, told in ([], True), (["-DCMAKE_CXX_FLAGS=-O2"], False), (["-DCMAKE_CXX_FLAGS=", *flags], False):
        if ("not optimised; -DCMAKE_BUILD_TYPE=Release" in sh([*as_part, *given])) != told:
            sys.exit(f"package: add_subdirectory with {given}: the summary must say whether the build is optimised")
    sh(["cmake", "--build", work / "sub-build"])
    run_example(tutti, work / "sub-build/one_to_many", environment, f"add_subdirectory, {options.linkage}")


if __name__ == "__main__":
    main()
