"""How much one curve beats another over a range of sizes, with the interval of the measurements. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nccltune.schemas.fit import CurvePoint, Fit, SettingFit
from nccltune.units import MIB, format_size

DECODE_TOKENS = 64
"""Tokens of one forward up to which a message counts as decode (batch x draft tokens); larger ones count as prefill."""
DECODE_BYTES = MIB
"""The same without a model: 64 tokens of the widest models at hand (hidden 7168, bf16) are 917504 B."""

Where = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Gain:
    """Time saved, percent of the reference, as the mean over sizes; negative means slower. 90% interval."""

    percent: float
    low: float
    high: float
    num_sizes: int
    from_bytes: int
    to_bytes: int

    @property
    def is_gain(self) -> bool:
        """Faster beyond noise."""
        return self.low > 0

    @property
    def is_loss(self) -> bool:
        """Slower beyond noise."""
        return self.high < 0

    def __str__(self) -> str:
        word = "faster" if self.percent >= 0 else "slower"
        ends = (self.low, self.high) if self.percent >= 0 else (-self.high, -self.low)
        span = format_size(self.from_bytes) + (f" to {format_size(self.to_bytes)}" if self.num_sizes > 1 else "")
        return f"{abs(self.percent):.1f}% {word} [{ends[0]:.1f}, {ends[1]:.1f}] over {span} ({self.num_sizes} size{'s' if self.num_sizes > 1 else ''})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return {
            "percent": round(self.percent, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "num_sizes": self.num_sizes,
            "from_bytes": self.from_bytes,
            "to_bytes": self.to_bytes,
        }


def decode_limit(bytes_per_token: int | None) -> int:
    """Largest message, bytes, that counts as decode."""
    return DECODE_TOKENS * bytes_per_token if bytes_per_token else DECODE_BYTES


def compare(reference: list[CurvePoint], other: list[CurvePoint], where: Where = lambda _: True) -> Gain | None:
    """Mean over common sizes of (reference - other) / reference; None without a common measured size.

    Half-widths of the two curves add in quadrature at a size (independent), and in full over sizes (drift is shared):
    100 [99, 101] against 90 [89, 91] us gives 10% +- sqrt(1 + 1)% = [8.6, 11.4].
    """
    theirs = {p.size_bytes: p for p in other if p.source == "measured"}
    parts = []
    sizes = []
    for point in reference:
        mate = theirs.get(point.size_bytes)
        if mate is None or point.source != "measured" or not where(point.size_bytes) or point.time_us <= 0:
            continue
        gain = point.time_us - mate.time_us
        down = math.hypot(point.time_us - point.low_us, mate.high_us - mate.time_us)
        up = math.hypot(point.high_us - point.time_us, mate.time_us - mate.low_us)
        parts.append(tuple(100 * x / point.time_us for x in (gain, gain - down, gain + up)))
        sizes.append(point.size_bytes)
    if not parts:
        return None
    mean, low, high = (sum(column) / len(parts) for column in zip(*parts, strict=True))
    return Gain(mean, low, high, len(parts), min(sizes), max(sizes))


def weighted(decode: Gain | None, prefill: Gain | None, weight: float) -> tuple[float, float] | None:
    """``weight`` x decode + (1 - weight) x prefill as (value, low); None where a part that counts is missing."""
    if (weight > 0 and decode is None) or (weight < 1 and prefill is None):
        return None
    value = low = 0.0
    for part, share in ((decode, weight), (prefill, 1 - weight)):
        if part is not None and share > 0:
            value += share * part.percent
            low += share * part.low
    return value, low


def curve(fit: Fit, entry: SettingFit) -> list[CurvePoint]:
    """Points of a setting, or of the one whose choices it shares."""
    seen: set[str] = set()
    while not entry.points and entry.same_as and entry.same_as not in seen:
        seen.add(entry.same_as)
        twin = next((s for s in fit.settings if s.setting.name == entry.same_as), None)
        if twin is None:
            break
        entry = twin
    return entry.points


def entry_with(fit: Fit, env: dict[str, str]) -> SettingFit | None:
    """The usable curve of exactly these variables in the timing that predictions use, or None."""
    for entry in fit.settings:
        if entry.setting.env == env and entry.usable and entry.timing == fit.timing and curve(fit, entry):
            return entry
    return None
