"""Numbers in other people's text: what is one, and a note of those that are none, so that none is dropped in silence."""

from collections import Counter
from dataclasses import dataclass, field

_SHOWN = 5


def number(value: object) -> float | None:
    """A finite number; None for NaN, infinity, truth values and text that is none (Python's ``1_0`` is text here)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if abs(read) < 1e18 else None


@dataclass(slots=True)
class Unread:
    """What stood where a number or a document was expected: counted, for a warning."""

    values: Counter[str] = field(default_factory=Counter)
    """``accept len: nan`` and how often."""
    num_broken: int = 0
    """Lines that should be JSON and are not whole."""
    num_unknown: int = 0
    """Whole documents that hold no result."""

    def number(self, name: str, value: object) -> float | None:
        """Read ``value``; what is there and is no number is noted under ``name``."""
        found = number(value)
        if found is None and value is not None:
            self.values[f"{name}: {str(value)[:40]}"] += 1
        return found

    def warnings(self) -> list[str]:
        """Say what was left out."""
        found = []
        if self.values:
            shown = ", ".join(text if n == 1 else f"{text} (x{n})" for text, n in list(self.values.items())[:_SHOWN])
            more = f" and {len(self.values) - _SHOWN} more" if len(self.values) > _SHOWN else ""
            found.append(f"not a number, left out: {shown}{more}")
        if self.num_broken:
            found.append(
                f"lines that are no whole JSON (cut off, or garbage), left out: {self.num_broken}; a result may be missing"
            )
        if self.num_unknown:
            found.append(f"JSON documents without a known result, left out: {self.num_unknown}")
        return found
