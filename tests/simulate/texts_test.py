#!/usr/bin/env python3
"""What planted.py replaces and what mutate.py argues about stands in the sources: one that has changed would be missed."""
import pathlib
import sys

import mutate
import planted


def lacking(source, parts):
    """Of parts that are looked for in a source those that do not stand there."""
    if not source.is_file():
        return parts
    text = source.read_text()
    return [part for part in parts if part not in text]


def stale_faults(faults):
    """(name, file, text) of each text that `plant` would not find."""
    for name, file, before, after, _ in faults:
        parts, others = ([one] if isinstance(one, str) else one for one in (before, after))
        if len(parts) != len(others):
            yield name, file, f"{len(parts)} texts, and {len(others)} in their place"
        for part in lacking(planted.SRC / file, parts):
            yield name, file, part


def stale_arguments(argued):
    """(file, condition) of each that stands no more as a line of a judge with a condition."""
    for file, stands in argued:
        source = mutate.JUDGES / file
        if not source.is_file() or stands not in [condition[1] for condition in mutate.conditions(source.read_text())]:
            yield file, stands


def main():
    # First that a text which is not there is found.
    name, file, before, after, reason = planted.FAULTS[0]
    changed = [(name, file, before + " // changed", after, reason), (name, "no/such.cc", before, after, reason)]
    argued = [(file, stands + " // changed") for file, stands in mutate.ARGUED]
    if len(list(stale_faults(changed))) != len(changed) or len(list(stale_arguments(argued))) != len(argued):
        sys.exit("a text that is not there is taken for one that is")
    stale = [f"{name}: src/{file} has no: {text}" for name, file, text in stale_faults(planted.FAULTS)]
    stale += [f"ARGUED: src/control/judge/{file} has no condition: {stands}" for file, stands in stale_arguments(mutate.ARGUED)]
    if stale:
        sys.exit("\n".join(stale))
    print(f"{len(planted.FAULTS)} faults, {len(mutate.ARGUED)} arguments")


if __name__ == "__main__":
    main()
