"""Generate mutants: small bugs, each of which replaces a part of a line of the package.

Strings, comments, imports, signatures, assertions, declarations and lines that only tune speed are
not mutated. The order of the mutants depends on nothing but the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

STRING = r'[rbuf]{0,2}(?:"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
COMMENTS = {False: r"\#[^\n]*", True: r"/\*.*?\*/|//[^\n]*|^[ ]*\#(?:[^\n\\]|\\.)*"}
FLAGS = re.DOTALL | re.MULTILINE | re.IGNORECASE
OPERATOR = re.compile(
    r"(?<= )(?:[<>=!]=|[-+]=|<<|>>|[-+<>&|])(?=[ \n])|&&|\|\||\bis not\b|\bis\b"
    r"|(?<!is )\bnot (?!in\b)|\b(?:and|or|break|continue|True|False)\b|\b(?:min|max)(?=\()"
)
OTHER = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "not ": ""},
    **{"+": "-", "-": "+", "+=": "-=", "-=": "+=", ">>": "<<", "<<": ">>", "&": "|", "|": "&"},
    **{"and": "or", "or": "and", "&&": "||", "||": "&&", "is": "is not", "is not": "is"},
    **{"min": "max", "max": "min", "break": "continue", "continue": "break"},
    **{"True": "False", "False": "True"},
}
INTEGER = re.compile(r"(?<![\w.])(0x[0-9a-f]+|\d+)(?=[ul]*\b(?!\.))", re.IGNORECASE)
CONDITION = {
    False: re.compile(r"\s*(?:if|elif|while) (.*):$", re.DOTALL),
    True: re.compile(r"\s*(?:\} else )?if \((.*)\) \{?$"),
}
# A call, or an assignment to more than a variable.
STATEMENT = {
    False: re.compile(
        r"(?:await )?[\w.]+\(.*\)$|[\w.]+[.\[][^=]* \W?= .*|\w+ [^\w\s]= .*", re.DOTALL
    ),
    True: re.compile(r"(?!return)(?:\w+\(.*\)|[*\w.\[\]>-]+ \W{0,2}= .*);$"),
}
HEADER = re.compile(r"\s*(?:async )?(?:def|cdef|cpdef|class)\b.*:$", re.DOTALL)
IGNORED = re.compile(
    r"\s*(?:import|from|cimport|include|global|nonlocal|assert|@|del|with|try|else|finally|except"
    r"|ctypedef|cdef (?:extern|struct|union)|__all__|static |typedef )"
    # What changes only how long something takes, or what is logged.
    r"|.*(?:NOGIL|RELEASE_GIL|_FROM_|CAPACITY|PIECE|BUDGET|HUGE|PER_TURN|prefetch|\blog\.)",
    re.DOTALL,
)
DECLARED = re.compile(r"\s*(?:cdef [^=]*= |[\w.]+: [^=]*= )(?=.)")


class Mutant(NamedTuple):
    """The text from `begin` to `end` is replaced with `new`."""

    file: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        return text[: self.begin] + self.new + text[self.end :]

    def __str__(self) -> str:
        old = " ".join(self.old.split())[:60]
        return f"{self.file}:{self.line}: {old} -> {self.new.strip() or None}"


def generate(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a file."""
    is_c, found = file.endswith(".h"), []
    for begin, end, new in edits(masked(text, is_c), is_c, has_masks=not file.endswith(".py")):
        line = text.count("\n", 0, begin) + 1
        found.append(Mutant(file, line, begin, end, text[begin:end], new))
    return found


def masked(text: str, is_c: bool) -> str:
    """Replace the characters of comments with blanks, and those of strings with underscores."""

    def mask(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "_" if found[1] else " ", found[0])

    return re.sub(f"({STRING})|{COMMENTS[is_c]}", mask, text, flags=FLAGS)


def logical_lines(code: str, is_c: bool) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each line. Brackets join lines."""
    begin = depth = 0
    opening, closing = ("([", ")]") if is_c else ("([{", ")]}")
    for at, character in enumerate(code):
        depth += (character in opening) - (character in closing)
        if character == "\n" and depth <= 0:
            if line := code[begin:at].rstrip():
                yield begin, line
            begin, depth = at + 1, 0


def edits(code: str, is_c: bool, has_masks: bool) -> Iterator[tuple[int, int, str]]:
    body_indent = 0
    for at, line in logical_lines(code, is_c):
        indent = len(line) - len(line.lstrip())
        if is_c and indent == 0:
            continue
        if HEADER.match(line):
            body_indent = indent + 4
        elif not IGNORED.match(line) and not re.fullmatch(r"\s*_+", line):
            declared = None if is_c else DECLARED.match(line)
            if line.lstrip().startswith("cdef") and not declared:
                continue
            yield from edits_of(line, at, declared.end() if declared else 0, is_c, has_masks)
            source = line.lstrip()
            is_exit = source.startswith(("return", "raise")) and indent > body_indent and not is_c
            if is_exit or (indent >= 4 and not declared and STATEMENT[is_c].match(source)):
                yield at + indent, at + len(line), ";" if is_c else "pass"


def edits_of(
    line: str, at: int, first: int, is_c: bool, has_masks: bool
) -> Iterator[tuple[int, int, str]]:
    for found in OPERATOR.finditer(line, first):
        if has_masks or found[0] not in ("&", "|", "<<", ">>"):
            yield at + found.start(), at + found.end(), OTHER[found[0]]
    for found in INTEGER.finditer(line, first):
        is_hex = found[0][:2] in ("0x", "0X")
        value = int(found[0], 16 if is_hex else 10)
        for other in {value + 1, max(value - 1, 0)} - {value}:
            yield at + found.start(), at + found.end(), f"{other:#x}" if is_hex else str(other)
    if condition := CONDITION[is_c].match(line):
        is_loop = line.lstrip().startswith("while")
        for new in ("False",) if is_loop else ("0", "1") if is_c else ("False", "True"):
            yield at + condition.start(1), at + condition.end(1), new
