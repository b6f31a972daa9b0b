"""Communication curves: microseconds of one all-reduce by message size, with interval and source. Pure numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nccltune.costmodel import nccl_model
from nccltune.costmodel.estimate import Estimate, Floats
from nccltune.errors import InputError, NoBasisError
from nccltune.schemas.common import SOURCES, Source, weakest
from nccltune.schemas.fit import CurvePoint, SettingFit
from nccltune.schemas.setting import Setting
from nccltune.schemas.topology import AllreduceCurve

# Relative distance (below, above) from a time of this kind to the cost inside a forward, 90%.
# graph: back to back in a graph understates the cost in a forward by 5 to 42% (2x H200, five settings, docs/fit.md).
# eager: the same, and both ways by the launch gaps that an eager loop has and a graph has not: for a 4 us kernel they
# are the larger part (28.7 us eager, 3.6 us in a graph: AIConfigurator's tables, 8x H200, 8 KB), while for NCCL's
# own, longer kernels eager and graph tables of one machine agree within 8% (same tables, 8x RTX PRO 6000).
# in-forward: what the measurement is about; two harnesses on one machine agree within 3%.
TO_FORWARD = {"in-forward": (0.03, 0.03), "back-to-back": (0.05, 0.42), "graph": (0.05, 0.42), "eager": (0.15, 0.50)}

# Between two points: this much of the value in the middle of a gap of a factor 4 in size, besides what the bend of
# the neighbouring segments says. Left-out points of published tables: 90% inside (benchmarks/allreduce_accuracy.py).
GAP_SHARE = 0.04
GAP_LOG = float(np.log(4))
# Outside the points: per factor e in size, and the share of the way to the physical limits (flat, proportional).
BEYOND_PER_E = 0.10
BEYOND_SHARE = 0.8

# Analytic curves: factor below and above, and the share of the nominal link bandwidth that a large all-reduce reaches
# (published tables: 2x H200 315 of 450 GB/s, 8x B200 704 of 900, 2x and 8x RTX PRO 6000 39 and 25 of 64).
ANALYTIC_FACTOR = (0.55, 2.0)
LINK_SHARE = {"nvlink": 0.75, "pcie": 0.5}
ANALYTIC_SIZES: Floats = 2.0 ** np.arange(9, 31, dtype=float)


@dataclass(frozen=True)
class CommCurve:
    """One setting's all-reduce times on one number of ranks. ``low_us`` and ``high_us``: 90% interval per point."""

    setting: Setting
    num_ranks: int
    origin: str
    """Where it came from, for people."""
    size_bytes: Floats
    time_us: Floats
    low_us: Floats
    high_us: Floats
    point_source: Source

    def __post_init__(self) -> None:
        for name in ("size_bytes", "time_us", "low_us", "high_us"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))
        size, time = self.size_bytes, self.time_us
        if size.ndim != 1 or not size.size or {size.shape} != {time.shape, self.low_us.shape, self.high_us.shape}:
            raise ValueError("a curve needs equally many sizes, times and bounds, at least one")
        finite = all(np.isfinite(a).all() for a in (size, time, self.low_us, self.high_us))
        if not finite or size[0] <= 0 or time.min() <= 0 or (np.diff(size) <= 0).any():
            raise ValueError("sizes must rise and, like times, be positive and finite")
        object.__setattr__(self, "low_us", np.clip(self.low_us, 0.0, time))
        object.__setattr__(self, "high_us", np.maximum(self.high_us, time))

    def at(self, size_bytes: ArrayLike) -> Estimate:
        """Estimate microseconds at any sizes (bytes, > 0).

        On a point: that point. Between two: the straight line in bytes, exact for ``alpha + bytes x beta`` and never
        outside the two points, so a curve that falls (NCCL changes protocol) makes no overshoot. Outside: the end
        segment goes on, kept between a flat and a proportional curve.
        """
        asked = np.asarray(size_bytes, dtype=float)
        size = np.atleast_1d(asked)
        if not (np.isfinite(size).all() and (size > 0).all()):
            raise InputError(
                "a message size must be a positive number of bytes", "", "check batch, draft tokens and sizes"
            )
        x, y = self.size_bytes, self.time_us
        value = np.interp(size, x, y)
        below, above = (
            _log_ratio(value, np.interp(size, x, self.low_us)),
            _log_ratio(np.interp(size, x, self.high_us), value),
        )
        source = np.full(size.shape, SOURCES.index(self.point_source), dtype=np.int8)
        nearest = np.clip(np.searchsorted(x, size), 0, x.size - 1)
        inside = (size > x[0]) & (size < x[-1]) & (x[nearest] != size)
        if inside.any():
            bend_below, bend_above = self._bend(size[inside], nearest[inside] - 1, value[inside])
            below[inside], above[inside] = np.hypot(below[inside], bend_below), np.hypot(above[inside], bend_above)
            source[inside] = SOURCES.index(weakest(self.point_source, "interpolated"))
        outside = (size < x[0]) | (size > x[-1])
        if outside.any():
            value[outside], far_below, far_above = self._beyond(size[outside])
            below[outside], above[outside] = np.hypot(below[outside], far_below), np.hypot(above[outside], far_above)
            source[outside] = SOURCES.index(weakest(self.point_source, "extrapolated"))
        low, high = value * np.exp(-below), value * np.exp(above)
        shape = asked.shape
        return Estimate(value.reshape(shape), low.reshape(shape), high.reshape(shape), source.reshape(shape))

    def _bend(self, size: Floats, left: NDArray[np.intp], value: Floats) -> tuple[Floats, Floats]:
        """Log distance to where the neighbouring segments would go, within the two points, and the gap's own share."""
        x, y = self.size_bytes, self.time_us
        low, high = np.minimum(y[left], y[left + 1]), np.maximum(y[left], y[left + 1])
        slope = np.diff(y) / np.diff(x)
        before, after = np.maximum(left - 1, 0), np.minimum(left + 1, slope.size - 1)
        from_left = np.clip(y[left] + slope[before] * (size - x[left]), low, high)
        from_right = np.clip(y[left + 1] - slope[after] * (x[left + 1] - size), low, high)
        gap = np.log(x[left + 1] / x[left])
        u = np.log(size / x[left]) / gap
        own = GAP_SHARE * np.sqrt(gap / GAP_LOG) * 4 * u * (1 - u)
        lowest, highest = np.minimum(from_left, from_right), np.maximum(from_left, from_right)
        return own + np.maximum(_log_ratio(value, lowest), 0), own + np.maximum(_log_ratio(highest, value), 0)

    def _beyond(self, size: Floats) -> tuple[Floats, Floats, Floats]:
        """Value and log distances outside the points; an affine cost lies between flat and proportional."""
        x, y = self.size_bytes, self.time_us
        smaller = size < x[0]
        x0, y0 = np.where(smaller, x[0], x[-1]), np.where(smaller, y[0], y[-1])
        ratio = size / x0
        flat, proportional = y0, y0 * ratio
        if x.size == 1:
            value = y0 * np.sqrt(ratio)
        else:
            first, last = (y[1] - y[0]) / (x[1] - x[0]), (y[-1] - y[-2]) / (x[-1] - x[-2])
            value = y0 + np.where(smaller, first, last) * (size - x0)
        value = np.clip(value, np.minimum(flat, proportional), np.maximum(flat, proportional))
        drift = BEYOND_PER_E * np.abs(np.log(ratio))
        lowest = value - BEYOND_SHARE * (value - np.minimum(flat, proportional))
        highest = value + BEYOND_SHARE * (np.maximum(flat, proportional) - value)
        return value, drift + _log_ratio(value, lowest), drift + _log_ratio(highest, value)


def leave_one_out(size_bytes: Floats, time_us: Floats) -> Floats:
    """Relative errors of predicting each inner point from its two neighbours as :meth:`CommCurve.at` would."""
    if size_bytes.size < 3:
        return np.empty(0)
    left, middle, right = size_bytes[:-2], size_bytes[1:-1], size_bytes[2:]
    predicted = time_us[:-2] + (time_us[2:] - time_us[:-2]) * (middle - left) / (right - left)
    return predicted / time_us[1:-1] - 1


def curve_from_points(setting: Setting, points: Sequence[CurvePoint], num_ranks: int, origin: str) -> CommCurve:
    """Build a curve from measured points, with their own intervals."""
    columns = np.array([(p.size_bytes, p.time_us, p.low_us, p.high_us) for p in points], dtype=float).reshape(-1, 4)
    size, time, low, high = columns[np.argsort(columns[:, 0])].T
    return CommCurve(setting, num_ranks, origin, size, time, low, high, weakest(*(p.source for p in points)))


def curve_from_fit(setting_fit: SettingFit, num_ranks: int, origin: str) -> CommCurve:
    """Build the curve that predictions use; times not taken in a forward get the wider upper bound of TO_FORWARD.

    Raises NoBasisError for a setting without usable points.
    """
    if not setting_fit.usable or not setting_fit.points:
        raise NoBasisError(
            f"setting '{setting_fit.setting.name}' has no usable all-reduce times",
            setting_fit.reason or "nothing was measured for it",
            "choose another setting, or scan it again",
        )
    curve = curve_from_points(setting_fit.setting, setting_fit.points, num_ranks, origin)
    return curve if setting_fit.timing == "in-forward" else widened(curve, *TO_FORWARD[setting_fit.timing])


def curve_from_published(curve: AllreduceCurve, origin: str) -> CommCurve:
    """Build a curve from a table, as far from the cost in a forward as TO_FORWARD says for its mode.

    Eager tables get a wider interval than graph ones: launch gaps are in them that a served graph does not have.
    """
    time = np.asarray(curve.time_us, dtype=float)
    table = CommCurve(
        curve.setting, curve.num_ranks, origin, np.asarray(curve.size_bytes, float), time, time, time, "measured"
    )
    return widened(table, *TO_FORWARD[curve.mode])


def analytic_curve(
    links_kind: str, compute_capability: str, num_ranks: int, setting: Setting, bandwidth_bytes_per_s: float
) -> CommCurve:
    """Build NCCL's own expectation for a machine nobody measured; ``bandwidth_bytes_per_s`` is one direction, per GPU.

    Raises NoBasisError when the setting leaves NCCL no algorithm for an all-reduce.
    """
    major = nccl_model.generation(compute_capability)
    pairs = nccl_model.candidates(setting.env, links_kind, major, num_ranks)
    if not pairs:
        raise NoBasisError(
            f"setting '{setting.name}' leaves NCCL no all-reduce algorithm on one node",
            setting.id,
            "name Ring or Tree (or NVLS with Simple on NVLink) for the all-reduce",
        )
    reached = bandwidth_bytes_per_s * LINK_SHARE[links_kind]
    times = [nccl_model.allreduce_us(ANALYTIC_SIZES, a, p, num_ranks, links_kind, major, reached) for a, p in pairs]
    best = np.min(times, axis=0)
    low, high = ANALYTIC_FACTOR
    return CommCurve(
        setting, num_ranks, "NCCL's own cost model", ANALYTIC_SIZES, best, best * low, best * high, "analytic"
    )


def widened(curve: CommCurve, below: float, above: float) -> CommCurve:
    """Widen every point by independent relative distances; the values stay."""
    low, high = (
        np.hypot(curve.time_us - curve.low_us, curve.time_us * below),
        np.hypot(curve.high_us - curve.time_us, curve.time_us * above),
    )
    return CommCurve(
        curve.setting, curve.num_ranks, curve.origin, curve.size_bytes, curve.time_us, curve.time_us - low, curve.time_us + high, curve.point_source
    )  # fmt: skip


def _log_ratio(upper: Floats, lower: Floats) -> Floats:
    return np.log(np.maximum(upper, 1e-12) / np.maximum(lower, 1e-12))
