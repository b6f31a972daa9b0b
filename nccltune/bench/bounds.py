"""How good an unmeasured setting could still be, from what its parts were seen to do. Pure; ``race`` walks by it.

A family is the settings with one algorithm and protocol. Its parent has no library-scope variable; a setting's units are
the library-scope variables it adds to the parent (a fixed channel count, MIN = MAX, is one unit).
"""

import math
from dataclasses import dataclass, field

from nccltune.knobs import KNOBS, decisions, library_part
from nccltune.schemas.setting import BASE, Setting

# Before any single variable has run on this machine: room for what it may gain. The probes' largest was 28%, at sizes
# above decode (docs/search.md); what this machine shows replaces it as soon as that is more.
FIRST_GAIN = 0.15
# Room for variables that do more together than one by one; the largest seen replaces it as soon as that is more.
FIRST_INTERACTION = 0.03

Units = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Communication of a decode forward relative to the base, mean over the decode sizes, with its 90% interval."""

    value: float
    low: float
    high: float


def units(env: dict[str, str]) -> Units:
    """The library-scope variables of a setting, channel pairs of one value as one."""
    return tuple(sorted(decisions(library_part(env))))


def without(setting: Setting, names: tuple[str, ...]) -> dict[str, str]:
    """A setting's variables without some of them."""
    return {k: v for k, v in setting.env.items() if k not in names}


@dataclass
class Bounds:
    """Scores so far, and the bound of every setting that has none."""

    settings: list[Setting]
    scores: dict[str, Score] = field(default_factory=dict)
    hopeless: set[str] = field(default_factory=set)
    """Ids of parents that NCCL refuses or whose sums are wrong: their families are not opened."""

    def __post_init__(self) -> None:
        self._by_env = {tuple(sorted(s.env.items())): s for s in self.settings}

    @property
    def parents(self) -> list[Setting]:
        """What runs first: settings without units, and the smallest of families that have no such member."""
        families: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
        for setting in self.settings:
            if setting.id != BASE.id:
                families.setdefault(self._family(setting), []).append(setting)
        result = []
        for members in families.values():
            smallest = min(len(units(s.env)) for s in members)
            plain = [s for s in members if len(units(s.env)) == smallest]
            result += plain if smallest else plain[:1]
        return result

    def parent(self, setting: Setting) -> Setting | None:
        """The setting's family without any unit, if the plan has it."""
        library = library_part(setting.env)
        return self._by_env.get(tuple(sorted((k, v) for k, v in setting.env.items() if k not in library)))

    def twin(self, setting: Setting) -> Setting | None:
        """The smaller setting that this one equals, because what it adds does not act on its protocol."""
        proto = setting.env.get("NCCL_PROTO")
        inert = tuple(k for k in setting.env if k in KNOBS and proto and not set(KNOBS[k].protos) & {proto})
        return self._by_env.get(tuple(sorted(without(setting, inert).items()))) if inert else None

    def low(self, setting: Setting) -> float:
        """Lowest score that the setting could have; infinite for a family that cannot run."""
        parent = self.parent(setting)
        if parent is None:
            return -math.inf
        if parent.id in self.hopeless:
            return math.inf
        score = self.scores.get(parent.id) if parent.id != BASE.id else Score(1.0, 1.0, 1.0)
        if score is None:
            return -math.inf
        parts = units(setting.env)
        if len(parts) < 2:
            return score.low * (1 - self.gain)
        ratio = 1.0
        for unit in parts:
            alone = self.scores.get(self._alone(setting, unit))
            ratio *= alone.low / score.value if alone is not None else 1 - self.gain
        return score.value * ratio * (1 - self.interaction)

    @property
    def gain(self) -> float:
        """Largest gain that one unit has shown over its parent."""
        return max([FIRST_GAIN, *(1 - s.low / p.high for s, p in self._pairs(1))])

    @property
    def interaction(self) -> float:
        """Largest gain that a combination has shown over the product of its parts."""
        seen = [FIRST_INTERACTION]
        for setting in self.settings:
            score, parent, parts = self.scores.get(setting.id), self.parent(setting), units(setting.env)
            base = self.scores.get(parent.id) if parent is not None else None
            if score is None or base is None or len(parts) < 2:
                continue
            alone = [self.scores.get(self._alone(setting, unit)) for unit in parts]
            if all(alone):
                product = base.value * math.prod(a.value / base.value for a in alone if a is not None)
                seen.append(1 - score.high / product)
        return max(seen)

    @property
    def best_high(self) -> float:
        """Upper end of the best interval; the base's own score is 1."""
        return min([1.0, *(score.high for score in self.scores.values())])

    def _pairs(self, num_units: int) -> list[tuple[Score, Score]]:
        found = []
        for setting in self.settings:
            parent = self.parent(setting)
            if (
                parent is not None
                and len(units(setting.env)) == num_units
                and setting.id in self.scores
                and parent.id in self.scores
            ):
                found.append((self.scores[setting.id], self.scores[parent.id]))
        return found

    def _alone(self, setting: Setting, unit: tuple[str, ...]) -> str:
        library = library_part(setting.env)
        env = {k: v for k, v in setting.env.items() if k not in library or k in unit}
        found = self._by_env.get(tuple(sorted(env.items())))
        return found.id if found is not None else ""

    def _family(self, setting: Setting) -> tuple[tuple[str, str], ...]:
        library = library_part(setting.env)
        return tuple(sorted((k, v) for k, v in setting.env.items() if k not in library))
