"""One finding: what was found, and where it is not well, why it matters and what to do."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis."""

    topic: str
    status: Status
    what: str
    why: str = ""
    do: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


def ok(topic: str, what: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(topic, "ok", what)


def warning(topic: str, what: str, why: str, do: str) -> Finding:
    """Return a finding that may cost time or trust."""
    return Finding(topic, "warning", what, why, do)


def problem(topic: str, what: str, why: str, do: str) -> Finding:
    """Return a finding that stands in the way of measuring or serving."""
    return Finding(topic, "problem", what, why, do)
