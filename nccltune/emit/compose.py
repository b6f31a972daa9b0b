"""Docker Compose ``env_file``: values without special characters bare, the rest in single quotes, where nothing expands.

Rules as documented for Compose env files (docs.docker.com, environment variables: interpolation syntax) and read from
compose-spec/compose-go dotenv/parser.go: bare values lose what follows `` #`` and expand ``$``; single quotes are
literal; double quotes know escapes and expand ``$``.
"""

import re

from nccltune.emit.document import Document, Variable, assignments, check_variable, comment_lines, finish, refuse
from nccltune.emit.findings import Reading, parsed
from nccltune.emit.line_lint import literal_dollar

NAME = "compose"
USE = "services.NAME.env_file: FILE in compose.yaml"
_BARE = re.compile(r"^[A-Za-z0-9_,;:^./=+@%-]+$")
_NAME = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*[=:]")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}


def render(variable: Variable) -> str:
    """Return the line of one variable."""
    check_variable(variable, NAME)
    value = variable.value
    if not value:
        refuse(variable, NAME, "an empty value sets the variable to nothing, which NCCL takes as unset", "leave it out")
    if value.endswith("\\"):
        refuse(
            variable,
            NAME,
            "a backslash before the closing quote escapes it in some Compose versions",
            "change the value",
        )
    if _BARE.match(value):
        return f"{variable.name}={value}"
    if "'" not in value:
        return f"{variable.name}='{value}'"
    if any(c in value for c in '$"\\`'):
        refuse(variable, NAME, "single quotes together with $, double quotes or backslashes are read differently by Compose versions",
               "use another format")  # fmt: skip
    return f'{variable.name}="{value}"'


def write(document: Document) -> str:
    """Return the file."""
    return finish([*comment_lines(document), *assignments(document, render)])


def parse(text: str) -> dict[str, str]:
    """Return the variables; raises InputError where Compose refuses the file."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as Compose does; ``$NAME`` is left as it stands and reported, for its value is not in the file."""
    reading = Reading()
    rest, line = text, 1
    while rest:
        if rest[0].isspace() or rest[0] == "\ufeff":
            line += rest[0] == "\n"
            rest = rest[1:]
        elif rest[0] == "#":
            rest = rest[rest.find("\n") :] if "\n" in rest else ""
        else:
            used = _statement(reading, rest, line)
            if used == 0:
                return reading
            line += rest.count("\n", 0, used)
            rest = rest[used:]
    return reading


def _statement(reading: Reading, text: str, line: int) -> int:
    """Read one assignment; return how many characters it took, 0 where Compose gives up on the file."""
    match = _NAME.match(text)
    whole = text.split("\n", 1)[0]
    if match is None:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*\s*", whole):
            reading.warning("passed-through", line, whole.strip(), f"{whole.strip()} has no =: Compose takes it from its own environment",
                            "write NAME=value")  # fmt: skip
            return len(whole)
        reading.problem(
            "file-refused",
            line,
            None,
            f"Compose refuses the file at '{whole.partition('=')[0].strip()}'",
            "write NAME=value",
        )
        return 0
    name = match.group(1)
    body = text[match.end() :]
    blanks = len(body) - len(body.lstrip(" \t"))
    body = body[blanks:]
    start = match.end() + blanks
    if body[:1] in ("'", '"'):
        return _quoted(reading, name, body, line, start)
    raw = body.split("\n", 1)[0]
    value = re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].rstrip()
    _expansion(reading, name, value, line)
    if "#" in value:
        reading.warning(
            "hash",
            line,
            name,
            f"{name}: older Compose versions cut a bare value at #",
            "put the value in single quotes",
        )
    reading.add(name, value, line)
    return start + len(raw)


def _quoted(reading: Reading, name: str, body: str, line: int, start: int) -> int:
    quote, at, out = body[0], 1, ""
    while at < len(body) and body[at] != quote:
        if body[at] == "\\" and at + 1 < len(body):
            out += _escape(quote, body[at + 1])
            at += 2
        else:
            out += body[at]
            at += 1
    if at >= len(body):
        reading.problem("file-refused", line, name, f"{name}: the quote never closes", "close it")
        return 0
    if quote == '"':
        _expansion(reading, name, out, line)
    reading.add(name, out.replace("\0", "$"), line)
    trailing = body[at + 1 :].split("\n", 1)[0]
    if trailing.strip() and not trailing.strip().startswith("#"):
        reading.problem(
            "after-quote",
            line,
            name,
            f"{name}: text after the closing quote: '{trailing.strip()}'",
            "quote the whole value",
        )
    return start + at + 1 + len(trailing)


def _escape(quote: str, char: str) -> str:
    if quote == "'":
        return "'" if char == "'" else f"\\{char}"
    if char == "$":
        return "\0"  # a protected dollar, put back after the search for expansions
    return _ESCAPES.get(char, char)


def _expansion(reading: Reading, name: str, value: str, line: int) -> None:
    found = literal_dollar(value)
    if found and not found.startswith("`"):
        reading.problem("interpolated", line, name, f"{name}: Compose replaces {found} by its own environment's value",
                        "put the value in single quotes")  # fmt: skip
