"""systemd ``EnvironmentFile=``: shell-like quotes and backslashes, no ``export``, no ``$``, comments only at line start.

The reader follows the state machine of systemd's src/basic/env-file.c and systemd.exec(5).
"""

import re
from dataclasses import dataclass

from nccltune.emit.document import Document, Variable, assignments, check_variable, comment_lines, finish, refuse
from nccltune.emit.findings import Reading, parsed
from nccltune.emit.line_lint import literal_dollar

NAME = "systemd"
USE = "EnvironmentFile=/path/FILE under [Service]"
_BARE = re.compile(r"^[A-Za-z0-9_,;:^./=+@%-]+$")
_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_BLANK = " \t\r"
_DOUBLE_ESCAPES = '"\\`$'


def render(variable: Variable) -> str:
    """Return the line of one variable."""
    check_variable(variable, NAME)
    if not variable.value:
        refuse(variable, NAME, "an empty value sets the variable to nothing, which NCCL takes as unset", "leave it out")
    if _BARE.match(variable.value):
        return f"{variable.name}={variable.value}"
    escaped = "".join(f"\\{c}" if c in _DOUBLE_ESCAPES else c for c in variable.value)
    return f'{variable.name}="{escaped}"'


def write(document: Document) -> str:
    """Return the file."""
    return finish([*comment_lines(document), *assignments(document, render)])


def parse(text: str) -> dict[str, str]:
    """Return the variables that the service gets."""
    return parsed(read(text), NAME)


@dataclass
class _Assignment:
    """One ``KEY=value`` of the file: the decoded value, and the raw text for judging it."""

    key: str
    value: str
    raw: str
    line: int


def read(text: str) -> Reading:
    """Read as systemd does."""
    reading = Reading()
    for item in _scan(text, reading):
        if item.key.startswith("\ufeff"):
            reading.problem(
                "bom",
                item.line,
                item.key[1:],
                "a byte order mark: systemd drops the first assignment",
                "save as UTF-8 without BOM",
            )
        elif not _KEY.match(item.key):
            name = item.key.split()[-1] if item.key.split() else None
            advice = (
                "remove the word export"
                if item.key.startswith("export")
                else "a name is letters, digits and underscores"
            )
            reading.problem(
                "dropped",
                item.line,
                name,
                f"systemd drops the assignment to '{item.key}': the name is not valid",
                advice,
            )
        else:
            reading.add(item.key, item.value, item.line)
            _judge(reading, item)
    return reading


def _scan(text: str, reading: Reading) -> list[_Assignment]:
    found: list[_Assignment] = []
    at, line = 0, 1
    while at < len(text):
        end = at
        while end < len(text) and text[end] in _BLANK + "\n":
            line += text[end] == "\n"
            end += 1
        if end >= len(text):
            break
        if text[end] in "#;":
            stop = _end_of_comment(text, end)
        else:
            equals = re.compile(r"[=\n]").search(text, end)
            if equals is None or text[equals.start()] == "\n":
                stop = equals.start() if equals else len(text)
                word = text[end:stop].strip()
                reading.problem("dropped", line, None, f"systemd drops '{word}': there is no =", "write NAME=value")
            else:
                key = text[end : equals.start()].rstrip(_BLANK)
                value, stop = _value(text, equals.start() + 1)
                found.append(_Assignment(key, value, text[equals.start() + 1 : stop], line))
        line += text.count("\n", end, stop)
        at = stop
    return found


def _end_of_comment(text: str, at: int) -> int:
    """A comment ends at the line end, unless a backslash stands before it."""
    while at < len(text) and text[at] != "\n":
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))


def _value(text: str, at: int) -> tuple[str, int]:
    """Decode one value; return it and where its line ends."""
    out: list[str] = []
    solid = 0  # length up to the last character that is not trailing blank
    started = False
    while at < len(text) and text[at] != "\n":
        char = text[at]
        if not started and char in "'\"":
            part, at = _single(text, at + 1) if char == "'" else _double(text, at + 1)
            out.append(part)
            solid = len(out)
            continue
        if not started and char in _BLANK:
            at += 1
            continue
        started = True
        if char == "\\":
            if at + 1 < len(text) and text[at + 1] != "\n":
                out.append(text[at + 1])
            solid = len(out)
            at += 2
            continue
        out.append(char)
        if char not in _BLANK:
            solid = len(out)
        at += 1
    return "".join(out[:solid]), min(at, len(text))


def _single(text: str, at: int) -> tuple[str, int]:
    end = text.find("'", at)
    return (text[at:], len(text)) if end < 0 else (text[at:end], end + 1)


def _double(text: str, at: int) -> tuple[str, int]:
    out = ""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text):
            following = text[at + 1]
            if following in _DOUBLE_ESCAPES:
                out += following
            elif following != "\n":
                out += f"\\{following}"
            at += 2
        else:
            out += text[at]
            at += 1
    return out, at + 1


def _judge(reading: Reading, item: _Assignment) -> None:
    if (
        re.search(r"""(\s|["'])\s*#""", item.raw)
        and "#" in item.value
        and not re.fullmatch(r"""\s*(["']).*\1\s*""", item.raw)
    ):
        reading.problem("inline-comment", item.line, item.key,
                        f"{item.key}: systemd has no comments after a value: it reads '{item.value}'", "put the comment on its own line")  # fmt: skip
    found = literal_dollar(item.value)
    if found:
        reading.problem(
            "no-expansion",
            item.line,
            item.key,
            f"{item.key}: systemd keeps {found} as it stands",
            "write the value out",
        )
    if "\n" in item.value or item.raw.rstrip("\r").endswith("\\"):
        reading.problem(
            "continued",
            item.line,
            item.key,
            f"{item.key}: the value runs on into the next line",
            "end the value on its own line",
        )
