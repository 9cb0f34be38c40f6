"""Read protobuf's text format, in which config.pbtxt is written, into plain dictionaries.

parse_text('name: "m" input { dims: [ 3, -1 ] }') == {"name": "m", "input": {"dims": [3, -1]}}

No schema is needed: a field that is written once is a value, one that is repeated is a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from onward.errors import OptionError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+|\#[^\n]*)
  | (?P<line>\n)
  | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?)(?![\w.]))
  | (?P<word>-?[A-Za-z_][\w.]*(?:/[\w./]+)?)
  | (?P<sign>[{}<>\[\]:,;])
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11,
            "\\": 92, "'": 39, '"': 34, "?": 63}  # fmt: skip
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)")
_WORDS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False,
          "inf": float("inf"), "-inf": float("-inf"), "infinity": float("inf"),
          "nan": float("nan")}  # fmt: skip
_CLOSING = {"{": "}", "<": ">"}
_DEEPEST = 100
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "text", "number", "word", "sign" or "end"
    text: str
    line: int


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a config.pbtxt."""
    try:
        text = path.read_text("utf-8-sig")  # editors of Windows write a BOM
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error
    return parse_text(text, str(path))


def parse_text(text: str, where: str = "config") -> dict[str, Any]:
    """The fields of a message in text format; errors name `where` and the line."""
    return _Parser(_tokens(text, where), where).message("", 0)


def _tokens(text: str, where: str) -> list[_Token]:
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].split("\n", 1)[0]
            what = "a text without its closing quote" if rest[0] in "\"'" else f"{rest[:20]!r}"
            raise OptionError(f"{where}:{line}: {what} is not protobuf text")
        if match.lastgroup == "line":
            line += 1
        elif match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match[0], line))
            line += match[0].count("\n")
        at = match.end()
    found.append(_Token("end", "the end of the file", line))
    return found


class _Parser:
    """A walk over tokens, from left to right."""

    def __init__(self, tokens: list[_Token], where: str) -> None:
        self.tokens, self.at, self.where = tokens, 0, where

    def message(self, end: str, depth: int) -> dict[str, Any]:
        """Fields until the sign `end`, or the end of the file where that is empty."""
        if depth > _DEEPEST:
            raise self.error(f"messages are nested more than {_DEEPEST} deep")
        fields: dict[str, Any] = {}
        lists: set[str] = set()
        start = self.tokens[self.at - 1].line
        while True:
            token = self.next()
            if token.kind == "end":
                if end:
                    raise self.error(f"the {end!r} of the message in line {start} is missing")
                return fields
            if token.text == end:
                return fields
            name = self.field_name(token)
            value = self.field_value(name, depth)
            if name not in fields:
                fields[name] = value
            else:
                if name not in lists and not isinstance(fields[name], list):
                    fields[name] = [fields[name]]
                fields[name] += value if isinstance(value, list) else [value]
                lists.add(name)
            if self.peek().text in (",", ";"):
                self.next()

    def field_name(self, token: _Token) -> str:
        if token.kind == "word":
            return token.text
        if token.text == "[":  # an extension, or the type of an Any
            name = self.next()
            if name.kind == "word" and self.next().text == "]":
                return f"[{name.text}]"
        raise self.error(f"expected the name of a field, found {_show(token)}", token)

    def field_value(self, name: str, depth: int) -> Any:
        token = self.peek()
        if token.text in _CLOSING and token.kind == "sign":
            return self.value(name, depth)
        if token.text == "[" and token.kind == "sign":  # of messages, the colon is optional
            return self.value(name, depth)
        if token.text != ":":
            raise self.error(f"expected ':' after {name!r}, found {_show(token)}", token)
        self.next()
        return self.value(name, depth)

    def value(self, name: str, depth: int) -> Any:
        token = self.next()
        if token.kind == "sign" and token.text in _CLOSING:
            return self.message(_CLOSING[token.text], depth + 1)
        if token.kind == "sign" and token.text == "[":
            return self.list(name, depth)
        if token.kind == "text":
            parts = [self.plain(_unquote, token)]
            while self.peek().kind == "text":
                parts.append(self.plain(_unquote, self.next()))
            return "".join(parts)
        if token.kind == "number":
            return self.plain(_number, token)
        if token.kind == "word":
            return _WORDS.get(token.text, token.text)
        raise self.error(f"expected a value of {name!r}, found {_show(token)}", token)

    def plain(self, read: Callable[[str], T], token: _Token) -> T:
        """A text or a number; one that Python cannot hold is an error."""
        try:
            return read(token.text)
        except ValueError:
            raise self.error(f"{_show(token)[:40]} is not a value", token) from None

    def list(self, name: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            if self.peek().text == "]":
                self.next()
                return found
            found.append(self.value(name, depth))
            token = self.peek()
            if token.text == ",":
                self.next()
            elif token.text != "]":
                raise self.error(f"expected ',' or ']' in {name!r}, found {_show(token)}", token)

    def next(self) -> _Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def error(self, text: str, token: _Token | None = None) -> OptionError:
        line = (token or self.tokens[self.at]).line
        return OptionError(f"{self.where}:{line}: {text}")


def _show(token: _Token) -> str:
    return token.text if token.kind == "end" else repr(token.text)


def _number(text: str) -> int | float:
    text = re.sub(r"\s", "", text)
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if digits[:2] in ("0x", "0X"):
        return sign * int(digits, 16)
    if digits.isdigit():
        is_octal = len(digits) > 1 and digits[0] == "0" and not set(digits) & set("89")
        return sign * int(digits, 8 if is_octal else 10)
    return sign * float(digits.rstrip("fF"))


def _unquote(text: str) -> str:
    """A text without its quotes; \\x and octal escapes are bytes of UTF-8."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(inner):
        parts += (inner[at : match.start()].encode(), _unescape(match[1]))
        at = match.end()
    return b"".join((*parts, inner[at:].encode())).decode()


def _unescape(code: str) -> bytes:
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return bytes([number]) if code[0] == "x" else chr(number).encode("utf-8", "replace")
    if code[0] in "01234567":
        return bytes([int(code, 8) & 255])
    return bytes([_ESCAPES[code]]) if code in _ESCAPES else code.encode()
