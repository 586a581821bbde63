"""How long the functions of a C++ file are, from the first line of the signature to the closing brace, lambdas and local classes
included. Counts braces: enough for code that clang-format has laid out, where a body's brace stands after a space."""
import re

QUOTED = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
ACCESS = re.compile(r"(?:\s|(?:public|private|protected):)*")
CONTAINER = re.compile(r'(?:template\s*<[^{};]*>\s*)?(?:inline\s+)?(?:namespace\b|extern "|class\b|struct\b|union\b|enum\b)')


def blank(match):
    """The same lines with nothing on them."""
    return re.sub(r"[^\n]", " ", match.group(0))


def kind_of(head):
    """What a brace after `head` opens in a namespace or class."""
    if CONTAINER.match(head):
        return "container"
    return "function" if "(" in head and head[-1].isspace() and head.rstrip()[-1] not in "=,(" else "value"


def functions(text):
    """(first line, number of lines, signature) of every function that has a body."""
    text = DIRECTIVE.sub(blank, QUOTED.sub(blank, text))
    found = []
    around = []  # what each open brace has opened, and where its head began
    begin, parentheses = 0, 0
    for match in re.finditer(r"[(){};]", text):
        at, letter = match.start(), match.group(0)
        parentheses += {"(": 1, ")": -1}.get(letter, 0)
        outside = parentheses == 0 and all(kind == "container" for kind, _ in around)
        if letter == "{":
            begin = ACCESS.match(text, begin, at).end() if outside else begin
            kind = kind_of(text[begin:at]) if outside else "value"
            around.append((kind, begin))
            begin = begin if kind == "value" else at + 1
        elif letter == "}" and around:
            kind, first = around.pop()
            if kind == "function":
                line = text.count("\n", 0, first) + 1
                found.append((line, text.count("\n", first, at) + 1, " ".join(text[first:text.index("{", first)].split())))
            begin = begin if kind == "value" else at + 1
        elif letter == ";" and outside:
            begin = at + 1
    return found
