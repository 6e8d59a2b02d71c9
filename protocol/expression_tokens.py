"""The tokens of the expression language, and the Python expression that they are written as.

Only tokens of the language come through, and only names it knows; `.from` becomes `["from"]`, so
that Python's keywords are ordinary members. Python's own lexer never sees a user's text: it knows
more kinds of numbers and texts, and warns about some of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from .expression_operations import FUNCTIONS, ExpressionError

SOURCE_CHARS_MAX = 2_000
BRACKET_DEPTH_MAX = 30
PREFIXES_MAX = 30  # of `-` and `not` in a row: Python's parser recurses once for each

ROOTS = frozenset({"input", "item", "itemKey", "steps", "workflow", "cycle"})
_WORDS = {"true": "True", "false": "False", "null": "None", "and": "and", "or": "or", "not": "not"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w]))
    |(?P<name>[^\W\d]\w*)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<op>==|!=|<=|>=|\*\*|//|[-+*/%<>()\[\],.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def write_python(source: str) -> str:
    """Returns the Python expression with the same meaning as `source`.

    Raises:
        ExpressionError: a limit, a token, a bracket depth or a name that isn't in the language.
    """
    if len(source) > SOURCE_CHARS_MAX:
        refuse(f"an expression of {len(source)} characters; at most {SOURCE_CHARS_MAX} are read")
    tokens = list(_read_tokens(source))
    if not tokens:
        refuse("an empty expression: write a value, like input.name")
    _check_nesting(tokens)
    _check_hyphens(tokens)
    return _rewrite(tokens)


def refuse(message: str) -> NoReturn:
    raise ExpressionError(message) from None


def shorten_source(source: str) -> str:
    text = source.strip()
    return repr(text if len(text) <= 80 else text[:77] + "…")


def _read_tokens(source: str) -> Iterator[_Token]:
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            _refuse_character(source, position)
        kind, text = str(match.lastgroup), match[0]
        if text in ("**", "//"):
            refuse(f"{text!r} is no operator of the language; it has + - * / %")
        if text.startswith("__"):
            refuse(f"{shorten_source(text)}: a name must not start with two underscores")
        if kind != "space":
            yield _Token(kind, text, position, match.end())
        position = match.end()


def _refuse_character(source: str, position: int) -> NoReturn:
    rest = source[position:]
    if rest[0] in "'\"":
        refuse(f"the text that starts with {shorten_source(rest)} has no end: close its quote")
    if rest[0] in "0123456789":
        refuse(
            f"{shorten_source(rest)} starts with no number of the language: write it like 12 or 1.5"
        )
    if rest[0] == "=":
        refuse("'=' is no operator: compare with '=='")
    refuse(f"{rest[0]!r} at character {position + 1} has no meaning in an expression")


def _check_nesting(tokens: list[_Token]) -> None:
    depth = prefixes = 0
    for token in tokens:
        is_prefix = token.text in ("-", "+", "not")
        prefixes = prefixes + 1 if is_prefix else 0
        if token.kind == "op":
            depth += (token.text in "([") - (token.text in ")]")
        if depth > BRACKET_DEPTH_MAX:
            refuse(f"brackets are nested deeper than {BRACKET_DEPTH_MAX}")
        if prefixes > PREFIXES_MAX:
            refuse(f"more than {PREFIXES_MAX} signs in a row")


def _check_hyphens(tokens: list[_Token]) -> None:
    """Refuses `steps.fetch-data.output`: it would read as a subtraction."""
    for i in range(len(tokens) - 4):
        root, dot, first, hyphen, _ = tokens[i : i + 5]
        if (root.text, dot.text, hyphen.text) != ("steps", ".", "-") or first.kind != "name":
            continue
        if i and tokens[i - 1].text == ".":
            continue
        name, last = first.text, i + 2
        while (
            last + 2 < len(tokens)
            and tokens[last + 1].text == "-"
            and tokens[last + 2].kind in ("name", "number")
            and tokens[last].end == tokens[last + 1].start
            and tokens[last + 1].end == tokens[last + 2].start
        ):
            name += "-" + tokens[last + 2].text
            last += 2
        if last > i + 2:
            refuse(
                f"steps.{name} reads as a subtraction: "
                f'an id with a hyphen is written steps["{name}"].output'
            )


def _rewrite(tokens: list[_Token]) -> str:
    """Returns the tokens as Python, separated by blanks; refuses names that mean nothing."""
    parts: list[str] = []
    after_dot = False
    for i, token in enumerate(tokens):
        following = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if after_dot:
            if token.kind != "name":
                refuse(f"after '.' comes a name; write [{token.text}] for other keys")
            parts.append(f"[{token.text!r}]")
        elif token.text == ".":
            if not parts or parts[-1] in ("and", "or", "not") or not _ends_value(tokens[i - 1]):
                refuse("'.' comes after a value, and before the name of a member")
            if not following:
                refuse("the expression ends with '.': write the name of a member after it")
        elif token.kind == "name":
            parts.append(_WORDS.get(token.text) or _check_name(token.text, following))
        elif token.kind == "text":
            if i and tokens[i - 1].kind == "text":
                refuse("two texts side by side: join them with '+'")
            parts.append(repr(_read_text(token.text)))
        else:
            parts.append(token.text)
        after_dot = token.text == "." and not after_dot
    return " ".join(parts)


def _ends_value(token: _Token) -> bool:
    return token.kind in ("name", "text") or token.text in (")", "]")


def _check_name(name: str, following: str) -> str:
    if name in FUNCTIONS:
        if following != "(":
            refuse(f"{name} is a function: write {name}(…)")
        return name
    if following == "(":
        refuse(f"{shorten_source(name)} is no function; there are {', '.join(sorted(FUNCTIONS))}")
    if name in ROOTS:
        return name
    if name.lower() in ("true", "false", "null", "none"):
        refuse(f"{name!r} is unknown: write true, false or null")
    if name in ("in", "is", "if", "else", "for", "lambda"):
        refuse(f"{name!r} is not part of the language")
    refuse(
        f"{shorten_source(name)} is unknown; an expression starts from {', '.join(sorted(ROOTS))}"
    )


def _read_text(quoted: str) -> str:
    text = _ESCAPE.sub(_read_escape, quoted[1:-1])
    try:
        # Two escapes may be the halves of one character; a half alone can't be recorded.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        refuse("a text holds half of a surrogate pair: write the whole character")
    if "\0" in text:
        refuse("a text holds a null character")
    return text


def _read_escape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if escape in "\\'\"/":
        return escape
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    refuse(f"'\\{escape}' is no escape; there are \\n \\t \\r \\b \\f \\\\ \\' \\\" \\/ \\u0000")
