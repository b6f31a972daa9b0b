"""Bytes, times and lists of numbers: parse what people type, format what they read. The only place that does."""

import re

from nccltune.errors import InputError

KIB = 1024
MIB = 1024 * 1024
GIB = 1024 * 1024 * 1024

_SUFFIX = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kb": KIB,
    "kib": KIB,
    "m": MIB,
    "mb": MIB,
    "mib": MIB,
    "g": GIB,
    "gb": GIB,
    "gib": GIB,
}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([a-zA-Z]*)$")
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?$")
_MAX_LIST = 100_000


def parse_size(text: str) -> int:
    """Read ``14336``, ``64K``, ``4M`` or ``1GiB`` as bytes (powers of 1024, as nccl-tests does)."""
    match = _SIZE.match(text.strip())
    factor = _SUFFIX.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise InputError(
            f"'{text}' is not a size",
            "a size is a number of bytes with an optional K, M or G",
            "write 14336, 64K or 4M",
        )
    size = float(match.group(1)) * factor
    if size != int(size) or size < 1:
        raise InputError(
            f"'{text}' is not a size", "a size is a whole number of bytes, at least 1", "write 14336, 64K or 4M"
        )
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """Read a comma-separated list of sizes, sorted and without repeats."""
    return sorted({parse_size(part) for part in _parts(text)})


def parse_ints(text: str, *, minimum: int = 1, what: str = "number") -> list[int]:
    """Read ``1-16,32,64`` as a sorted list of whole numbers without repeats."""
    numbers: set[int] = set()
    for part in _parts(text):
        match = re.match(r"^(\d+)(?:-(\d+))?$", part)
        if match is None:
            raise InputError(
                f"'{part}' is not a {what}", "expected whole numbers and ranges", "write for example 1-16,32,64"
            )
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if low > high or low < minimum or high - low > _MAX_LIST:
            raise InputError(
                f"'{part}' is not a usable range",
                f"it must rise, start at {minimum} or more and hold at most {_MAX_LIST:,} numbers",
                "write for example 1-16",
            )
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def parse_duration(text: str) -> float:
    """Read ``90``, ``90s``, ``10m`` or ``1.5h`` as seconds."""
    match = _DURATION.match(text.strip())
    if match is None or float(match.group(1)) <= 0:
        raise InputError(f"'{text}' is not a time", "expected a positive number with s, m or h", "write 90s or 10m")
    return (
        float(match.group(1)) * {"ms": 1e-3, None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[match.group(2)]
    )


def format_size(size_bytes: int) -> str:
    """Format bytes shortly and exactly: 14336 -> ``14336 B``, 65536 -> ``64 KiB``, 8388608 -> ``8 MiB``."""
    for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {name}"
    return f"{size_bytes} B"


def format_us(value: float) -> str:
    """Format microseconds with three significant figures, never in e-notation: 7.34, 12.6, 143, 3190."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def format_duration(seconds: float) -> str:
    """Format seconds for people: ``8.2 s``, ``3 min 20 s``, ``1 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_percent(value: float) -> str:
    """Format a percentage with a sign and one decimal: ``+5.9%``."""
    return f"{value:+.1f}%"


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not parts or any(not part for part in parts):
        raise InputError(
            f"'{text}' is not a list",
            "it is empty or has an empty entry",
            "write entries with commas between, for example 1,2,4",
        )
    return parts
