"""What reading an env file finds: the assignments as the consumer sees them, and what is wrong with them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from nccltune.errors import InputError

Level = Literal["problem", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One complaint: where, what is wrong, and what to write instead."""

    level: Level
    code: str
    message: str
    advice: str = ""
    line: int | None = None
    variable: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return {
            "level": self.level,
            "code": self.code,
            "line": self.line,
            "variable": self.variable,
            "message": self.message,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One assignment as the consumer reads it."""

    name: str
    value: str
    line: int


@dataclass
class Reading:
    """A file as its consumer reads it."""

    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    first_wins: bool = False
    """NCCL's own file sets a variable only when it is unset, so its first assignment counts; elsewhere the last."""

    def add(self, name: str, value: str, line: int) -> None:
        """Record one assignment."""
        self.entries.append(Entry(name, value, line))

    def problem(self, code: str, line: int | None, variable: str | None, message: str, advice: str = "") -> None:
        """Record something that makes the consumer read another value than the one meant."""
        self.findings.append(Finding("problem", code, message, advice, line, variable))

    def warning(self, code: str, line: int | None, variable: str | None, message: str, advice: str = "") -> None:
        """Record something worth a look."""
        self.findings.append(Finding("warning", code, message, advice, line, variable))

    def values(self) -> dict[str, str]:
        """Return the value of each variable that the consumer ends up with."""
        result: dict[str, str] = {}
        for entry in self.entries:
            if not (self.first_wins and entry.name in result):
                result[entry.name] = entry.value
        return result

    def line_of(self, name: str) -> int | None:
        """Return the line of the assignment that counts."""
        lines = [entry.line for entry in self.entries if entry.name == name]
        return (lines[0] if self.first_wins else lines[-1]) if lines else None


def parsed(reading: Reading, form: str) -> dict[str, str]:
    """Return the values, or raise InputError where the consumer refuses the whole file."""
    for finding in reading.findings:
        if finding.code in ("unreadable", "file-refused"):
            where = f" line {finding.line}" if finding.line else ""
            raise InputError(f"not a readable {form} file:{where} {finding.message}", "", finding.advice)
    return reading.values()


def lines_of(text: str) -> list[str]:
    """Split at LF only: what else Python calls a line end is an ordinary character to every consumer here."""
    lines = text.split("\n")
    return lines[:-1] if lines and not lines[-1] else lines
