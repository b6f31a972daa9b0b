"""NCCL's own file (``NCCL_CONF_FILE``, ``~/.nccl.conf``, ``/etc/nccl.conf``): NAME=value, literal, at most 1023 bytes.

Read from NVIDIA/nccl src/misc/param.cc (setEnvFile): # only as the first character of a line, nothing is trimmed, a
variable that is already set keeps its value, so of two lines the first counts and the environment beats both.
"""

from nccltune.emit.document import Document, Variable, assignments, comment_lines, finish, literal_line, refuse
from nccltune.emit.findings import Reading, lines_of, parsed
from nccltune.emit.line_lint import inline_comment, literal_dollar, quoted

NAME = "nccl-conf"
USE = "export NCCL_CONF_FILE=/path/FILE (2.23 or later), or save it as ~/.nccl.conf or /etc/nccl.conf"
MAX_BYTES = 1023


def render(variable: Variable) -> str:
    """Return the line of one variable."""
    line = literal_line(variable, NAME)
    if len(variable.value.encode()) > MAX_BYTES:
        refuse(variable, NAME, f"NCCL cuts values after {MAX_BYTES} bytes", "use another format")
    return line


def write(document: Document) -> str:
    """Return the file."""
    return finish([*comment_lines(document), *assignments(document, render)])


def parse(text: str) -> dict[str, str]:
    """Return the variables as NCCL sets them where none is set yet."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as NCCL does."""
    reading = Reading(first_wins=True)
    for number, line in enumerate(lines_of(text), 1):
        if line.startswith("#") or not line.strip("\r"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            reading.problem("dropped", number, None, f"NCCL skips '{line.strip()}': there is no =", "write NAME=value")
            continue
        bare = name.strip().removeprefix("export ").strip().lstrip("\ufeff")
        if name != bare:
            shown = name.replace("\ufeff", "<BOM>")
            reading.problem(
                "name",
                number,
                bare,
                f"NCCL sets a variable called '{shown}', not {bare}",
                f"start the line with {bare}=",
            )
            continue
        cut = value.encode()[:MAX_BYTES].decode(errors="ignore")
        reading.add(name, cut, number)
        _judge(reading, name, value, number)
    return reading


def _judge(reading: Reading, name: str, value: str, number: int) -> None:
    if quoted(value):
        reading.problem(
            "quotes",
            number,
            name,
            f"{name}: NCCL keeps the quotes: the value is {value}",
            f"write {name}={quoted(value)}",
        )
    if inline_comment(value) is not None:
        reading.problem(
            "inline-comment",
            number,
            name,
            f"{name}: the comment is part of the value: '{value}'",
            "put it on a line of its own",
        )
    if literal_dollar(value):
        reading.problem(
            "no-expansion", number, name, f"{name}: NCCL does not expand {literal_dollar(value)}", "write the value out"
        )
    if value.strip(" \t") != value and inline_comment(value) is None:
        reading.problem(
            "spaces", number, name, f"{name}: spaces around the value are part of it", f"write {name}={value.strip()}"
        )
    if len(value.encode()) > MAX_BYTES:
        reading.problem("too-long", number, name, f"{name}: NCCL cuts the value after {MAX_BYTES} bytes", "shorten it")
