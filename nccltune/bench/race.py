"""``--search race``: the best setting without measuring every one (docs/search.md).

Settings are grouped into families that share algorithm and protocol; a family's parent leaves channels, threads and
buffers to NCCL. Parents run first. A family is opened as long as its parent, improved by the largest gain that any
opened family's children have shown over their parent, could still reach the best: so nothing is dropped whose interval,
widened by what those variables were seen to do on this machine, overlaps the best. What stays unopened is recorded
with that reason.
"""

import math
from dataclasses import dataclass

from nccltune.bench import records
from nccltune.bench.options import Outcome
from nccltune.bench.scan import Scan
from nccltune.knobs import KNOBS, library_part
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.setting import BASE, Setting

# Before any family is opened: room for what channels, threads and buffers may gain (28% was the most the probes saw, at
# sizes above decode; it is replaced by what this machine shows as soon as that is more).
FIRST_ALLOWANCE = 0.15
# Two launches of one setting differ by about this much (docs/measuring.md): no interval is taken to be tighter.
LAUNCH_SPREAD = 0.01


@dataclass(frozen=True, slots=True)
class Score:
    """Communication of a decode forward relative to the base, mean over the decode sizes, with its 90% interval."""

    value: float
    low: float
    high: float


class Race(Scan):
    """A walk that opens families of settings only while they can win."""

    def _walk(self) -> Outcome:
        families = self._families()
        allowance = FIRST_ALLOWANCE
        self._sizes = list(self.options.decode_sizes)
        self._measure([BASE, *(members[0] for members in families.values())])
        opened: set[str] = set()
        while not self._must_end():
            found = [name for name in families if name not in opened and self._can_win(families[name][0], allowance)]
            if not found:
                break
            self._measure([child for name in found for child in families[name][1:] if not self._skip_inert(child)])
            opened.update(found)
            allowance = max(allowance, *(self._family_gain(families[name]) for name in found))
        if not self._must_end():
            self._finish(families, opened, allowance)
        return self._outcome()

    def _families(self) -> dict[str, list[Setting]]:
        """Families by their communicator-scope variables, the setting with the fewest variables first."""
        families: dict[str, list[Setting]] = {}
        for setting in self.plan.settings:
            if setting.id != BASE.id:
                library = library_part(setting.env)
                key = ";".join(f"{k}={v}" for k, v in setting.env.items() if k not in library)
                families.setdefault(key, []).append(setting)
        return {key: sorted(members, key=lambda s: len(s.env)) for key, members in families.items()}

    def _measure(self, settings: list[Setting]) -> None:
        """Measure settings at the sizes in use, those of one library copy together."""
        wanted = {setting.id for setting in settings}
        for library_env, members in self.plan.groups():
            for setting in members:
                if self._must_end():
                    return
                if setting.id in wanted and self._pending(setting):
                    self._measure_setting(setting, library_env)

    def _finish(self, families: dict[str, list[Setting]], opened: set[str], allowance: float) -> None:
        """Measure the other sizes for what can still be the best, the drift, and record what was left out."""
        scores = {s.id: score for s in self.plan.settings if (score := self.score(s)) is not None}
        best_high = min((score.high for score in scores.values()), default=math.inf)
        finalists = [s for s in self.plan.settings if s.id in scores and scores[s.id].low <= best_high]
        self._sizes = self.plan.size_bytes
        self._measure([BASE, *finalists])
        self._monitor()
        for name, members in families.items():
            for setting in members:
                reason = (
                    f"race: its decode forward cannot reach the best (parent {members[0].name}, allowance {100 * allowance:.0f}%)"
                    if name not in opened
                    else "race: slower than the best beyond its interval"
                )
                for case in self._pending(setting):
                    self._record(records.skipped(case, reason))

    def score(self, setting: Setting) -> Score | None:
        """Score of a setting, None while it has no time at every decode size."""
        ratios, variance = [], 0.0
        for size in self.options.decode_sizes:
            case = self.plan.case(setting, size, self.plan.timings[0])
            measured, base = self._done.get(case.id), self._base_case(case)
            if not _has_time(measured) or not _has_time(base):
                return None
            assert measured is not None
            assert base is not None
            assert measured.stats is not None
            ratios.append(measured.median_us / base.median_us)
            half = (measured.stats["high"] - measured.stats["low"]) / 2 / base.median_us
            variance += half**2
        value = sum(ratios) / len(ratios)
        half = max(math.sqrt(variance) / len(ratios), LAUNCH_SPREAD * value)
        return Score(value, value - half, value + half)

    def _can_win(self, parent: Setting, allowance: float) -> bool:
        """Whether a family could hold the best; a parent without a time says nothing, so its family is opened."""
        score = self.score(parent)
        if score is None:
            return not self._failed_for_good(parent)
        measured = [s for setting in self.plan.settings if (s := self.score(setting)) is not None]
        return score.low * (1 - allowance) <= min(s.high for s in measured)

    def _failed_for_good(self, parent: Setting) -> bool:
        """An algorithm or protocol that NCCL refuses is refused for every channel count too."""
        cases = [self._done.get(case.id) for case in self._cases(parent)]
        return any(m is not None and m.status in ("unsupported", "wrong_results") for m in cases)

    def _family_gain(self, members: list[Setting]) -> float:
        """Largest gain of a child over its parent."""
        parent = self.score(members[0])
        children = [score for child in members[1:] if (score := self.score(child)) is not None]
        if parent is None or not children:
            return 0.0
        return max(0.0, 1 - min(child.low for child in children) / parent.high)

    def _skip_inert(self, setting: Setting) -> bool:
        """Record, without opening it, a setting whose only addition acts on protocols it does not allow (knobs.KNOBS)."""
        proto = setting.env.get("NCCL_PROTO")
        inert = [k for k in setting.env if k in KNOBS and proto and not set(KNOBS[k].protos) & {proto}]
        if not inert:
            return False
        rest = {k: v for k, v in setting.env.items() if k not in inert}
        twin = next((s for s in self.plan.settings if s.env == rest), None)
        if twin is None:
            return False
        for case in self._pending(setting):
            same = self.plan.case(twin, case.size_bytes, case.timing).id
            self._record(
                records.skipped(case, f"{', '.join(inert)} does not act on {proto}: the same as {twin.name}", same)
            )
        return True


def _has_time(measurement: Measurement | None) -> bool:
    return measurement is not None and measurement.status == "ok" and measurement.median_us > 0
