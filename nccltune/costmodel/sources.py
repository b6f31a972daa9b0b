"""Where each part of a priced row came from: a sum is as good as its weakest part, unless points of that very sum tell it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel.forward import Priced, Sources
from nccltune.costmodel.posterior import DECODE, VERIFY
from nccltune.schemas.common import SOURCES

MEASURED, INTERPOLATED, EXTRAPOLATED, ANALYTIC, ASSUMED = range(len(SOURCES))
# A parameter whose spread fell to this share of its prior's has been learned from the points.
_LEARNED = 0.7
# Contexts this close are the same for a decode time: a request's own grows while it is measured.
_NEAR = 1.25


@dataclass(frozen=True, slots=True)
class RowSources:
    """Index into SOURCES per row, for each column of the answer."""

    comm: Sources
    compute: Sources
    overhead: Sources
    verify: Sources
    draft: Sources
    host: Sources
    cycle: Sources


def sources_of(priced: Priced, setting_ids: dict[str, int], *, other_drafter: bool = False) -> RowSources:
    """Return the sources of every column. ``other_drafter``: the calibrated cycles were of another drafter."""
    drafted = priced.rows.draft_tokens > 1
    verify, cycle = (_coverage(priced, setting_ids, phase) for phase in ("verify", "cycle"))
    comm, compute = priced.group_source("comm"), _calibrated(priced, verify)
    overhead, host = _free(priced, verify, "overhead_ms"), _free(priced, verify, "served_ms")
    draft = np.where(drafted, np.maximum(compute, EXTRAPOLATED), ANALYTIC).astype(np.int8)
    verify = _of_sum(verify, np.where(priced.groups["comm"].value > 0, comm, MEASURED), compute,
                     np.where(drafted, overhead, MEASURED))  # fmt: skip
    # Cycle points tell drafter and host together: where there are any, the split may be assumed and the sum is not.
    seen = priced.posterior.seen
    split = () if seen is not None and "cycle" in seen.phases else (draft, host)
    cycle = _of_sum(cycle, verify, *(np.where(drafted, part, MEASURED) for part in split))
    if other_drafter:
        cycle = np.maximum(cycle, np.where(drafted, EXTRAPOLATED, MEASURED)).astype(np.int8)
    return RowSources(comm, compute, overhead, verify, draft, host, cycle)


def _of_sum(covered: Sources, *parts: NDArray[np.int8]) -> Sources:
    """What points of that very sum make it, otherwise its weakest part."""
    weakest = np.maximum.reduce([covered, *parts])
    return np.where(covered <= INTERPOLATED, covered, weakest).astype(np.int8)


def _calibrated(priced: Priced, covered: Sources) -> Sources:
    """Source of a part that the points tell only through their sums: analytic without any point."""
    if priced.posterior.seen is None:
        return np.full(len(priced.rows), ANALYTIC, dtype=np.int8)
    return np.maximum(covered, INTERPOLATED).astype(np.int8)


def _free(priced: Priced, covered: Sources, parameter: str) -> Sources:
    """Source of a part that only engine points can tell: assumed until one has moved its parameter."""
    index = priced.posterior.names.index(parameter)
    spread = float(np.sqrt(priced.posterior.covariance[index, index]))
    learned = spread < _LEARNED * priced.posterior.priors[index].spread
    source = np.maximum(covered, INTERPOLATED) if learned else np.full(covered.shape, ASSUMED)
    return np.where(priced.rows.draft_tokens == 1, ANALYTIC, source).astype(np.int8)


def _coverage(priced: Priced, setting_ids: dict[str, int], phase: str) -> Sources:
    """Source of a whole time (``verify`` or ``cycle``): measured at a point of that phase, interpolated between points.

    Beyond the points it is extrapolated, without any analytic. Plain decode counts for both phases.
    """
    seen, rows = priced.posterior.seen, priced.rows
    if seen is None:
        return np.full(len(rows), ANALYTIC, dtype=np.int8)
    points = seen.features
    ids = np.array([setting_ids.get(name, -1 - i) for i, name in enumerate(rows.settings)])[rows.setting]
    kind = np.where(rows.draft_tokens > 1, VERIFY, DECODE)
    same_phase = np.array([p in (phase, "decode") for p in seen.phases])
    result = np.full(len(rows), EXTRAPOLATED, dtype=np.int8)
    for which in (DECODE, VERIFY):
        for setting in set(points.setting.tolist()):
            mine = (points.kind == which) & (points.setting == setting) & same_phase
            here = (kind == which) & (ids == setting)
            if not mine.any() or not here.any():
                continue
            tokens, context = points.num_tokens[mine], points.context_tokens[mine]
            near = (rows.context_tokens <= _NEAR * context.max()) & (_NEAR * rows.context_tokens >= context.min())
            inside = here & near & (rows.num_tokens >= tokens.min()) & (rows.num_tokens <= tokens.max())
            result[inside] = INTERPOLATED
            exact = np.zeros(len(rows), dtype=bool)
            for i in np.flatnonzero(mine):
                same_shape = (rows.num_tokens == points.num_tokens[i]) & (rows.draft_tokens == seen.draft_tokens[i])
                exact |= same_shape & (rows.context_tokens == points.context_tokens[i])
            result[inside & exact] = MEASURED
    return result
