"""Generate mutants: small bugs that operators insert in the code of the package.

Strings, comments, imports, signatures, assertions, declarations and constants that only tune speed
are not mutated. The order of the mutants depends on nothing but the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

STRING = r'[rRbBuUfF]{0,2}(?:"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
TYPE = r"(?:const )?(?:unsigned |signed )?[A-Za-z_][\w.]*(?: long)*(?:\[[^\]\n]*\])?[ ]?[*&]*\??"
CAST = rf"<{TYPE}>(?=[\w(&*<\-~])"
NUMBER = r"0[xX][0-9a-fA-F]+[uUlL]*|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?[uUlLfF]*"
OPERATOR = r"\*\*=?|//=?|>>=?|<<=?|[-+*/%&|^]=|==|!=|<=|>=|->|:=|&&|\|\||\+\+|--|[^\s\w]"
COMMENT = {"py": r"\#[^\n]*", "c": r"/\*.*?\*/|//[^\n]*|^[ ]*\#(?:[^\n\\]|\\.)*"}
LEXERS = {
    kind: re.compile(
        rf"(?P<comment>{comment})|(?P<string>{STRING})|(?P<number>\b(?:{NUMBER}))"
        rf"|(?P<cast>{CAST if kind == 'py' else '(?!)'})|(?P<name>[A-Za-z_]\w*)|(?P<newline>\n)"
        rf"|(?P<blank>[ \t]+|\\\n)|(?P<op>{OPERATOR})",
        re.DOTALL | re.MULTILINE,
    )
    for kind, comment in COMMENT.items()
}
INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d[\d_]*)([uUlL]*)")
BINARY = {  # operators between blanks
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), "relation"),
    **dict.fromkeys(("+", "-", "+=", "-="), "arithmetic"),
    **dict.fromkeys((">>", "<<", "&", "|"), "mask"),
}
OTHER = {  # what replaces an operator or a name
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"+": "-", "-": "+", "+=": "-=", "-=": "+=", ">>": "<<", "<<": ">>", "&": "|", "|": "&"},
    **{"and": "or", "or": "and", "&&": "||", "||": "&&", "min": "max", "max": "min"},
    **{"break": "continue", "continue": "break", "True": "False", "False": "True"},
}
LOGIC = {"and", "or", "&&", "||"}
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
# A clause of a condition begins after one of these and ends before one.
BOUNDS = {*LOGIC, "if", "elif", "else", "while", "return", "not", "for", "in", "yield", "assert"}
BOUNDS |= {",", ":", ";", "=", ":=", "?"}
IGNORED = {"import", "from", "cimport", "include", "class", "def", "async", "global", "nonlocal"}
IGNORED |= {"assert", "@", "del", "with", "try", "else", "finally", "__all__", "ctypedef"}
SKIPPED_BLOCKS = ("cdef extern", "cdef struct", "cdef union", "ctypedef struct", "if TYPE_CHECKING")
# Constants and calls that change only how long something takes, or what is logged.
TUNING = re.compile(
    r"NOGIL|RELEASE_GIL|_FROM_|CAPACITY|PIECE|BUDGET|HUGE|PER_TURN|prefetch|\blog\."
)


@dataclass(frozen=True)
class Edit:
    """The text from ``begin`` to ``end`` is replaced with ``new``."""

    operator: str
    begin: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """One small bug."""

    file: str
    line: int
    edit: Edit
    old: str  # the text that is replaced
    context: str  # the line without indentation

    def apply(self, text: str) -> str:
        return text[: self.edit.begin] + self.edit.new + text[self.edit.end :]

    def __str__(self) -> str:
        old = " ".join(self.old.split())[:60]
        return f"{self.file}:{self.line} {self.edit.operator}: {old} -> {self.edit.new or None}"


@dataclass
class Token:
    kind: str
    text: str
    begin: int
    end: int


@dataclass
class Function:
    """The function that contains a statement."""

    name: str = ""
    signature: str = ""
    types: dict[str, str] = field(default_factory=dict)  # of its variables
    body_indent: int = 0


@dataclass
class Statement:
    """A logical line, without blanks and comments."""

    tokens: list[Token]
    indent: int
    function: Function = field(default_factory=Function)
    is_whole: bool = True  # false for the value of a declaration

    @property
    def words(self) -> list[str]:
        return [token.text for token in self.tokens]


def generate(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a file."""
    found = []
    lines = text.split("\n")
    for statement in code_of(text, file):
        for edit in edits_of(statement, text, file):
            at = text.count("\n", 0, edit.begin)
            old = text[edit.begin : edit.end]
            found.append(Mutant(file, at + 1, edit, old, lines[at].strip()))
    return found


# --- statements ----------------------------------------------------------------------------------


def statements(text: str, is_c: bool) -> Iterator[Statement]:
    """Split a file into logical lines."""
    tokens: list[Token] = []
    depth = 0
    for found in LEXERS["c" if is_c else "py"].finditer(text):
        token = Token(found.lastgroup or "", found[0], found.start(), found.end())
        if token.kind not in ("comment", "blank", "newline"):
            tokens.append(token)
        if token.kind == "op":
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if is_c and token.text in "{}" and "=" not in [each.text for each in tokens]:
                depth = 0
        is_end = token.text in (";", "{", "}") if is_c else token.kind == "newline"
        if is_end and depth == 0 and tokens:
            begin = tokens[0].begin
            yield Statement(tokens, begin - text.rfind("\n", 0, begin) - 1)
            tokens = []


def declared_types(text: str, is_c: bool) -> dict[str, str]:
    """Return the names of a signature or a declaration, with their types."""
    if not is_c:
        return {name: kind.strip() for name, kind in re.findall(r"(\w+): ([\w.\[\] |]+)", text)}
    pattern = r"((?:const |unsigned )?[A-Za-z_][\w.]*[ *]+)(\w+)(?= not None)?(?=[,=)\s]|$)"
    found = {name: kind.replace(" ", "") for kind, name in re.findall(pattern, text)}
    keywords = ("return", "inline", "cdef", "in", "not")
    return {name: kind for name, kind in found.items() if kind not in keywords}


def code_of(text: str, file: str) -> Iterator[Statement]:
    """Yield the statements that can be mutated, with their functions."""
    if file.endswith(".h"):
        yield from code_of_c(text)
        return
    is_cython = file.endswith((".pyx", ".pxd"))
    function = Function()
    skipped: int | None = None  # the indentation of a block that is skipped
    for each in statements(text, False):
        words = each.words
        source = text[each.tokens[0].begin : each.tokens[-1].end]
        if skipped is not None and each.indent > skipped:
            continue
        skipped = None
        if source.startswith(SKIPPED_BLOCKS):
            skipped = each.indent
            continue
        is_header = words[-1] == ":" and words[0] in ("def", "cdef", "cpdef", "async", "class")
        if is_header and "(" in words and "class" not in words[:2]:
            types = declared_types(source.partition("(")[2], is_cython)
            function = Function(words[words.index("(") - 1], source, types)
            continue
        if is_header or words[0] in IGNORED or TUNING.search(source):
            continue
        if each.indent == 0:
            function = Function()
        function.body_indent = function.body_indent or each.indent
        each.function = function
        if words[0] == "cdef":
            function.types |= declared_types(source[5:], True)
        if all(token.kind == "string" for token in each.tokens):
            continue
        is_annotated = re.match(r"[\w.]+: ", source) and words[-1] != ":"
        if words[0] == "cdef" or is_annotated:  # only what follows "=" is code
            at = words.index("=") + 1 if "=" in words else len(words)
            each.tokens, each.is_whole = each.tokens[at:], False
            if not each.tokens:
                continue
        yield each


def code_of_c(text: str) -> Iterator[Statement]:
    function = Function()
    for each in statements(text, True):
        words = each.words
        source = text[each.tokens[0].begin : each.tokens[-1].end]
        if each.indent == 0 and words[-1] == "{" and "(" in words:
            name = words[words.index("(") - 1]
            function = Function(name, "", declared_types(source, True), 4)
        elif each.indent > 0 or (words[0] == "static" and words[-1] == ";"):
            function.types |= declared_types(source, True) if words[-1] == ";" else {}
            each.function = function
            if not TUNING.search(source):
                yield each


# --- operators -----------------------------------------------------------------------------------


def edits_of(statement: Statement, text: str, file: str) -> Iterator[Edit]:
    """Yield all mutants of a statement."""
    is_c = file.endswith(".h")
    has_masks = not file.endswith(".py")
    tokens, words = statement.tokens, statement.words
    source = text[tokens[0].begin : tokens[-1].end]
    if words[0] == "except":
        yield from narrower_excepts(tokens, words)
        return
    for i, token in enumerate(tokens):
        word, begin, end = token.text, token.begin, token.end
        following = words[i + 1] if i + 1 < len(words) else ""
        previous = words[i - 1] if i else ""
        is_binary = i > 0 and text[begin - 1] in " \n" and text[end : end + 1] in (" ", "\n")
        if is_binary and word in BINARY and (BINARY[word] != "mask" or has_masks):
            yield Edit(BINARY[word], begin, end, OTHER[word])
        elif word in LOGIC:
            yield Edit("logic", begin, end, OTHER[word])
            yield from dropped_clauses(tokens, words, i)
        elif token.kind == "name" and word in OTHER and (word[0] != "m" or following == "("):
            yield Edit("name", begin, end, OTHER[word])
        elif token.kind == "number":
            if not (source == "return 0" and "except" in statement.function.signature):
                yield from changed_numbers(token)
        elif word == "is" and following:
            has_not = following == "not"
            yield Edit("relation", begin, tokens[i + has_not].end, "is" if has_not else "is not")
        elif (word == "not" and previous != "is" and following != "None") or word == "!":
            yield Edit("not", begin, tokens[i + 1].begin, "")
        elif word in ("if", "elif", "while"):
            yield from fixed_conditions(tokens, words, i, is_c)
        elif word in "(,":
            yield from changed_arguments(tokens, words, i, statement.function.types)
    yield from changed_statements(statement, words, source, is_c)


def changed_numbers(token: Token) -> Iterator[Edit]:
    found = INTEGER.fullmatch(token.text)
    if found is not None:
        value = int(found[1], 0)
        for other in (value + 1, value - 1) if value else (1,):
            number = f"{other:#x}" if found[1][:2] in ("0x", "0X") else str(other)
            yield Edit("constant", token.begin, token.end, number + found[2])


def clause_bounds(words: list[str], i: int) -> tuple[int, int]:
    """Return where the operands of the ``and`` or ``or`` at ``i`` begin and end."""
    left = i - 1
    depth = 0
    while left >= 0 and (depth or words[left] not in BOUNDS):
        depth += (words[left] in CLOSING) - (words[left] in OPENING)
        if depth < 0:
            break
        left -= 1
    right = i + 1
    depth = 0
    while right < len(words) and (depth or words[right] not in BOUNDS or right == i + 1):
        depth += (words[right] in OPENING) - (words[right] in CLOSING)
        if depth < 0:
            break
        right += 1
    return left + 1, right - 1


def dropped_clauses(tokens: list[Token], words: list[str], i: int) -> Iterator[Edit]:
    left, right = clause_bounds(words, i)
    if words[left - 1] not in ("not", "in", "for") and words[right : right + 2][-1] != "not":
        yield Edit("drop clause", tokens[left].begin, tokens[i + 1].begin, "")
        yield Edit("drop clause", tokens[i - 1].end, tokens[right].end, "")


def fixed_conditions(tokens: list[Token], words: list[str], i: int, is_c: bool) -> Iterator[Edit]:
    """Replace a condition of a statement or of a conditional expression with true and false."""
    if is_c:
        if words[i] == "if" and words[i + 1] == "(":
            end = tokens[closing(words, i + 1)].end
            for value in ("0", "1"):
                yield Edit("condition", tokens[i + 1].begin, end, f"({value})")
        return
    if i == 0:
        if words[-1] != ":":
            return
        last = len(words) - 2
    else:  # a conditional expression, or a comprehension, which has no else
        last, depth = i, 0
        while last + 1 < len(words) and (depth or words[last + 1] != "else"):
            last += 1
            depth += (words[last] in OPENING) - (words[last] in CLOSING)
            if depth < 0 or words[last] in ("if", "for"):
                return
        if last + 1 == len(words):
            return
    begin, end = tokens[i + 1].begin, tokens[last].end
    for value in ("False",) if words[i] == "while" else ("False", "True"):
        yield Edit("condition", begin, end, value)


def changed_arguments(
    tokens: list[Token], words: list[str], i: int, types: dict[str, str]
) -> Iterator[Edit]:
    """Drop the keyword argument after a comma; swap two neighbours of one type."""
    if words[i] == "," and words[i + 2 : i + 3] == ["="] and tokens[i + 1].kind == "name":
        depth, end = 0, i + 1
        while end < len(words) and (depth or words[end] not in (",", *CLOSING)):
            depth += (words[end] in OPENING) - (words[end] in CLOSING)
            end += 1
        if end < len(words) and words[end] != "]":
            yield Edit("drop argument", tokens[i].begin, tokens[end - 1].end, "")
    if i + 4 < len(words) and words[i + 2] == "," and words[i + 4] in (",", ")"):
        one, other = words[i + 1], words[i + 3]
        if one != other and types.get(one) and types.get(one) == types.get(other):
            yield Edit("swap", tokens[i + 1].begin, tokens[i + 3].end, f"{other}, {one}")


def narrower_excepts(tokens: list[Token], words: list[str]) -> Iterator[Edit]:
    """Catch one class of exceptions less."""
    if len(words) < 3:
        return
    if words[1] == "(":
        last = closing(words, 1)
        commas = [i for i in range(2, last) if words[i] == ","]
        for begin, end in pairwise([1, *commas, last]):
            if begin == 1 and end < last:
                yield Edit("narrow except", tokens[2].begin, tokens[end + 1].begin, "")
            elif begin > 1 and end > begin + 1:
                yield Edit("narrow except", tokens[begin].begin, tokens[end - 1].end, "")
    else:
        end = words.index("as") if "as" in words else len(words) - 1
        yield Edit("narrow except", tokens[1].begin, tokens[end - 1].end, "()")


ASSIGNMENT = re.compile(r"\*?[A-Za-z_][\w.]*(?:->\w+)*(?:\[[^=\n]*\])? (?:[-+*/|&^]|<<|>>|//)?= ")
CALL = re.compile(r"(?:await )?([A-Za-z_][\w.]*)\(")


def changed_statements(
    statement: Statement, words: list[str], source: str, is_c: bool
) -> Iterator[Edit]:
    """Drop the whole statement, or return something else."""
    function = statement.function
    begin, end = statement.tokens[0].begin, statement.tokens[-1].end
    nothing = ";" if is_c else "pass"
    if not function.name or not statement.is_whole:
        return
    assignment, call = ASSIGNMENT.match(source), CALL.match(source)
    if assignment and (is_c or re.search(r"[.\[]|[^ ]= $", assignment[0])):
        yield Edit("drop assignment", begin, end, nothing)
    elif call and call[1] not in ("if", "for", "while", "switch"):
        if closing(words, words.index("(")) == len(words) - 1 - is_c:
            yield Edit("drop call", begin, end, nothing)
    elif words[0] in ("return", "raise") and not is_c and statement.indent > function.body_indent:
        yield Edit(f"drop {words[0]}", begin, end, nothing)
    if words[0] == "return" and len(words) == 2 + is_c:
        kind = function.types.get(words[1])
        same = [name for name, other in function.types.items() if kind == other != words[1]]
        for name in [name for name in same if kind and name != words[1]][:2]:
            yield Edit("return", begin, end, f"return {name}" + ";" * is_c)
        if re.match(r"def|async def", function.signature) and words[1] not in ("None", "self"):
            yield Edit("return", begin, end, "return None")


def closing(words: list[str], opening: int) -> int:
    """Return the index of the bracket that closes the one at ``opening``."""
    depth = 0
    for i in range(opening, len(words)):
        depth += (words[i] in OPENING) - (words[i] in CLOSING)
        if depth == 0:
            return i
    return -1
