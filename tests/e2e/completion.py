#!/usr/bin/env python3
"""Completes words of `tutti` in a real shell, by the script that `tutti completion` prints; or checks its man pages."""
import argparse
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
# A line that is typed -> words that must be offered, words that must not.
LINES = {
    "tutti r": (["run"], ["env"]),
    "tutti run --bi": (["--bind-to"], ["--map-by"]),
    "tutti run --bind-to ": (["core", "none", "numa"], ["auto"]),
    "tutti run -n 2 --hostfile nod": (["nodes.txt"], ["nodes"]),
    "tutti run --mca a b --dry": (["--dry-run"], []),
    "tutti run -n 2 print": (["printenv"], ["--dry-run"]),
    "tutti run -- --dry": ([], ["--dry-run"]),
    "tutti run --tag-output=": ([], ["printenv"]),  # it takes no value
    "tutti env --j": (["--json"], ["--help"]),
    "tutti completion ": (["bash", "fish", "zsh"], ["run"]),
    "tutti man b": (["backends"], ["bash"]),
}

# A line that is typed in bash -> what Tab makes of it.
LINES_OF_BASH = {
    "tutti run --log-dir pl": "tutti run --log-dir plain/",
    "tutti run --log-dir=pl": "tutti run --log-dir=plain/",
    "tutti run --wdir my": "tutti run --wdir my\\ logs/",
    "tutti run --wdir my\\ l": "tutti run --wdir my\\ logs/",
    "tutti run ./my": "tutti run ./my\\ logs/",
    "tutti run --hostfile nod": "tutti run --hostfile nodes.txt ",
    "tutti run --log-dir 'my logs' -n 2 printen": "tutti run --log-dir 'my logs' -n 2 printenv ",
    "tutti run -x A=printen": "tutti run -x A=printen",
    "tutti run -x A=b printen": "tutti run -x A=b printenv ",
    "tutti run --bind-to=c": "tutti run --bind-to=core ",
}


def check(line, offered):
    wanted, unwanted = LINES[line]
    missing = [word for word in wanted if word not in offered]
    wrong = [word for word in unwanted if word in offered]
    if missing or wrong:
        sys.exit(f"completion: {line!r} offers {sorted(offered)[:20]}: without {missing}, with {wrong}")


def by_bash(folder, environment):
    # As readline calls it, without bash-completion's own helpers.
    program = """source <(tutti completion bash); compopt() { :; }
read -ra COMP_WORDS <<<"${1//=/ = }"; [[ $1 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tutti; printf '%s\\n' "${COMPREPLY[@]}" """
    for line in LINES:
        out = subprocess.run(["bash", "--norc", "-c", program, "bash", line], cwd=folder, env=environment, text=True,
                             check=True, stdout=subprocess.PIPE, timeout=60).stdout
        check(line, out.split())
    terminal = Terminal(folder, environment, ["bash", "--norc", "--noprofile", "-i"])
    try:
        # Ctrl-T says what the line has become.
        terminal.type("PS1=; stty -echo; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; source <(tutti completion bash); "
                      "show() { printf '\\nLINE<%s>END\\n' \"$READLINE_LINE\"; READLINE_LINE=; }; bind -x '\"\\C-t\": show'; echo REA''DY\n")
        terminal.until("READY")
        for line, wanted in LINES_OF_BASH.items():
            terminal.type(line + "\t\x14")
            said = terminal.until(">END")
            became = said[said.rindex("LINE<") + 5:]
            if became != wanted:
                sys.exit(f"completion: {line!r} becomes {became!r}, not {wanted!r}")
    finally:
        terminal.close()


def by_fish(folder, environment):
    for line in LINES:
        out = subprocess.run(["fish", "--no-config", "-c", 'tutti completion fish | source; complete -C "$argv[1]"', line],
                             cwd=folder, env=environment, text=True, check=True, stdout=subprocess.PIPE, timeout=60).stdout
        check(line, [row.split("\t")[0] for row in out.splitlines()])


class Terminal:
    """Of a shell that reads keys."""

    def __init__(self, folder, environment, shell):
        self.process, self.end = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe(shell[0], shell, dict(environment, TERM="dumb", COLUMNS="1000", LINES="500"))

    def until(self, text, seconds=30):
        seen = ""
        deadline = time.monotonic() + seconds
        while text not in seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.end], [], [], left)[0]:
                sys.exit(f"completion: the shell has not said {text!r} within {seconds} s, but {seen[-500:]!r}")
            seen += os.read(self.end, 65536).decode(errors="replace")
        return seen[:seen.index(text)]

    def type(self, text):
        os.write(self.end, text.encode())

    def close(self):
        os.close(self.end)  # a hangup
        os.waitpid(self.process, 0)


def by_zsh(folder, environment):
    terminal = Terminal(folder, environment, ["zsh", "-f", "-i"])  # which completes at a terminal only
    try:
        # Ctrl-T says what would be offered, in a line of its own.
        terminal.type(
            f"PS1=; PROMPT_EOL_MARK=; unsetopt zle_bracketed_paste; stty -echo; autoload -Uz compinit; compinit -u -d {folder}/dump; "
            "source <(tutti completion zsh); "
            "compadd() { builtin compadd -O found \"$@\"; offered+=(\"${found[@]}\"); builtin compadd \"$@\" }; "
            "offer() { offered=(); zle complete-word; print; print \"OFFERED ${(j: :)offered} END\"; zle kill-buffer }; "
            "zle -C complete-word complete-word _main_complete; zle -N offer; bindkey '^T' offer; print REA''DY\n")
        terminal.until("READY")
        for line in LINES:
            terminal.type(line + "\x14")
            said = terminal.until(" END")
            check(line, [word.rstrip("=") for word in said[said.index("OFFERED ") + 8:].split()])
    finally:
        terminal.close()


def man_pages(folder, environment):
    names = subprocess.run(["tutti", "completion", "bash"], env=environment, text=True, check=True, stdout=subprocess.PIPE).stdout
    commands = re.search(r"compgen -W '([a-z ]+)", names).group(1).split()
    for command in [None, *commands]:
        page = subprocess.run(["tutti", "man", *filter(None, [command])], env=environment, text=True, check=True,
                              stdout=subprocess.PIPE).stdout
        done = subprocess.run(["groff", "-ww", "-man", "-Tascii", "-P-cbou"], input=page, text=True, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if done.stderr:
            sys.exit(f"completion: groff complains of the page of {command}: {done.stderr}")
        help_text = subprocess.run(["tutti", *filter(None, [command]), "--help"], env=environment, text=True, check=True,
                                   stdout=subprocess.PIPE).stdout
        for word in re.findall(r"^  (--?[a-z][a-z-]*)", help_text, re.M):
            if not re.search(rf"(^|\s){word}\b", done.stdout):
                sys.exit(f"completion: {word} is in the help of {command}, and not in its page:\n{done.stdout}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tutti", type=pathlib.Path, required=True)
    parser.add_argument("--in", dest="shell", choices=["bash", "zsh", "fish", "man"], required=True)
    arguments = parser.parse_args()
    tool = "groff" if arguments.shell == "man" else arguments.shell
    if shutil.which(tool) is None:
        print(f"skipped: {tool} is not installed; apt-get install {'groff-base' if tool == 'groff' else tool}")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "nodes.txt").touch()
        for name in ["plain", "my logs"]:
            (pathlib.Path(folder) / name).mkdir()
        environment = dict(os.environ, PATH=f"{arguments.tutti.resolve().parent}:{os.environ['PATH']}", HOME=folder)
        {"bash": by_bash, "zsh": by_zsh, "fish": by_fish, "man": man_pages}[arguments.shell](folder, environment)


main()
