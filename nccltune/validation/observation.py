"""What was measured, one observation per arm: repetitions joined, settings matched with those of the run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nccltune import stats
from nccltune.algo_lists import seen_by_allreduce
from nccltune.knobs import NAMED
from nccltune.schemas.points import Phase, Point
from nccltune.schemas.setting import Setting
from nccltune.schemas.validation import Measured

_MIN_BOOTSTRAP = 5
"""Fewer repetitions are too few to draw from: their interval is their range."""

Key = tuple[str, str, int, int, int]
"""Phase, setting (as all-reduce sees it), batch size, draft tokens, context."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One arm as measured. ``setting`` as given; ``priced_as``: the same to an all-reduce, by the run's name."""

    phase: Phase
    setting: Setting
    priced_as: Setting
    batch_size: int
    draft_tokens: int
    context_tokens: int
    measured: Measured
    accept_length: float | None = None
    engine: str = ""
    key: Key = ("", "", 0, 0, 0)
    is_for_calibration: bool = False
    has_other_rows: bool = False
    """Whether some of its rows are marked for calibration and others are not."""

    @property
    def case(self) -> tuple[str, int, int, int, str]:
        """What two observations must share for their settings to be compared."""
        return (self.phase, self.batch_size, self.draft_tokens, self.context_tokens, self.engine)


class Settings:
    """The settings of a run by what they mean to an all-reduce: ``NCCL_ALGO=allreduce:ring`` is ``NCCL_ALGO=Ring``."""

    def __init__(self, known: Iterable[Setting], base_env: Mapping[str, str]) -> None:
        self._base_env = base_env
        self._by_key: dict[str, Setting] = {}
        for setting in known:
            self._by_key.setdefault(self.key(setting), setting)

    def key(self, setting: Setting) -> str:
        """Return the variables that differ from the base, lists of algorithms and protocols as all-reduce reads them."""
        kept = seen_by_allreduce({n: v for n, v in setting.env.items() if self._base_env.get(n) != v})
        return "; ".join(f"{n}={v}" for n, v in sorted(kept.items())) or "base"

    def priced_as(self, setting: Setting) -> Setting:
        """Return the run's own setting that means the same; where the run has none, the setting by its usual name."""
        known = self._by_key.get(self.key(setting))
        named = next((s for s in NAMED.values() if s.id == setting.id), None)
        return known or named or Setting.make(setting.env)


def observe(
    points: Sequence[Point], settings: Settings, default_context: int, measured: Sequence[Measured] = ()
) -> list[Observation]:
    """Join the rows of each arm. An arm with a row for calibration is one that was calibrated on, as a whole.

    Spellings that mean the same to an all-reduce are one setting, called as the first row calls it. ``measured``: one
    per point, where more is known than its time; it stands for an arm of a single row.
    """
    spelling: dict[str, Setting] = {}
    groups: dict[tuple[Key, str], list[int]] = {}
    for index, point in enumerate(points):
        spelling.setdefault(settings.key(point.setting), point.setting)
        groups.setdefault((key_of(point, settings, default_context), point.engine), []).append(index)
    found = []
    for (key, engine), members in groups.items():
        one = _joined(key, engine, [points[i] for i in members], settings, spelling[key[1]])
        known = measured[members[0]] if measured and len(members) == 1 else None
        found.append(one if known is None else replace(one, measured=known))
    return found


def key_of(point: Point, settings: Settings, default_context: int) -> Key:
    """Return the identity of a point's arm."""
    context = default_context if point.context_tokens is None else point.context_tokens
    return (point.phase, settings.key(point.setting), point.batch_size, point.draft_tokens, context)


def measured_of(times_ms: Sequence[float]) -> Measured:
    """Median with its 90% interval: bootstrap from five repetitions on, their range below that."""
    values = np.asarray(times_ms, dtype=float)
    median = float(np.median(values))
    if values.size < _MIN_BOOTSTRAP:
        low, high = float(values.min()), float(values.max())
    else:
        low, high = stats.median_interval(values)
    return Measured(value=median, low=min(low, median), high=max(high, median), num_samples=int(values.size))


def _joined(key: Key, engine: str, rows: Sequence[Point], settings: Settings, setting: Setting) -> Observation:
    lengths = [p.accept_length for p in rows if p.accept_length is not None]
    first = rows[0]
    return Observation(
        phase=first.phase,
        setting=setting,
        priced_as=settings.priced_as(setting),
        batch_size=first.batch_size,
        draft_tokens=first.draft_tokens,
        context_tokens=key[4],
        measured=measured_of([p.time_ms for p in rows]),
        accept_length=sum(lengths) / len(lengths) if lengths else None,
        engine=engine,
        key=key,
        is_for_calibration=any(p.use == "calibrate" for p in rows),
        has_other_rows=len({p.use == "calibrate" for p in rows}) > 1,
    )
