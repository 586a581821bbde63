#!/usr/bin/env python3
"""What docs/troubleshooting.md quotes is what the library says, and what a test has made it say; and there is an entry for every ErrorCode.

A quote (a fenced block, or code that opens a table's row, with ... for what is left out) holds values where the library's format string has {}. So of each of its parts
a run of words must stand both in a string literal of the library and in one of a test. Numbers, paths, signals and what stands behind = are values."""
import argparse
import pathlib
import re
import sys

LEAST = 15  # characters of such a run, values aside
SHORT = {"has security=", "killed by #", "# failed"}  # that count all the same: most of what stands there are values
NO_TEST = {"cannot lock the store's file", "keeps no locks between hosts"}  # no file system of a test machine refuses a lock
VALUE = r"\+[^\";]{1,120}\+"
BETWEEN = rf"\s*(?:{VALUE})?\s*"
LITERAL = r'"(?:[^"\\\n]|\\.)*"'


def literals(source, folders, suffixes):
    """All string literals, those that stand side by side as one, with a mark where a value goes."""
    texts = []
    for folder in folders:
        for path in sorted((source / folder).rglob("*")):
            if path.suffix not in suffixes:
                continue
            for run in re.findall(rf"{LITERAL}(?:{BETWEEN}{LITERAL})*", path.read_text()):
                text = "".join("0" if part.startswith("+") else part[1:-1]
                               for part in re.findall(rf"{LITERAL}|{VALUE}", run))
                texts.append(words_of(re.sub(r"\{[^{} ]*\}", "0", text.replace('\\"', '"').replace("\\n", " | "))))
    return " | ".join(texts)


def words_of(text):
    """With values as #, and without punctuation."""
    words = (re.sub(r"=.*", "=", word.strip("()[]'\",:;.")) for word in text.split())
    return " ".join("#" if re.search(r"\d|/|^SIG[A-Z]+$", word) else word for word in words if word)


def quotes(text):
    """(line, quote) of all that the page quotes of errors."""
    found = []
    for block in re.finditer(r"^```\n(.*?)^```", text, re.M | re.S):
        found.append((text.count("\n", 0, block.start()) + 2, " ".join(block[1].split())))
    rows = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("| the error says"):
            rows = True
        elif not line.startswith("|"):
            rows = False
        elif rows and not line.startswith("|---"):
            found += [(number, quote) for quote in re.findall(r"`([^`]+)`", line.split(" | ")[0])]
    return found


def parts(quote):
    quote = re.sub(r"^[a-z_]+( #\d+)? \(rank \d+\) at \S+: ", "", quote)  # who calls what, where
    all_parts = [words_of(part) for part in quote.split("...")]
    return [part for part in all_parts if letters(part.split()) >= LEAST] or [max(all_parts, key=len)]


def letters(words):
    return sum(len(word) for word in words if word != "#")


def has_run(part, library, tests):
    """Whether enough consecutive words of it stand in both."""
    words = part.split()
    least = min(LEAST, letters(words))
    for first in range(len(words)):
        for last in range(len(words), first, -1):
            run = " ".join(words[first:last])
            if letters(words[first:last]) < least and run not in SHORT:
                continue
            if run in library and (run in tests or run in NO_TEST):
                return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    source = parser.parse_args().source
    page = (source / "docs/troubleshooting.md").read_text()
    library = literals(source, ["src", "cli", "include"], {".cc", ".h"})
    tests = literals(source, ["tests"], {".cc", ".h", ".py"})
    wrong = []
    header = (source / "include/tutti/error.h").read_text()
    codes = re.findall(r"^  (k\w+),", re.search(r"enum class ErrorCode.*?\{(.*?)\};", header, re.S)[1], re.M)
    if len(codes) < 12:
        sys.exit(f"troubleshooting: only {codes} were read in error.h")
    wrong += [f"no entry for {code}: a heading that begins with it" for code in codes
              if not re.search(rf"^## `{code}`", page, re.M)]
    all_quotes = quotes(page)
    if len(all_quotes) < 30:
        sys.exit(f"troubleshooting: only {len(all_quotes)} quotes were read")
    for line, quote in all_quotes:
        wrong += [f"docs/troubleshooting.md:{line}: not of one literal of the library and of a test: {part}"
                  for part in parts(quote) if not has_run(part, library, tests)]
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
