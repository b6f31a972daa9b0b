"""Price rows: terms, their sums by column, and the interval of each column."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel import posterior as belief
from nccltune.costmodel.compute import target_terms
from nccltune.costmodel.drafting import draft_terms, host_terms
from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.posterior import DECODE, VERIFY, Correction, Features, Posterior
from nccltune.costmodel.system import Rows, System
from nccltune.costmodel.terms import Sum, Term, add_up
from nccltune.schemas.common import SOURCES

Floats = NDArray[np.float64]
Sources = NDArray[np.int8]

GROUPS = ("comm", "compute", "overhead", "draft", "host")


@dataclass(frozen=True, slots=True)
class Priced:
    """Priced rows: sums by group (milliseconds), the smooth correction, and the terms they came from."""

    rows: Rows
    posterior: Posterior
    terms: list[Term]
    groups: dict[str, Sum]
    fix: Correction

    @property
    def verify(self) -> Sum:
        """Target forward."""
        return self.groups["comm"] + self.groups["compute"] + self.groups["overhead"]

    @property
    def cycle(self) -> Sum:
        """Whole cycle; plain decode at 1 draft token."""
        return self.verify + self.groups["draft"] + self.groups["host"]

    def estimate(self, total: Sum, source: Sources, *, noise: bool = False) -> Estimate:
        """Interval of a sum that the smooth correction applies to."""
        return belief.estimate(belief.interval(self.posterior, total, self.fix, noise=noise), source)

    def part(self, group: str, source: Sources) -> Estimate:
        """Interval of one group; the correction scales it, so that the parts add up to the whole."""
        total = self.groups[group]
        value, low, high = belief.interval(self.posterior, total, None, noise=False)
        return belief.estimate(tuple(x * self.fix.factor for x in (value, low, high)), source)  # type: ignore[arg-type]

    def group_source(self, group: str) -> Sources:
        """Weakest source of a group's terms, per row (a term that is zero there does not count; no term: analytic)."""
        source = np.full(len(self.rows), -1, dtype=np.int8)
        for term in self.terms:
            if term.group == group:
                source = np.maximum(source, np.where(term.base_ms > 0, term.source, -1)).astype(np.int8)
        return np.where(source < 0, SOURCES.index("analytic"), source).astype(np.int8)


def terms_of(system: System, rows: Rows) -> list[Term]:
    """All terms of a cycle."""
    return [*target_terms(system, rows), *draft_terms(system, rows), *host_terms(rows)]


def price(system: System, rows: Rows, posterior: Posterior, setting_ids: dict[str, int]) -> Priced:
    """Price ``rows``. ``setting_ids``: numbers of the settings, the same as in the posterior's points."""
    terms = terms_of(system, rows)
    theta, names, num = posterior.parameters, posterior.names, len(rows)
    groups = {g: add_up([t for t in terms if t.group == g], names, theta, num) for g in GROUPS}
    return Priced(rows, posterior, terms, groups, belief.correction(posterior, features_of(rows, setting_ids)))


def features_of(rows: Rows, setting_ids: dict[str, int]) -> Features:
    """Features of whole forwards for the smooth correction."""
    ids = np.array([setting_ids.get(name, -1 - i) for i, name in enumerate(rows.settings)], dtype=np.intp)
    kind = np.where(rows.draft_tokens > 1, VERIFY, DECODE).astype(np.intp)
    return Features(rows.num_tokens, rows.context_tokens, kind, ids[rows.setting])
