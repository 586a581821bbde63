#!/usr/bin/env python3
"""Holds the rules of the house: layers, cycles, blocking calls, threads, environment, paths, style. No output when clean.

    tools/tidy.py                check the tree
    tools/tidy.py --table        print who may include whom
    tools/tidy.py --functions    print the longest functions
"""
import collections
import pathlib
import re
import subprocess
import sys

from functions import functions

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> what it may include, besides itself, the folders in it and the public headers of both (docs/architecture.md).
# "tutti": every public header, and nothing else of the folders they belong to.
LAYERS = {
    "src/base": [],
    "src/device": ["base"],
    "src/kernels": ["base"],
    "src/net": ["base"],
    "src/store": ["base", "net"],
    "src/rendezvous": ["base", "net", "store"],
    "src/control": ["base", "net", "store"],
    "src/control/judge": ["base"],
    "src/control/memory": ["base", "net", "store"],
    "src/control/vote": ["control/judge"],
    "src/control/board": ["base", "net", "control/judge", "control/memory"],
    "src/agent": ["base", "net", "store", "control"],
    "src/spawn": ["base", "net", "store", "rendezvous", "control", "agent"],
    "src/group": ["base", "device", "store", "control"],
    "src/native": ["base", "kernels", "net", "control", "group"],
    "src/plugins": ["base", "device", "kernels", "group"],
    "src/checkpoint": ["base"],
    "src/ddp": ["base", "group", "checkpoint"],
    "src/launch": ["base", "device", "net", "store", "rendezvous", "control", "agent"],
    "src/test_kit": ["base", "tutti"],
    "src/backends": ["base", "rendezvous", "group", "native"],
    "src/world.cc": ["base", "device", "net", "store", "rendezvous", "control", "spawn", "group", "native", "backends"],
    "cli": ["base", "rendezvous", "group", "native", "launch"],
}
# Public header -> the module that implements it; other headers may be included by that module's users only.
PUBLIC = {
    "types.h": "base", "buffer.h": "base", "error.h": "base", "config.h": "base", "log.h": "base", "version.h": "base",
    "terminate.h": "base", "spawn.h": "spawn",
    "request.h": "base",
    "store.h": "store", "process_group.h": "group", "collectives.h": "group", "misuse.h": "group", "work.h": "group", "backend.h": "group",
    "torch.h": "ddp", **{f"torch/{path.name}": "ddp" for path in (ROOT / "include/tutti/torch").glob("*.h")},
    "observer.h": "group", "objects.h": "group", "codec.h": "group", "init.h": "world", "tutti.h": "world", "test_kit.h": "test_kit",
}
TOP = {"include", "src", "cli", "python", "tests", "examples", "bench", "docs", "cmake", "tools", ".ci"}

BLOCKING = re.compile(
    r"\b(?:::)?(poll|ppoll|epoll_wait|epoll_pwait|select|pselect|usleep|nanosleep|clock_nanosleep)\s*\("
    r"|\bSYS_futex\b|\bsleep_for\b|\bsleep_until\b|\bcondition_variable|(?<![\w.>])sleep\s*\(")
BLOCKING_HOME = ("src/base/wait", "src/net/poller",
                 "src/plugins/")  # they share other libraries' threads, and see no more of Tutti than others do
THREAD = re.compile(r"\bstd::j?thread\b(?!::)")
THREAD_HOME = ("src/base/", "src/control/", "src/native/", "src/launch/", "src/test_kit/", "src/store/server",
               "src/net/resolve", "src/plugins/", "src/spawn/")
GETENV = re.compile(r"\b(getenv|secure_getenv)\s*\(|\benviron\b")
GETENV_HOME = ("src/base/config",)
IMPURE = re.compile(
    r"::\s*now\b|\bnow\s*\(\s*\)|\b(?:clock_gettime|gettimeofday|__rdtscp?|thread_local)\b|\btime\s*\("
    r"|\bstd::(?:j?thread|this_thread|async|\w*mutex|atomic\w*|\w+_lock|lock_guard|condition_variable\w*|random_device)\b"
    r"|\b(?:wait|wait_until|ring)\s*\(|\bstatic (?!const|constexpr)[\w:<>]+ \w+( =|;|\{)")
IMPURE_NOT = ("src/control/judge/", "src/control/vote/")
BOARD, LAYOUT, LINE, OWN_LINE = ("src/control/board/" + name for name in ("", "layout.h", "line.h", "own_line.h"))
A_LINE = re.compile(r"\b(?:Line|Lines|find_line|SharedShown|Awaited::\w*pack)\b|\.line\(")
LABEL = "(?:Aliasing|Cost|Errors|Lifetime|Numerics|Ordering|Shape|Threads)"
COMMENT = re.compile(r"\s*///?( *)(.*)$")
LONGEST, LONGEST_BUT_1_PERCENT = 60, 40  # lines of a function
# What a document or a comment may name: `native/engine` or docs/wire.md, from the root or from any folder below.
PATH_QUOTED = re.compile(r"`(?:\./)?([\w.-]+(?:/[\w.-]+)+)/?`")
PATH_PLAIN = re.compile(r"(?<![\w/.<\"@-])((?:[\w-]+/)+[\w-]+\.(?:h|cc|py|md|sh|cmake|txt|json))\b(?!/)")
# Section of docs/wire.md -> the constant that its version is.
WIRE_VERSIONS = {"The handshake": ("src/net/handshake.h", "kHandshakeVersion"), "Between hosts": ("src/control/hosts/hello.h", "kWireVersion"),
                 "The store": ("src/store/session.h", "kProtocolVersion")}
WORK_LEFT = re.compile(r"\bTBD\b|\bFIXME\b|\bXXX\b|\bTODO\b(?!\((?:perf|hosts|cuda|backend|docs)\))")


def files():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = out.stdout.split("\n") if out.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()
        and not {"build", "third_party", ".git"} & set(path.relative_to(ROOT).parts)]
    return sorted(name for name in names if name and (ROOT / name).is_file())


def module_of(path):
    """The module that a folder, or src/world.cc, is."""
    return path.removeprefix("src/").removesuffix(".cc")


ALL = [module_of(path) for path in LAYERS]


def layer_of(name):
    """The innermost folder of the layout that holds a file."""
    return max((path for path in LAYERS if name == path or name.startswith(path + "/")), key=len, default=None)


def may_include(module, allowed, owner):
    """Who may include a folder may include those in it; a folder in another one has a row of its own."""
    return owner == module or owner in allowed or any(owner.startswith(each + "/") for each in [*allowed, module])


def included(text):
    """(line, path) of every include."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line):
            yield number, match.group(1)


def check_includes(name, text, report):
    layer = layer_of(name)
    if layer is None:
        if name.startswith("src/") and name != "src/CMakeLists.txt":
            report(name, 1, "stands in no folder of the layout (design: docs/architecture.md)")
        return
    module = module_of(layer)
    allowed = set(LAYERS[layer]) | {module}
    for number, path in included(text):
        if path.startswith((".", "src/", "include/")):
            report(name, number, f"{path}: an include is named from src or include on")
        if path.startswith("tutti/"):
            owner = PUBLIC.get(path.removeprefix("tutti/"))
            if owner is None:
                report(name, number, f"<{path}> is no public header known to tools/tidy.py")
            elif owner not in allowed and "tutti" not in allowed:
                report(name, number, f"{module} may not include <{path}> ({owner})")
            continue
        owner = max((each for each in ALL if path.startswith(each + "/")), key=len, default=None)
        if owner is not None and not may_include(module, allowed, owner):
            report(name, number, f"{module} may not include {owner} (may: {', '.join(sorted(allowed))})")
        if path.startswith("openssl/") and layer != "src/net":
            report(name, number, "OpenSSL is used in src/net only")
        if path.startswith(("CLI/", "nlohmann/", "fmt/")) and name.endswith(".h"):
            report(name, number, f"{path} is included by .cc files only")


def check_python(name, text, report):
    """The backend of torch.distributed is a user of the public headers, and nobody uses it."""
    own = name.startswith("python/")
    for number, path in included(text):
        if own and path.startswith("tutti/") and path.removeprefix("tutti/") not in PUBLIC:
            report(name, number, f"<{path}> is no public header known to tools/tidy.py")
        if own and any(path.startswith(each + "/") for each in ALL):
            report(name, number, f"{path}: python/ sees public headers only")
        if not own and path.startswith("c10d/"):
            report(name, number, f"{path}: nothing includes python/")


def check_library(name, text, report):
    """The launcher is linked into the command, and the library is without it."""
    for number, line in enumerate(text.splitlines(), 1):
        if name.startswith("src/launch/") and re.search(r"target_sources\(\s*tutti(_objects)?\b", line):
            report(name, number, "the launcher is no part of the library")


def folder_of(name):
    """What a file counts as in the picture of includes: its folder; a public header is its module's."""
    if name.startswith("include/tutti/"):
        return PUBLIC.get(name.removeprefix("include/tutti/"))
    if name.startswith(("src/", "cli/")):
        folder = str(pathlib.PurePath(name).parent).removeprefix("src/")
        return module_of(name) if folder == "src" else folder
    return None


def arrows_of(texts):
    """Folder -> folder that it includes -> where it does so first."""
    arrows = collections.defaultdict(dict)
    for name, text in texts.items():
        source = folder_of(name)
        for number, path in included(text) if source else []:
            target = folder_of(("include/" if path.startswith("tutti/") else "src/") + path)
            if target and target != source and (path.startswith("tutti/") or "src/" + path in texts):
                arrows[source].setdefault(target, (name, number))
    return arrows


def check_cycles(texts, report):
    arrows = arrows_of(texts)

    def reaches(source, target, seen):
        seen.add(source)
        return any(each == target or each not in seen and reaches(each, target, seen) for each in arrows.get(source, {}))

    for source, targets in arrows.items():
        for target, (name, number) in targets.items():
            if reaches(target, source, set()):
                report(name, number, f"{source} includes {target}, which includes {source}, itself or through others")


def check_permits(texts, report):
    """A permit that nobody uses says of the house what is not so."""
    used = collections.defaultdict(set)
    for source, targets in arrows_of(texts).items():
        layer = next((each for each in sorted(ALL, key=len, reverse=True) if source == each or source.startswith(each + "/")), None)
        used[layer] |= set(targets)
    for path, allowed in LAYERS.items():
        for permit in set(allowed) - {"tutti"}:
            if not any(each == permit or each.startswith(permit + "/") for each in used[module_of(path)]):
                report(path, 1, f"may include {permit}, and does not")


def check_board(texts, report):
    """Outside its folder a board's structs are incomplete, but for the line that its owner writes inline."""
    direct = {name: {"src/" + path for _, path in included(text)} for name, text in texts.items()}

    def reaches(name, target, seen):
        seen.add(name)
        return any(each == target or each not in seen and reaches(each, target, seen) for each in direct.get(name, ()))

    for name, text in texts.items():
        if not name.startswith(("src/", "cli/")) or name.startswith(BOARD):
            continue
        for number, path in included(text):
            path = "src/" + path
            if path in (LAYOUT, LINE) or path.startswith(BOARD) and reaches(path, LAYOUT, set()):
                report(name, number, "the layout of the board is read and written in control/board only")
        if not reaches(name, OWN_LINE, set()):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if A_LINE.search(line.split("//")[0]):
                report(name, number, "a line of the board is read in control/board, and its owner writes it by OwnLine")


def function_lengths(texts):
    """(lines, file, first line, signature) of the functions of the product, the longest first."""
    return sorted(((lines, name, first, signature) for name, text in texts.items() if name.startswith(("include/", "src/", "cli/"))
                   for first, lines, signature in functions(text)), reverse=True)


def check_functions(texts, report):
    lengths = function_lengths(texts)
    for lines, name, first, _ in lengths:
        if lines > LONGEST:
            report(name, first, f"a function of {lines} lines, {LONGEST} allowed")
    for lines, name, first, _ in lengths[len(lengths) // 100:len(lengths) // 100 + 1]:
        if lines > LONGEST_BUT_1_PERCENT:
            report(name, first, f"1 % of the functions have {lines} lines or more, {LONGEST_BUT_1_PERCENT} allowed")


def print_functions(texts):
    lengths = function_lengths(texts)
    at = lambda share: lengths[int(len(lengths) * share)][0]
    print(f"{len(lengths)} functions; lines: median {at(0.5)}, p90 {at(0.1)}, p99 {at(0.01)}")
    for lines, name, first, signature in lengths[:5]:
        print(f"{lines:4} {name}:{first}: {signature}")


def check_lines(name, text, report):
    is_code = name.endswith((".h", ".cc"))
    in_library = name.startswith(("src/", "include/"))
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0] if is_code else line
        if is_code and len(line) > 100:
            report(name, number, f"{len(line)} columns, 100 allowed")
        if name != "tools/tidy.py" and WORK_LEFT.search(line):
            report(name, number, "work left without a kind: TODO(perf|hosts|cuda|backend|docs)")
        if not in_library or not is_code:
            continue
        if BLOCKING.search(code) and not name.startswith(BLOCKING_HOME):
            report(name, number, "blocking call outside base/wait and net/poller")
        if THREAD.search(code) and not name.startswith(THREAD_HOME) and "hardware_concurrency" not in code:
            report(name, number, "std::thread outside base, control, native, plugins, launch, spawn, test_kit, net/resolve")
        if IMPURE.search(code) and name.startswith(IMPURE_NOT):
            report(name, number, "a judge or a vote knows no clock, thread or memory of others: it is given facts and the time")
        if GETENV.search(code) and not name.startswith(GETENV_HOME):
            report(name, number, "the environment is read in base/config only")
        # Its address is taken to flush it.
        if re.search(r"(?<!&)\bstd::(cout|printf)\b|\bprintf\s*\(|\bputs\s*\(", code) and "snprintf" not in code:
            report(name, number, "the library prints nothing on stdout")
        if re.search(r"\batomic_thread_fence\b", code):
            report(name, number, "atomic_thread_fence is not modelled by TSan; use seq_cst operations")


def check_comments(name, text, report):
    """What a formatter leaves of a comment that it has broken. .clang-format lets it break none; whoever reflows by hand may slip."""
    lines = [*text.splitlines(), ""]
    for number in range(1, len(lines)):
        above, line, below = (COMMENT.match(each) for each in (lines[number - 2] if number > 1 else "", *lines[number - 1:number + 1]))
        if re.fullmatch(r'\s*"[^"]{1,24} "', lines[number - 1]) and lines[number].lstrip().startswith('"') \
                and len(lines[number - 1]) + len(lines[number].split()[0]) < 100 and lines[number - 2].endswith(' "'):
            report(name, number, "a string was cut where it need not be")
        if not line:
            continue
        if re.fullmatch(r"[-=*]{4,}", line.group(2)):
            report(name, number, "a rule of dashes on a line of its own: a banner is one line")
        if re.match(LABEL + " [^ ]", line.group(2)) and below and len(below.group(1)) > 6 or re.search(rf"\. {LABEL}  ", line.group(2)):
            report(name, number, "a label of a comment stands out of its column")
        if not above or not line.group(2):
            continue
        if (len(above.group(1)) > 6 or re.match(LABEL + "  ", above.group(2))) and len(line.group(1)) == 1 and line.group(2)[0].islower():
            report(name, number, "the text of a label begins at the margin")
        elif below and len(lines[number - 2]) > 85 and len(line.group(2)) < 26 and line.group(2)[-1] not in ".:;!?)|" and below.group(2)[:1].islower() \
                and len(lines[number - 1]) + len(below.group(2).split()[0]) < 100:
            report(name, number, "a comment was broken in the middle of a sentence")


def check_links(name, text, report):
    for number, line in enumerate(text.splitlines(), 1):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
            if "://" not in target and not target.startswith("mailto:") and not ((ROOT / name).parent / target).exists():
                report(name, number, f"link to {target}, which does not exist")


def known_paths(names):
    """What a text may call each file and folder: any end of its path, without the file's extension, too."""
    known = set()
    for name in names:
        path = pathlib.PurePath(name)
        for each in [path, path.with_suffix(""), *list(path.parents)[:-1]]:
            known.update("/".join(each.parts[i:]) for i in range(len(each.parts)))
    return known


def check_paths(name, text, known, folders, report):
    comment = "" if name.endswith(".md") else "//" if name.endswith((".h", ".cc")) else "#"
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition(comment)[2] if comment else line
        for path in sorted({*PATH_QUOTED.findall(said), *PATH_PLAIN.findall(said)}):
            is_placeholder = any(part.split(".")[0].isupper() for part in path.split("/"))
            if path.split("/")[0] in folders and path not in known and not is_placeholder:
                report(name, number, f"{path} does not exist")


def check_versions(texts, report):
    """docs/wire.md names the versions that the code speaks."""
    for number, line in enumerate(texts["docs/wire.md"].splitlines(), 1):
        match = re.match(r"## (.*) \(version (\d+)\)", line)
        header, constant = WIRE_VERSIONS.get(match.group(1), (None, None)) if match else (None, None)
        if header and f" {constant} = {match.group(2)};" not in texts[header]:
            report("docs/wire.md", number, f"{constant} in {header} is another version")


def check_tree(names, report):
    for name in names:
        top = name.split("/")[0]
        if "/" in name and top not in TOP:
            report(name, 1, f"folder {top}/ does not stand in the layout")
    for folder in LAYERS:
        if folder.startswith("src/") and any(name.startswith(folder + "/") and name.endswith(".cc") for name in names):
            readme = ROOT / folder / "README.md"
            if not readme.exists():
                report(folder, 1, "has no README.md of three lines: what it is for, what it may not do")
            elif len(readme.read_text().strip().splitlines()) > 6:
                report(f"{folder}/README.md", 1, "more than a few lines; details belong in docs/")


def main():
    if "--table" in sys.argv:
        for folder, may in LAYERS.items():
            print(f"{folder:16} {' '.join(may) or '-'}")
        return 0
    complaints = []
    report = lambda name, line, what: complaints.append(f"{name}:{line}: {what}")
    names = files()
    texts = {name: (ROOT / name).read_text(errors="replace") for name in names
             if name.endswith((".h", ".cc", ".py", ".md", ".cmake", ".txt", ".sh")) or name == "dev"}
    code = {name: text for name, text in texts.items() if name.endswith((".h", ".cc"))}
    if "--functions" in sys.argv:
        print_functions(code)
        return 0
    known = known_paths(names)
    folders = {part for name in names for part in pathlib.PurePath(name).parts[:-1]}
    for name, text in texts.items():
        check_lines(name, text, report)
        check_paths(name, text, known, folders, report)
        if name in code:
            check_includes(name, text, report)
            check_python(name, text, report)
            check_comments(name, text, report)
        if name.endswith(".md"):
            check_links(name, text, report)
        if name.endswith("CMakeLists.txt"):
            check_library(name, text, report)
    check_cycles(code, report)
    check_board(code, report)
    check_permits(code, report)
    check_functions(code, report)
    check_versions(texts, report)
    check_tree(names, report)
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
