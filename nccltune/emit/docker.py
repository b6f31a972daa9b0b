"""``docker run --env-file``: NAME=value, literal to the end of the line. Quotes would become part of the value.

Rule read from docker/cli pkg/kvfile: leading blanks and lines that start with # are skipped, nothing else is touched.
"""

from nccltune.emit.document import Document, Variable, assignments, comment_lines, finish, literal_line
from nccltune.emit.findings import Reading, lines_of, parsed
from nccltune.emit.line_lint import inline_comment, literal_dollar, quoted

NAME = "docker"
USE = "docker run --env-file FILE"


def render(variable: Variable) -> str:
    """Return the line of one variable."""
    return literal_line(variable, NAME)


def write(document: Document) -> str:
    """Return the file."""
    return finish([*comment_lines(document), *assignments(document, render)])


def parse(text: str) -> dict[str, str]:
    """Return the variables; raises InputError where docker refuses the file."""
    return parsed(read(text), NAME)


def read(text: str) -> Reading:
    """Read as the docker command line does."""
    reading = Reading()
    for number, raw in enumerate(lines_of(text.removeprefix("\ufeff")), 1):
        line = raw.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name:
            reading.problem(
                "file-refused", number, None, "docker refuses the file: no variable name before =", "write NAME=value"
            )
        elif any(c.isspace() for c in name):
            hint = "remove the word export" if name.startswith("export") else "write NAME=value without spaces"
            reading.problem(
                "file-refused",
                number,
                name.split()[-1],
                f"docker refuses the whole file: '{name}' contains whitespace",
                hint,
            )
        elif not equals:
            reading.warning("passed-through", number, name, f"{name} has no =: docker takes it from its own environment, or drops it",
                            f"write {name}=value")  # fmt: skip
        else:
            reading.add(name, value, number)
            _judge(reading, name, value, number)
    return reading


def _judge(reading: Reading, name: str, value: str, number: int) -> None:
    if quoted(value):
        reading.problem("quotes", number, name, f"{name}: docker keeps the quotes: the value is {value}",
                        f"write {name}={quoted(value)}")  # fmt: skip
    if inline_comment(value) is not None:
        reading.problem("inline-comment", number, name, f"{name}: the comment is part of the value: '{value}'",
                        "put the comment on a line of its own")  # fmt: skip
    if literal_dollar(value):
        reading.problem(
            "no-expansion",
            number,
            name,
            f"{name}: docker does not expand {literal_dollar(value)}",
            "write the value out",
        )
    if value != value.rstrip() and inline_comment(value) is None:
        reading.problem(
            "trailing-space", number, name, f"{name}: the spaces at the end are part of the value", "remove them"
        )
