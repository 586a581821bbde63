#!/usr/bin/env python3
"""Adds up JUnit files of several builds: the failures with their last lines, the ten slowest tests, and one last line."""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

LINES_OF_A_FAILURE = 30


def main(paths):
    passed = failed = skipped = 0
    slow = []
    for path in paths:
        build = pathlib.Path(path).stem
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = f"{build}: {case.get('name')}"
            slow.append((float(case.get("time") or 0), name))
            state = case.get("status")
            if state in ("fail", "timeout") or case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"FAILED   {name}")
                for line in (case.findtext("system-out") or "").splitlines()[-LINES_OF_A_FAILURE:]:
                    print(f"FAILED     {line}")
            elif state in ("notrun", "disabled") or case.find("skipped") is not None:
                skipped += 1
                element = case.find("skipped")
                reason = (element.get("message") or "") if element is not None else ""
                text = case.findtext("system-out") or ""
                lines = [line.strip() for line in text.splitlines() if "skip" in line.lower() and "[" not in line]
                print(f"SKIPPED  {name}  {(lines or [reason])[0]}")
            else:
                passed += 1
    print("Slowest:")
    for seconds, name in sorted(slow, reverse=True)[:10]:
        print(f"  {seconds:7.1f} s  {name}")
    if not paths or passed + failed == 0:
        print("no test ran")
        failed = max(failed, 1)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
