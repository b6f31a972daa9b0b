"""Acceptance: how many tokens a verify emits, from whatever is known, without ever making a figure up.

``survival[i]`` is the probability that drafts 1..i+1 are all accepted; the accept length of a chain of k drafts is
``1 + sum(survival[:k])`` (bonus token included). Rates and lengths of other definitions are converted on input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nccltune.costmodel.estimate import Estimate
from nccltune.errors import InputError
from nccltune.schemas.common import SOURCES

Floats = NDArray[np.float64]
Kind = Literal["auto", "survival", "conditional"]

DEFINITION = "accept_length = tokens emitted per verify, bonus token included = 1 + sum of survival"
# Drift of the conditional acceptance from one position to the next, 90%: published curves give ratios of 0.9 to 1.1
# (0.83 0.72 0.75 0.80 0.61 for a Kimi-K2.5 head; 0.633 0.638 0.653 for a K2.6 head).
_DRIFT = 0.12
_LIST_SPREAD = 0.03  # assumed relative spread (90%) of the accepted part of a measured list
_BEYOND = 0.25  # 90% relative spread of each survival beyond the measured positions, growing with distance
_MAX_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Survival by position, with bounds (90%); ``num_measured`` positions were measured, the rest is extrapolated.

    ``level``: extra 90% interval of the mean as ratios to it (both 1 where it is exact).
    """

    survival: Floats
    low: Floats
    high: Floats
    num_measured: int
    source: str
    assumption: str = ""
    mean_only: bool = False
    level: tuple[float, float] = (1.0, 1.0)
    assumed_steps: bool = False
    """Nothing says over how many drafts the mean was measured: no accept length of it counts as measured."""
    warnings: list[str] = field(default_factory=list)

    def accept_length(self, num_drafts: ArrayLike) -> Estimate:
        """Accept length of a chain of ``num_drafts`` drafts: 1 + sum of survival; 0 drafts give exactly 1."""
        k = np.asarray(num_drafts, dtype=int)
        if k.size and k.max() > len(self.survival):
            return extended(self, int(k.max())).accept_length(k)
        value, low, high = (np.concatenate([[0.0], np.cumsum(s)])[k] for s in (self.survival, self.low, self.high))
        low, high = low * self.level[0], np.minimum(high * self.level[1], k)
        exact = (k == self.num_measured) & (not self.assumed_steps) if self.mean_only else k <= self.num_measured
        source = np.where(exact, SOURCES.index("measured"), np.where(
            k <= self.num_measured, SOURCES.index("assumed"), SOURCES.index("extrapolated"))).astype(np.int8)  # fmt: skip
        source = np.where(k == 0, SOURCES.index("measured"), source).astype(np.int8)
        return Estimate(1 + value, 1 + np.minimum(low, value), 1 + np.maximum(high, value), source)


def from_mean(
    mean: float, num_drafts: int, source: str, *, low: float | None = None, high: float | None = None
) -> Acceptance:
    """Build from a mean accept length over ``num_drafts`` drafts, assuming one acceptance for every position.

    0.866 accepted of 2: p + p^2 = 0.866, p = 0.556, survival 0.556 0.310. Bounds: the same mean with acceptance
    that falls or rises by 12% a position, and the interval of the mean itself where one is given.
    """
    if not 1 <= num_drafts <= _MAX_POSITIONS:
        raise InputError(f"{num_drafts} draft positions are not usable", "an accept length belongs to a number of drafts", "give 1 or more")  # fmt: skip
    if not np.isfinite(mean) or mean < 1 or mean > num_drafts + 1:
        raise InputError(
            f"an accept length of {mean:g} is impossible with {num_drafts} drafts",
            f"with the bonus token it lies between 1 and {num_drafts + 1}",
            "add 1 to accepted drafts without the bonus token (0.93 -> 1.93); say --accept-steps N if it was measured over N drafts",
        )
    survival = _chain(mean - 1, num_drafts, 1.0)
    shapes = np.vstack([survival, _chain(mean - 1, num_drafts, 1 - _DRIFT), _chain(mean - 1, num_drafts, 1 + _DRIFT)])
    accepted = max(mean - 1, 1e-12)
    level = (
        (min((low if low is not None else mean) - 1, mean - 1)) / accepted,
        max((high if high is not None else mean) - 1, mean - 1) / accepted,
    )
    sums = np.cumsum(shapes, axis=1)
    return Acceptance(
        survival, _steps(sums.min(axis=0)), _steps(sums.max(axis=0)), num_drafts, source,
        "the same acceptance at every position (shape assumed, interval widened)", True, level,
    )  # fmt: skip


def from_rates(rates: Sequence[float], source: str, kind: Kind = "auto") -> Acceptance:
    """Build from rates by position: survival (vLLM's "per-position acceptance") or conditional.

    A rising list cannot be survival. A falling one may be either, so ``auto`` takes it as survival, the form that
    engines print, and says so; values outside 0..1 are refused. Noise that breaks 1 >= s1 >= s2 is smoothed.
    """
    values = np.asarray(list(rates), dtype=float)
    if values.size == 0 or values.size > _MAX_POSITIONS:
        raise InputError("the list of acceptance rates is empty or too long", "", "give for example 0.6,0.4,0.25")
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InputError(
            f"acceptance rates {', '.join(f'{v:g}' for v in values)} are not usable",
            "each is a probability between 0 and 1 (87.5% is 0.875)",
            "check which figure the list holds",
        )
    warnings: list[str] = []
    if kind == "auto":
        if np.any(np.diff(values) > 0.02):
            raise InputError(
                "the acceptance rates rise from one position to a later one",
                "survival cannot rise, so they may be conditional; the two readings give different accept lengths",
                "say which with --accept-kind survival or --accept-kind conditional",
            )
        kind = "survival"
        conditional = 1 + float(np.cumprod(values).sum())
        if values.size > 1:
            warnings.append(
                f"acceptance rates read as survival: accept length {1 + float(values.sum()):.2f}; were they conditional "
                f"it would be {conditional:.2f} (--accept-kind conditional)"
            )
    survival = np.cumprod(values) if kind == "conditional" else isotonic(values)
    if kind == "survival" and np.any(np.abs(survival - values) > 1e-12):
        warnings.append("acceptance rates rose between positions: smoothed to 1 >= s1 >= s2 ...")
    return Acceptance(survival, survival * (1 - _LIST_SPREAD), np.minimum(survival * (1 + _LIST_SPREAD), 1.0), len(values),
                      source, f"{kind} by position as given", warnings=warnings)  # fmt: skip


def extended(acceptance: Acceptance, num_drafts: int) -> Acceptance:
    """Continue beyond the measured positions with the mean conditional acceptance: marked, and wider at each step."""
    have = len(acceptance.survival)
    if num_drafts <= have:
        return acceptance
    s = acceptance.survival
    mean = float(s[-1] ** (1 / have)) if s[-1] > 0 else 0.0
    more = np.arange(1, num_drafts - have + 1)
    tail = s[-1] * mean**more
    last_low, last_high = float(acceptance.low[-1]), float(acceptance.high[-1])
    low = np.maximum(min(last_low, s[-1]) * (mean * (1 - _BEYOND)) ** more, 0.0)
    high = np.minimum(max(last_high, s[-1]) * np.minimum(mean * (1 + _BEYOND), 1.0) ** more, 1.0)
    return Acceptance(
        np.concatenate([s, tail]), np.concatenate([acceptance.low, low]), np.concatenate([acceptance.high, high]),
        acceptance.num_measured, acceptance.source, acceptance.assumption, acceptance.mean_only, acceptance.level,
        acceptance.assumed_steps, acceptance.warnings,
    )  # fmt: skip


def isotonic(values: Floats) -> Floats:
    """Return the nearest non-increasing sequence within [0, 1] (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in np.clip(values, 0.0, 1.0):
        blocks.append((float(value), 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (a, n), (b, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return np.concatenate([np.full(n, v) for v, n in blocks])


def length_from_rate(rate: float, num_drafts: int, *, bonus_included: bool) -> float:
    """Turn an acceptance rate into an accept length.

    Without the bonus token (vLLM): 1 + K x rate, 0.5178 of 4 -> 3.07. With it (older SGLang logs): rate x (K + 1),
    0.577 of 3 draft tokens -> 1.73.
    """
    if not 0 <= rate <= 1:
        raise InputError(f"an acceptance rate of {rate:g} is impossible", "it lies between 0 and 1", "use the accept length instead")  # fmt: skip
    return max(rate * (num_drafts + 1), 1.0) if bonus_included else 1 + num_drafts * rate


def _steps(sums: Floats) -> Floats:
    return np.diff(np.concatenate([[0.0], sums]))


def _chain(accepted: float, num_drafts: int, drift: float) -> Floats:
    """Survival of a chain with conditional acceptance p, p x drift, ... whose sum is ``accepted`` (bisection)."""
    powers = drift ** np.arange(num_drafts)
    low, high = 0.0, 1.0 / min(float(powers.min()), 1.0)
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.cumprod(np.minimum(middle * powers, 1.0)).sum()) < accepted:
            low = middle
        else:
            high = middle
    return np.cumprod(np.minimum(high * powers, 1.0))
