"""Draft trees (``topk`` above 1): which (steps, topk, draft tokens) are possible, and the accept length of one.

EAGLE keeps, of a pool of ``topk + (steps - 1) x topk^2`` candidates, the ``draft_tokens - 1`` with the most probable
paths; the root is the last verified token. The accept length is 1 + the sum of the kept paths' probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nccltune.costmodel.estimate import Estimate
from nccltune.errors import InputError
from nccltune.schemas.common import SOURCES

Floats = NDArray[np.float64]

_SPREAD = 0.10  # assumed 90% spread of the accepted part: rates by rank are taken as independent of the path
_MAX_TOPK = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """How drafts are made. A chain (``topk`` 1) has ``num_steps = draft_tokens - 1``; a tree has its own."""

    topk: int = 1
    num_steps: int | None = None


CHAIN = Shape()


def pool_size(num_steps: int, topk: int) -> int:
    """Candidates that a tree draws from: steps 3, topk 4 -> 4 + 2 x 16 = 36."""
    return topk + (num_steps - 1) * topk * topk


def check_shape(shape: Shape, draft_tokens: Sequence[int]) -> list[str]:
    """Refuse impossible (steps, topk, draft tokens); return warnings on wasteful ones. 1 draft token is plain decode."""
    widths = [d for d in draft_tokens if d > 1]
    if not 1 <= shape.topk <= _MAX_TOPK:
        raise InputError(f"topk {shape.topk} is not usable", f"it lies between 1 and {_MAX_TOPK}", "1 is a chain")
    if shape.topk == 1:
        wrong = [d for d in widths if shape.num_steps is not None and d != shape.num_steps + 1]
        if wrong:
            raise InputError(
                f"{shape.num_steps} steps with topk 1 do not give {wrong[0]} draft tokens",
                "a chain of n steps verifies n + 1 tokens; SGLang sets the number of draft tokens to that",
                f"ask for --draft-tokens {(shape.num_steps or 0) + 1}, or leave --num-steps out",
            )
        return []
    if shape.num_steps is None:
        raise InputError("a tree needs its number of steps", "with topk above 1 it does not follow from the draft tokens", "say --num-steps N")  # fmt: skip
    pool = pool_size(shape.num_steps, shape.topk)
    for width in widths:
        if width - 1 > pool:
            raise InputError(
                f"{width} draft tokens do not exist with {shape.num_steps} steps and topk {shape.topk}",
                f"the tree has topk + (steps - 1) x topk^2 = {pool} candidates beside the root",
                f"ask for at most {pool + 1} draft tokens, or more steps",
            )
    warnings = ["topk above 1 needs page size 1, or an attention back end that takes trees (flashinfer, fa3, triton)"]
    short = [d for d in widths if d - 1 < shape.num_steps]
    if short:
        warnings.append(f"{short[0]} draft tokens cannot hold a path of {shape.num_steps} steps: the deepest drafts are never verified")  # fmt: skip
    return warnings


@dataclass(frozen=True, slots=True)
class TreeAcceptance:
    """Acceptance of a tree: ``rates[i][r]``, probability that the candidate of rank r is right at position i."""

    rates: tuple[tuple[float, ...], ...]
    shape: Shape
    source: str
    assumption: str = "rates by position and rank are independent of the path; the most probable paths are kept"
    warnings: list[str] = field(default_factory=list)

    @property
    def num_measured(self) -> int:
        """Positions given."""
        return len(self.rates)

    @property
    def survival(self) -> Floats:
        """Probability that a path of i + 1 drafts holds, were every candidate kept."""
        return np.asarray(np.cumprod([sum(r) for r in self.rates]), dtype=float)

    def accept_length(self, num_drafts: ArrayLike) -> Estimate:
        """Accept length with ``num_drafts`` nodes kept beside the root."""
        nodes = np.asarray(num_drafts, dtype=int)
        kept = np.concatenate([[0.0], np.cumsum(self._paths(int(nodes.max(initial=0))))])
        accepted = kept[np.minimum(nodes, len(kept) - 1)]
        deepest = float(self.shape.num_steps or len(self.rates))
        source = np.where(nodes == 0, SOURCES.index("measured"), SOURCES.index("interpolated")).astype(np.int8)
        high = np.maximum(np.minimum(accepted * (1 + _SPREAD), deepest), accepted)
        return Estimate(1 + accepted, 1 + accepted * (1 - _SPREAD), 1 + high, source)

    def _paths(self, wanted: int) -> Floats:
        """Path probabilities of the pool, most probable first: each level grows from its ``topk`` best nodes."""
        topk, parents, pool = self.shape.topk, np.ones(1), []
        for level in self.rates[: self.shape.num_steps]:
            children = np.sort((parents[:, None] * np.asarray(level[:topk])[None, :]).ravel())[::-1]
            pool.append(children)
            parents = children[:topk]
        return np.sort(np.concatenate(pool))[::-1][:wanted]


def tree_acceptance(rates: Sequence[Sequence[float]], shape: Shape, source: str) -> TreeAcceptance:
    """Check rates by position and rank: each position's ranks fall and add up to at most 1."""
    for position, level in enumerate(rates, 1):
        values = np.asarray(list(level), dtype=float)
        if values.size < 1 or not np.isfinite(values).all() or values.min() < 0 or values.sum() > 1 + 1e-9:
            raise InputError(f"the rates of position {position} are not usable", "the candidates of one position exclude each other, so their rates add up to at most 1", "write rates by rank with / between, positions with commas: 0.6/0.15,0.5/0.12")  # fmt: skip
        if np.any(np.diff(values) > 1e-9):
            raise InputError(f"the rates of position {position} rise with the rank", "rank 1 is the most probable candidate", "order them")  # fmt: skip
    steps = shape.num_steps or 0
    if len(rates) < steps:
        raise InputError(f"{len(rates)} positions of rates do not cover {steps} steps", "a tree is not extrapolated beyond measured positions", f"give {steps} positions, or --num-steps {len(rates)}")  # fmt: skip
    return TreeAcceptance(tuple(tuple(map(float, level)) for level in rates), shape, source)
