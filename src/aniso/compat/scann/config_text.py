"""The text that ScaNN's API passes settings in: protocol-buffer text format, read into dicts and written from them.

Only what such settings need: names, numbers, words, quoted strings, nested messages, comments. A name that comes twice
in a message becomes a list.
"""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

__all__ = ["Message", "Word", "read", "write"]

Message = dict[str, Any]  # values: int, float, bool, Word, str, Message, or a list of one of them

_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?:
        (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf\b|nan\b))
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>[{}:,;])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_DEEPEST = 32  # messages within messages


class Word(str):
    """A value that is written without quotes: the name of one of several choices."""


def read(text: str) -> Message:
    """The message that a text says; ValueError tells the place of what is not understood.

    >>> read('num_neighbors: 10 distance_measure { distance_measure: "DotProductDistance" }')
    {'num_neighbors': 10, 'distance_measure': {'distance_measure': 'DotProductDistance'}}
    """
    return _Reader(text).message(0)


def write(message: Message, indent: str = "") -> str:
    """The text of a message, one field to a line.

    >>> print(write({"brute_force": {"fixed_point": {"enabled": False}}}), end="")
    brute_force {
      fixed_point {
        enabled: false
      }
    }
    """
    lines = []
    for name, value in message.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                lines.append(f"{indent}{name} {{\n{write(one, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_shown(one)}\n")
    return "".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, Word):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.kind, self.value = "", ""
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._refuse("an unknown character")
        self._at, self.kind = match.end(), str(match.lastgroup)
        self.value = match.group(self.kind)

    def _refuse(self, what: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[max(self._at - 20, 0) : self._at + 20].strip()
        raise ValueError(f"the config has {what} in line {line}, near {near!r}; needed: fields as create_config writes")

    def message(self, depth: int) -> Message:
        """Fields up to the end, or to the closing brace of a message within another."""
        if depth > _DEEPEST:
            self._refuse(f"more than {_DEEPEST} messages within each other")
        found: Message = {}
        closing = ("sign", "}") if depth else ("end", "")
        while (self.kind, self.value) != closing:
            if self.kind != "word":
                self._refuse(
                    f"{self.value!r} where the name of a field should be" if self.value else "no closing brace"
                )
            name = self.value
            self._next()
            value = self._value(depth)
            if name in found:
                before = found[name]
                value = [*before, value] if isinstance(before, list) else [before, value]
            found[name] = value
            if self.kind == "sign" and self.value in ",;":
                self._next()
        if depth:
            self._next()
        return found

    def _value(self, depth: int) -> Any:
        colon = self.kind == "sign" and self.value == ":"
        if colon:
            self._next()
        if self.kind == "sign" and self.value == "{":
            self._next()
            return self.message(depth + 1)
        if not colon or self.kind not in ("string", "number", "word"):
            self._refuse("no value")
        kind, text = self.kind, self.value
        self._next()
        if kind == "string":
            return re.sub(r"\\(.)", r"\1", text[1:-1])
        if kind == "number":
            return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
        if text in ("true", "True", "false", "False"):
            return text in ("true", "True")
        return math.nan if text == "nan" else math.inf if text == "inf" else Word(text)
