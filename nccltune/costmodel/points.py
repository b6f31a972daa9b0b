"""From the measurements of a run to points with intervals: sampling error, spread from launch to launch, and a floor."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from nccltune.schemas.fit import CurvePoint
from nccltune.schemas.measurement import Measurement, Timing

Key = tuple[Timing, str, int]
"""Timing, id of the setting, bytes."""

# Two harnesses on one machine agree within 3% (2x H200, docs/fit.md): a standard deviation of 1.5% between launches,
# held as firmly as four repetitions would, until the run's own repetitions of the base say otherwise.
PRIOR_SD, PRIOR_DOF = 0.015, 4
# No point is better than this: stats.compare calls times within 1% the same.
FLOOR = 0.01
# Two-sided 90% quantile of Student's t by degrees of freedom.
_T90_DOF = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 1e9)
_T90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.860, 1.812, 1.753, 1.725, 1.697, 1.671, 1.645)


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative standard deviation of a median from launch to launch, and how well it is known."""

    sd: float
    dof: int
    num_repeats: int

    @property
    def half_width(self) -> float:
        """Relative half-width of the 90% interval of one launch."""
        return float(np.interp(1 / self.dof, [1 / d for d in reversed(_T90_DOF)], _T90[::-1])) * self.sd


@dataclass
class Cells:
    """Finished cases of a run by timing, setting and size; cases that share a measurement point to it.

    ``failed`` and ``failures`` hold what has no time: by case, and by setting. ``broken``: cases that are ok by their status, with
    times that cannot be. ``idle``: cases whose setting did not take effect. ``sizes``: what a setting has times for.
    """

    found: dict[Key, list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[Key, Measurement] = field(default_factory=dict)
    sizes: dict[tuple[Timing, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    broken: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    by_case: dict[str, Key] = field(default_factory=dict)
    spread: Spread = Spread(PRIOR_SD, PRIOR_DOF, 0)
    _points: dict[Key, CurvePoint] = field(default_factory=dict)

    @classmethod
    def make(cls, measurements: Iterable[Measurement]) -> "Cells":
        """Sort the measurements; a repetition of the drift monitor that failed says nothing about the setting."""
        cells = cls()
        for m in measurements:
            key: Key = (m.timing, m.setting.id, m.size_bytes)
            cells.by_case[m.case_id] = key
            if m.status == "ok" and m.in_force is not False:
                # A time that is zero or not a number is a broken record, not a fast one.
                if all(0 < value < math.inf for value in _summary(m)):
                    cells.found[key].append(m)
                else:
                    cells.broken.append(m.case_id)
            elif m.status == "ok":
                cells.idle.append(m.case_id)
            elif not m.repeat or m.status == "wrong_results":
                cells.failed[key] = m
                cells.failures[key[1]].append(m)
        cells.found = dict(cells.found)
        for timing, setting_id, size in sorted(cells.found):
            cells.sizes[timing, setting_id].append(size)
        cells.spread = _spread(cells.found.values())
        return cells

    @cached_property
    def half_width(self) -> float:
        """Relative half-width of one launch, once for all cells."""
        return self.spread.half_width

    @property
    def timings(self) -> set[Timing]:
        """Timings that have at least one time."""
        return {key[0] for key in self.found}

    def canonical(self, key: Key) -> Key:
        """The case whose measurement this one really is (itself, mostly); a broken or circular link ends the walk."""
        seen = {key}
        while True:
            shared = self.found[key][0].same_as
            target = self.by_case.get(shared) if shared is not None else None
            if target is None or target in seen or target not in self.found:
                return key
            seen.add(target)
            key = target

    @cached_property
    def _launches(self) -> dict[Key, list[Measurement]]:
        """Every launch of a measurement that several settings share, whichever of them it was made for."""
        launches: dict[Key, list[Measurement]] = {key: list(found) for key, found in self.found.items()}
        for key, found in self.found.items():
            origin = self.canonical(key)
            if origin != key:
                launches[origin] += [m for m in found if m.same_as is None]
        return launches

    def point(self, key: Key) -> CurvePoint:
        """Median microseconds with its 90% interval and the choice in force for this very setting."""
        origin = self.canonical(key)
        if origin not in self._points:
            self._points[origin] = _point(self._launches[origin], self.half_width)
        point, choice = self._points[origin], self.found[key][0].choice
        return point if choice is point.choice else point.model_copy(update={"choice": choice or point.choice})


def _point(launches: list[Measurement], half_width: float) -> CurvePoint:
    """Median over the launches; ``half_width`` is the relative spread of one launch. Plain floats: runs have many cells."""
    times, lows, highs = zip(*(_summary(m) for m in launches), strict=True)
    time = median(times)
    shrink = 1 / math.sqrt(len(launches))
    below = shrink * (sum(times) - sum(lows)) / len(launches)
    above = shrink * (sum(highs) - sum(times)) / len(launches)
    launch = shrink * half_width * time
    return CurvePoint(
        size_bytes=launches[0].size_bytes,
        time_us=time,
        low_us=max(time - max(math.hypot(below, launch), FLOOR * time), 0.0),
        high_us=time + max(math.hypot(above, launch), FLOOR * time),
        choice=next((m.choice for m in launches if m.choice is not None), None),
    )


def _summary(m: Measurement) -> tuple[float, float, float]:
    """Median and its 90% interval: as stored, or by order statistics where a record has samples only."""
    stats = m.stats
    if stats is not None and {"median", "low", "high"} <= stats.keys():
        return stats["median"], min(stats["low"], stats["median"]), max(stats["high"], stats["median"])
    x = np.sort(np.asarray(m.samples_us, dtype=float))
    half = 1.645 * math.sqrt(x.size) / 2  # ranks of the median are binomial(n, 1/2)
    low, high = max(math.floor(x.size / 2 - half), 0), min(math.ceil(x.size / 2 + half), x.size - 1)
    return float(np.median(x)), float(x[low]), float(x[high])


def _spread(cells: Iterable[list[Measurement]]) -> Spread:
    """Pool the repeated cells: deviations of log medians from the mean of their cell, with the prior beside them."""
    total, dof, repeats = 0.0, 0, 0
    for launches in cells:
        if len(launches) > 1:
            logs = np.log([_summary(m)[0] for m in launches])
            total += float(((logs - logs.mean()) ** 2).sum())
            dof += len(launches) - 1
            repeats += len(launches) - 1
    variance = (total + PRIOR_DOF * PRIOR_SD**2) / (dof + PRIOR_DOF)
    return Spread(math.sqrt(variance), dof + PRIOR_DOF, repeats)
