#!/usr/bin/env python3
"""Soak `layouts`: one program on many layouts of hosts, started by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT alone.

Series:
training   examples/07 with 4 ranks as 1 x 4, 2 x 2 and 4 x 1 hosts, with other segments and algorithms, and by gloo: one hash of the
           parameters; what each host of two of them gives to its link is what the schedule says, within a fifth
models     examples/08 and 09, a few steps of each on those layouts, native and gloo: one hash of the parameters for each model
examples   the examples without data on 2 and 4 hosts, native and gloo: each rank prints what it prints on one host, and the banner says
           once that the world is open to everybody until it is complete"""
import os
import pathlib
import re
import subprocess
import sys
import time

import over_hosts
from over_hosts import ROOT

sys.path.insert(0, str(ROOT / "tests/e2e"))
from examples import EXAMPLES, clean_environment  # noqa: E402

# name -> (hosts, ranks on each, settings)
LAYOUTS = {
    "1x4": (1, 4, {}),
    "2x2": (2, 2, {}),
    "4x1": (4, 1, {}),
    "2x2, small segments": (2, 2, {"TUTTI_SEGMENT_BYTES": "65536"}),
    "4x1, small segments": (4, 1, {"TUTTI_SEGMENT_BYTES": "65536"}),
    "2x2, direct": (2, 2, {"TUTTI_ALGORITHM": "direct"}),
    "4x1, exchange": (4, 1, {"TUTTI_ALGORITHM": "exchange"}),
    "1x4, gloo": (1, 4, {"TUTTI_BACKEND": "gloo"}),
    "2x2, gloo": (2, 2, {"TUTTI_BACKEND": "gloo"}),
    "4x1, gloo": (4, 1, {"TUTTI_BACKEND": "gloo"}),
}
SAME = ("1x4", "2x2", "4x1", "1x4, gloo", "2x2, gloo", "4x1, gloo")  # of LAYOUTS
MODELS = {"resnet": ("08_resnet/resnet", "--limit", "128", "--epochs", "1"), "transformer": ("09_transformer/transformer", "--steps", "5")}
COUNTED = ("2x2", "4x1")
PARAMETERS = 207_178  # of the network of examples/07, f32
BATCH = 128
MOST_OFF = 0.2
BANNER = "until all ranks are there whoever reaches that place can join"
LIMIT = 300  # seconds for one job


def run_on_hosts(hosts, each, command, settings):
    """(exit code, outputs of both kinds, seconds) of `each` ranks on every host."""
    began = time.monotonic()
    words = [sys.executable, ROOT / "tools/hosts.py", str(hosts), "--ranks", str(each), "--bytes", "--", *command]
    try:
        done = subprocess.run(words, env=clean_environment() | settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, said = None, f"not done after {LIMIT} s\n{(late.stdout or b'').decode(errors='replace')}"
    if code == over_hosts.hosts.NOT_PERMITTED:
        raise over_hosts.hosts.NotPermitted(said.strip())
    return code, said, round(time.monotonic() - began, 1)


def scheduled(hosts, each, images):
    """Bytes that a host sends: of every step each rank gives its part of the sum to, and takes its own to, all ranks elsewhere."""
    steps = (images + BATCH - 1) // BATCH
    size = hosts * each
    return steps * each * 2 * (size - each) / size * PARAMETERS * 4


def has_banner(hosts, said):
    return hosts == 1 or said.count(BANNER) == 1


def hash_of(said):
    found = re.search(r"parameter hash (\w+) on every rank", said)
    return found and found[1]


def train(options):
    """(what each layout gave, what was wrong)"""
    report, wrong = {}, []
    program = options.build / "examples/07_fashion_mnist/fashion_mnist"
    for name, (hosts, each, settings) in LAYOUTS.items():
        code, said, seconds = run_on_hosts(hosts, each, [program, "--epochs", "1", "--limit", str(options.images)], settings)
        found = hash_of(said)
        sent = [int(count.replace(",", "")) for count in re.findall(r"sent ([\d,]+) bytes", said)]
        report[name] = {"hash": found, "sent": sent, "seconds": seconds}
        if name in COUNTED:
            report[name]["scheduled"] = expected = round(scheduled(hosts, each, options.images))
            if len(sent) != hosts or not all(abs(count - expected) <= MOST_OFF * expected for count in sent):
                wrong.append(f"{name}: the hosts sent {sent} bytes, the schedule says {expected}")
        print(f"layouts: {name}: {found or 'no hash'}, {seconds} s", file=sys.stderr)
        if code != 0 or not found or not has_banner(hosts, said):
            wrong.append(f"{name}: ended with {code}\n{said}")
    hashes = {each["hash"] for each in report.values()}
    if len(hashes) != 1:
        wrong.append(f"hashes {hashes}")
    return report, wrong


def train_models(options):
    report, wrong = {}, []
    for model, (program, *words) in MODELS.items():
        report[model] = {}
        for name in SAME:
            hosts, each, settings = LAYOUTS[name]
            code, said, seconds = run_on_hosts(hosts, each, [options.build / "examples" / program, *words], settings)
            report[model][name] = found = hash_of(said)
            print(f"layouts: {model}, {name}: {found or 'no hash'}, {seconds} s", file=sys.stderr)
            if code != 0 or not found or not has_banner(hosts, said):
                wrong.append(f"{model}, {name}: ended with {code}\n{said}")
        if len(set(report[model].values())) != 1:
            wrong.append(f"{model}: hashes {report[model]}")
    return report, wrong


def run_examples(options):
    report, wrong = {}, []
    programs = {path.name: path for path in (options.build / "examples").glob("*/*") if os.access(path, os.X_OK) and path.is_file()}
    on_one_host = None  # of examples/06, whose lines nobody else knows
    for most in (1, 2, 4):
        for backend in ("native", "gloo"):
            for example, (ranks, expected) in [*EXAMPLES.items(), ("ddp_linear", (4, None))]:
                ranks += ranks % 2  # each host has as many: examples/03 takes a rank more
                hosts = min(ranks, most)  # examples/02 has two ranks
                if hosts == 1 and expected is not None:
                    continue
                settings = {} if backend == "native" else {"TUTTI_BACKEND": backend}
                code, said, seconds = run_on_hosts(hosts, ranks // hosts, [programs[example]], settings)
                lines = [re.findall(rf"^\[{rank}\] (?!tutti)(.*)$", said, re.M) for rank in range(ranks)]
                on_one_host = on_one_host or lines
                of_rank = [expected(rank) for rank in range(ranks)] if expected else on_one_host
                is_right = code == 0 and has_banner(hosts, said) and lines == of_rank and any(lines)
                name = f"{example}, {backend}, {hosts} hosts of {ranks // hosts}"
                report[name] = {"right": is_right, "seconds": seconds}
                print(f"layouts: {name}: {'right' if is_right else 'WRONG'}, {seconds} s", file=sys.stderr)
                if not is_right:
                    wrong.append(f"{name}: ended with {code}\n{said}")
    return report, wrong


SERIES = {"training": train, "models": train_models, "examples": run_examples}


def soak(options):
    report, wrong = {}, []
    for name in over_hosts.asked(options, SERIES):
        report[name], of_series = SERIES[name](options)
        wrong += of_series
    over_hosts.write_evidence(options, "layouts", {"images": options.images, "series": report, "wrong": len(wrong)})
    print("\n".join(wrong) if wrong else "layouts: one hash, and everything was right", file=sys.stderr)
    return 1 if wrong else 0


def main():
    words = over_hosts.parser(__doc__)
    words.add_argument("--images", type=int, default=60_000, help="of the training")
    options = words.parse_args()
    options.build = pathlib.Path(options.build).resolve()
    sys.exit(over_hosts.run(soak, options))


if __name__ == "__main__":
    main()
