"""What is emitted, before it has a format: variables with their evidence, comment lines, engine flags, per-size rules."""

import re
from dataclasses import dataclass, field
from typing import Any

from nccltune.errors import InputError

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MARK = "nccltune emit"
"""First words of every file written here: what 'emit -o' looks for before it replaces a file."""

HOLDS = "holds: "
"""Header line that tells 'check' how many variables or rules the whole file has."""
WRITTEN_FOR = "written for: NCCL "
"""Header line that 'check' reads the NCCL version from."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable and the comment that says why it is there."""

    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Speculation:
    """SGLang's speculative triple. ``num_draft_tokens`` is the width of one verify, root included."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    draft_model: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a per-size policy, bounds included. ``num_channels`` is explicit, or 0 (tuner-plugin only): NCCL's own."""

    collective: str
    min_bytes: int
    max_bytes: int
    algo: str
    proto: str
    num_channels: int
    num_ranks: int
    num_nodes: int = 1


@dataclass(frozen=True)
class Document:
    """Everything one emitted file says. Immutable; formats only render it."""

    variables: tuple[Variable, ...] = ()
    header: tuple[str, ...] = ()
    speculation: Speculation | None = None
    engine_flags: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """The variables as a dictionary."""
        return {variable.name: variable.value for variable in self.variables}


def comment_lines(document: Document, prefix: str = "# ") -> list[str]:
    """Return the header and the warnings as comment lines that no consumer can misread."""
    lines = [*document.header, *(f"WARNING: {text}" for text in document.warnings)]
    return [comment(line, prefix) for line in lines]


def comment(text: str, prefix: str = "# ") -> str:
    """Return one comment line: a single line of ASCII that does not end in a backslash (a continuation in systemd)."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text).rstrip()
    return f"{prefix}{plain}{'.' if plain.endswith(chr(92)) else ''}".rstrip()


def assignments(document: Document, render: Any) -> list[str]:
    """Return the lines ``# comment`` and ``render(variable)`` of every variable."""
    lines: list[str] = []
    for variable in document.variables:
        if variable.comment:
            lines.append(comment(f"{variable.name}: {variable.comment}"))
        lines.append(render(variable))
    return lines


def finish(lines: list[str]) -> str:
    """Join lines with LF and end with one."""
    return "\n".join(lines) + "\n"


def check_variable(variable: Variable, form: str) -> None:
    """Raise InputError for a name or value that no line of any format can carry."""
    if not _NAME.match(variable.name):
        raise InputError(
            f"'{variable.name}' cannot be written to a {form} file",
            "a variable name is letters, digits and underscores, and does not start with a digit",
            "correct the name",
        )
    bad = [c for c in variable.value if (c < " " and c != "\t") or c == "\x7f" or "\ud800" <= c <= "\udfff"]
    if bad:
        refuse(variable, form, f"its value holds the control character {bad[0]!r}", "remove that character")


def refuse(variable: Variable, form: str, why: str, do: str) -> None:
    """Raise the InputError for a value that ``form`` cannot carry."""
    raise InputError(f"{variable.name}={variable.value!r} cannot be written to a {form} file", why, do)


def literal_line(variable: Variable, name: str) -> str:
    """Return ``NAME=value`` for formats that take the value as it stands, to the end of the line."""
    check_variable(variable, name)
    if variable.value.endswith("\\"):
        why = "the line would end in a backslash, which other readers join with the next line"
        refuse(variable, name, why, "change the value")
    if not variable.value:
        refuse(variable, name, "an empty value sets the variable to nothing, which NCCL takes as unset", "leave it out")
    return f"{variable.name}={variable.value}"
