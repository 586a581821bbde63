"""Every virtual function of c10d::Backend stands in the table of docs/pytorch.md, and nothing else does.

    virtuals.py DOCS

Read from the header of the torch by whose Python this is run.
"""
import importlib.util
import pathlib
import re
import sys


def main():
    docs = pathlib.Path(sys.argv[1]).read_text()
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    header = (torch / "include/torch/csrc/distributed/c10d/Backend.hpp").read_text()
    header = header[header.index("class TORCH_API Backend"):]
    virtuals = set(re.findall(r"\bvirtual\s[^;{(]*?(\w+)\s*\(", header))
    assert len(virtuals) > 60, f"only {virtuals} were found: the pattern fits this header no more"
    section = docs[docs.index("## c10d::Backend"):]
    rows = [line.split("|")[1] for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(told) == len(set(told)), sorted(name for name in told if told.count(name) > 1)
    assert not virtuals - set(told), f"not in {sys.argv[1]}: {sorted(virtuals - set(told))}"
    assert not set(told) - virtuals, f"in {sys.argv[1]} alone: {sorted(set(told) - virtuals)}"
    print(f"{len(told)} functions")


if __name__ == "__main__":
    main()
