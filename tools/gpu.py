#!/usr/bin/env python3
"""Runs the programs that ./dev gpu --prepare has gathered, on a machine with a GPU, and says what they showed.

  tools/gpu.py --build build/gpu-carried --out build/gpu      (./dev gpu does this, with the loader's path set)

OUT/gpu.log holds all that they printed, OUT/gpu.md the table, OUT/gpu.json the rows. What was run before of the same programs
on the same machine stays in the table, so that a long list can be run in parts.
"""
import argparse
import collections
import ctypes
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

from gpu_jobs import JOBS

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def nccl_version(library):
    number = ctypes.c_int()
    try:
        ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return "none found"
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def cuda_version():
    """Of the run-time that programs would load; the driver's own is at least that."""
    number = ctypes.c_int()
    for name in ("libcudart.so.13", "libcudart.so.12"):
        try:
            ctypes.CDLL(name).cudaRuntimeGetVersion(ctypes.byref(number))
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
        except (OSError, AttributeError):
            pass
    return "none found"


def machine(build):
    gpus = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
    gpus = [[word.strip() for word in line.split(",")] for line in gpus if line.count(",") >= 2]
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    commit = build / "commit"
    nccl, carried = nccl_version("libnccl.so.2"), os.environ.get("TUTTI_TEST_GPU_NCCL")
    return {
        "date": datetime.date.today().isoformat(),
        "gpus": [f"{name}, {memory}" for name, memory, _ in gpus],
        "driver": gpus[0][2] if gpus else "none",
        "cuda": cuda_version(),
        "nccl": f"{nccl}, {nccl_version(carried)} for ranks that share a GPU" if carried else nccl,
        "kernel": platform.release(),
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "commit": commit.read_text().strip() if commit.exists() else "?",
    }


def tests_of(report):
    """(tests, failed names, skipped, reasons) of a GoogleTest report, or None where the program left none."""
    try:
        cases = list(xml.parse(report).getroot().iter("testcase"))
    except (OSError, xml.ParseError):
        return None
    failed, reasons, skipped = [], collections.Counter(), 0
    for case in cases:
        if case.find("failure") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.get("status") == "notrun" or case.find("skipped") is not None or case.get("result") == "skipped":
            skipped += 1
            element = case.find("skipped")
            words = (element.get("message") or element.text or "") if element is not None else ""
            lines = [line for line in words.splitlines() if line.strip() and not re.match(r".*\.(cc|h):\d+$", line)]
            reasons[lines[0].strip() if lines else "no reason given"] += 1
    return len(cases), failed, skipped, reasons


Program = collections.namedtuple("Program", "path seconds needs_device")


def read_programs(build):
    rows = [line.split() for line in (build / "gpu_programs.txt").read_text().splitlines() if line]
    return [Program(build / path, float(seconds), "device" in words) for path, seconds, *words in rows]


def row_of(program, **values):
    return {"program": program, "tests": 0, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "notes": [], **values}


def run(program, seconds, log, has_gpu, words):
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        log.write(f"\n==== {program.name} (at most {seconds:.0f} s)\n")
        log.flush()
        start, at = time.monotonic(), log.tell()
        process = subprocess.Popen([program, f"--gtest_output=xml:{report}", "--gtest_color=no", *words], stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        ended = ""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended, code = f"not done after {seconds:.0f} s", None
        try:  # its ranks too
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        took = time.monotonic() - start
        log.flush()
        tests = tests_of(report)
    with open(log.name, errors="replace") as text:
        text.seek(at)
        printed = text.read()
    row = row_of(program.name, seconds=round(took, 1))
    unloadable = re.search(r"error while loading shared libraries: (\S+):", printed)
    if tests:
        count, failed, skipped, reasons = tests
        row.update(tests=count, passed=count - len(failed) - skipped, failed=len(failed), skipped=skipped)
        row["notes"] = [f"failed: {name}" for name in failed] + [f"{n} skipped: {why}" for why, n in reasons.most_common(3)]
        if code != 0 and not failed:
            row["failed"], ended = 1, ended or f"ended with {code}"
    elif unloadable and not has_gpu:
        row["skipped"], ended = 1, f"skipped: it needs {unloadable[1]}, which is not here"
    else:
        done = len(re.findall(r"^\[       OK \]", printed, re.MULTILINE))
        last = re.findall(r"^\[ RUN      \] (\S+)", printed, re.MULTILINE)
        row.update(tests=done + 1, passed=done, failed=1)
        ended = ended or (f"cannot load {unloadable[1]}" if unloadable else f"ended with {code}")
        ended += f" in {last[-1]}" if last else ""
    if ended:
        row["notes"].insert(0, ended)
    return row


def run_job(job, seconds, log, options):
    """One row of the table, of a job of several ranks."""
    row = row_of(job.name, tests=1)
    command = job.command.format(build=options.build, data=ROOT / "build/gpu-carry/data", name=job.name)
    (options.build / "matrix").mkdir(exist_ok=True)
    log.write(f"\n==== {job.name} (at most {seconds:.0f} s): {command}\n")
    log.flush()
    start, at = time.monotonic(), log.tell()
    process = subprocess.Popen(["bash", "-c", command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    log.flush()
    with open(log.name, errors="replace") as text:
        text.seek(at)
        printed = text.read()
    seen = len(re.findall(job.must, printed)) if job.must else job.times
    good = code is not None and (code == 0 or not job.ends_well) and seen == job.times
    row.update(passed=int(good), failed=int(not good), seconds=round(time.monotonic() - start, 1))
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if not good:
        row["notes"].append(f"not done after {seconds:.0f} s" if code is None else f"ended with {code}")
    row["notes"] += lines[-6 if good else -12:]
    return row


def device_matrix(build, facts, rows):
    """What conformance has shown of device memory, for tests/conformance/matrix/gpu.json: by operation and backend f16, f32 and whether
    it was staged; only of jobs in which nothing was wrong."""
    shown = {}
    for row in rows.values():
        match = re.fullmatch(r"conformance_(native|gloo|mpi|nccl)_(\d+)(_hostid)?", row["program"])
        if not match or row["failed"] or not row["passed"]:
            continue
        name, ranks = match[1], int(match[2])
        matrix = json.loads((build / "matrix" / f"{row['program']}.json").read_text())
        staged = {what for reason in matrix["staged"].values() for what in reason}
        entry = shown.setdefault(name, {"ranks": [], "operations": {}})
        entry["ranks"] = sorted({*entry["ranks"], ranks})
        for group in matrix["supported"]:
            dtypes = {dtype for line in group["rows"] for dtype in line.get("dtypes", [])} & {"f16", "f32"}
            for operation in group["operations"]:
                whole = {operation, f"{operation} of f32", f"{operation} sum of f32"} & staged
                kinds = [] if whole else [kind for kind in ("min", "max", "product", "avg", "premul_sum") if f"{operation} {kind} of f32" in staged]
                entry["operations"][operation] = {"dtypes": sorted(dtypes), "staged": bool(whole), "staged_kinds": kinds}
    return {"machine": f"{'; '.join(facts['gpus'])}, driver {facts['driver']}, NCCL {facts['nccl']}", "date": facts["date"], "backends": shown}


def table(facts, rows):
    lines = [f"Date {facts['date']}, commit {facts['commit']}; {'; '.join(facts['gpus']) or 'no GPU'}; driver {facts['driver']}, "
             f"CUDA {facts['cuda']}, NCCL {facts['nccl']}; {facts['cpu']}, kernel {facts['kernel']}.", "",
             "| program | tests | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    lines += ["| {program} | {tests} | {passed} | {failed} | {skipped} | {seconds} |".format(**row) for row in rows]
    total = {key: sum(row[key] for row in rows) for key in ("tests", "passed", "failed", "skipped")}
    lines.append("| all | {tests} | {passed} | {failed} | {skipped} | {seconds:.1f} |".format(
        **total, seconds=sum(row["seconds"] for row in rows)))
    notes = [f"- {row['program']}: {note}" for row in rows for note in row["notes"]]
    return "\n".join(lines + ([""] + notes if notes else [])) + "\n"


def read_rows(path, facts):
    """Of the same programs on the same machine."""
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    same = all(kept["machine"].get(key) == facts[key] for key in facts if key != "date")
    return {row["program"]: row for row in kept["rows"]} if same else {}


def main():
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--budget", default=540, type=float, metavar="SECONDS", help="for all programs together (540)")
    parser.add_argument("--only", action="append", metavar="NAME", help="the programs whose name contains NAME; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the programs")
    parser.add_argument("words", nargs="*", help="for the programs, behind --: --gtest_filter=...")
    options = parser.parse_args()
    chosen = [(program.path.name, program.seconds, program) for program in read_programs(options.build)]
    chosen += [(job.name, job.seconds, job) for job in JOBS]
    if options.list:
        print("\n".join(f"{name} (at most {seconds:.0f} s)" for name, seconds, _ in chosen))
        return 0
    names = [name for name, _, _ in chosen]
    chosen = [each for each in chosen if not options.only or any(word in each[0] for word in options.only)]
    if not chosen:
        print(f"gpu: no program is called like that; there are {', '.join(names) or 'none'}", file=sys.stderr)
        return 2
    facts = machine(options.build)
    for key, value in facts.items():
        print(f"gpu: {key}: {'; '.join(value) or 'none' if isinstance(value, list) else value}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    state = options.build / "gpu.json"
    rows = read_rows(state, facts)
    end = time.monotonic() + options.budget
    good = True
    with open(options.out / "gpu.log", "w+") as log:
        for name, seconds, what in chosen:
            left = end - time.monotonic()
            if left < 1:
                good = False
                print(f"gpu: {name}: not run, the {options.budget:.0f} s are spent: --only {name}", flush=True)
                continue
            has_gpu = bool(facts["gpus"])
            if not has_gpu and getattr(what, "needs_device", True):
                row = row_of(name, skipped=1, notes=["skipped: there is no GPU here"])
            elif isinstance(what, Program):
                row = run(what.path, min(seconds, left), log, has_gpu, options.words)
            else:
                row = run_job(what, min(seconds, left), log, options)
            rows[name] = row
            good = good and row["failed"] == 0
            print("gpu: {program}: {passed} passed, {failed} failed, {skipped} skipped, {seconds} s".format(**row), flush=True)
            for note in row["notes"]:
                print(f"gpu:   {note}", flush=True)
            kept = json.dumps({"machine": facts, "rows": list(rows.values())}, indent=1) + "\n"
            for path in (state, options.out / "gpu.json"):
                path.write_text(kept)
            (options.out / "gpu.md").write_text(table(facts, rows.values()))
            matrix = device_matrix(options.build, facts, rows)
            if matrix["backends"]:
                (options.out / "gpu_matrix.json").write_text(json.dumps(matrix, indent=1) + "\n")
    print(f"gpu: {options.out}/gpu.md, gpu.log, gpu.json")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
