"""``--search race``: the best setting without measuring every one (docs/search.md).

Settings open in the order of how many library-scope variables they add, and only while the bound on what they could be
(bench.bounds) reaches the best interval so far; every measurement can widen the bounds again. What stays unopened is
recorded with the reason.
"""

import math
from typing import Any

from nccltune.bench import records
from nccltune.bench.bounds import Bounds, Score, units
from nccltune.bench.options import Outcome
from nccltune.bench.scan import Scan
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.setting import BASE, Setting

# Launches of one setting differ: by up to 12% at one size, by about 3% over the decode sizes (docs/measuring.md). No
# score is taken to be better known than that.
LAUNCH_SPREAD = 0.03
# Settings opened between two looks at the base, at most: a race opens few.
MONITOR_EVERY = 16
# A parent that did not take effect says the same of its family: every member has the parent's variables too. One that failed
# once more after a hang or an error as well.
_FAILED = ("error", "timeout")
_REFUSED = ("unsupported", "wrong_results", "not_in_force", *_FAILED)


class Race(Scan):
    """A walk that opens settings only while they can win."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._num_opened = 0
        self._retried: set[str] = set()

    def _walk(self) -> Outcome:
        bounds = Bounds(self.plan.settings)
        self._sizes = list(self.options.decode_sizes)
        self._measure([BASE, *bounds.parents])
        self._update(bounds)
        while not self._must_end():
            open_ = [s for s in self._unopened(bounds) if bounds.low(s) <= bounds.best_high]
            if not open_:
                break
            level = min(len(units(s.env)) for s in open_)
            self._measure([s for s in open_ if len(units(s.env)) == level])
            self._update(bounds)
        if not self._must_end():
            self._finish(bounds)
        return self._outcome()

    def _unopened(self, bounds: Bounds) -> list[Setting]:
        """Settings that lack a record at a decode size and do not equal a smaller one."""
        return [s for s in self.plan.settings if self._pending(s) and bounds.twin(s) is None]

    def _measure(self, settings: list[Setting]) -> None:
        """Measure settings at the sizes in use, those of one library copy together."""
        for library_env, setting in self._settings(settings):
            if self._must_end():
                return
            # As in a full scan: the base again and again, its launches tell drift and spread.
            if self._num_opened and self._num_opened % min(self.options.monitor_every, MONITOR_EVERY) == 0:
                self._monitor()
            self._num_opened += 1
            self._measure_setting(setting, library_env)
            self._retry(setting, library_env)

    def _retry(self, setting: Setting, library_env: dict[str, str]) -> None:
        """Measure once more what a hang or an error cost: one accident must not shut out a whole family, or the base."""
        lost = [c for c in self._cases(setting) if (m := self._done.get(c.id)) is not None and m.status in _FAILED]
        if not lost or setting.id in self._retried or self._must_end():
            return
        self._retried.add(setting.id)
        for case in lost:
            del self._done[case.id]
        self._num_done -= len(lost)
        self._measure_setting(setting, library_env)

    def _update(self, bounds: Bounds) -> None:
        for setting in self.plan.settings:
            score = self.score(setting)
            if score is not None:
                bounds.scores[setting.id] = score
            elif any(
                m.status in _REFUSED for case in self._cases(setting) if (m := self._done.get(case.id)) is not None
            ):
                bounds.hopeless.add(setting.id)

    def _finish(self, bounds: Bounds) -> None:
        """Measure the winner and the base at the other sizes too, then record what was left out."""
        ranked = sorted(bounds.scores, key=lambda key: bounds.scores[key].value)
        winners = [s for s in self.plan.settings if ranked and s.id in (BASE.id, ranked[0])]
        self._sizes = self.plan.size_bytes
        self._measure([BASE, *winners])
        if self.session.is_running and not self._must_end():
            self._monitor()
        if self._must_end():
            return  # what is missing of the winner is not left out: a resume measures it
        for setting in self.plan.settings:
            for case in self._pending(setting):
                reason, same = self._reason(setting, bounds)
                twin = self.plan.case(same, case.size_bytes, case.timing).id if same is not None else None
                self._record(records.skipped(case, reason, twin))

    def _reason(self, setting: Setting, bounds: Bounds) -> tuple[str, Setting | None]:
        twin = bounds.twin(setting)
        if twin is not None:
            return f"race: what it adds does not act on its protocol: the same as {twin.name}", twin
        if setting.id in bounds.scores:
            score = bounds.scores[setting.id]
            return (
                f"race: scored {score.value:.3f} [{score.low:.3f}, {score.high:.3f}] of the base at decode sizes, not the best",
                None,
            )
        low = bounds.low(setting)
        if math.isinf(low):
            return "race: its algorithm or protocol does not run here", None
        return f"race: could not score below {low:.3f} of the base, the best is at {bounds.best_high:.3f} or less", None

    def score(self, setting: Setting) -> Score | None:
        """Score of a setting, None while it has no time at every decode size."""
        ratios, variance = [], 0.0
        for size in self.options.decode_sizes:
            case = self.plan.case(setting, size, self.plan.timings[0])
            measured, base = self._done.get(case.id), self._base_case(case)
            if not _has_time(measured) or not _has_time(base):
                return None
            assert measured is not None
            assert measured.stats is not None
            assert base is not None
            ratios.append(measured.median_us / base.median_us)
            half = (measured.stats["high"] - measured.stats["low"]) / 2 / base.median_us
            variance += half**2
        value = sum(ratios) / len(ratios)
        half = max(math.sqrt(variance) / len(ratios), LAUNCH_SPREAD * value)
        return Score(value, value - half, value + half)


def _has_time(measurement: Measurement | None) -> bool:
    return measurement is not None and measurement.status == "ok" and measurement.median_us > 0
