"""What is priced: a model (and drafter) on a machine, with the communication curve of each setting; and rows to price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.tree import CHAIN, Shape
from nccltune.schemas.model import Drafter, Model

Floats = NDArray[np.float64]

# Real routing is uneven. Chosen on the published decode curves of benchmarks/model_accuracy.py: 0, 0.5 and 0.8 leave
# worst errors of 6, 6 and 5%, so the data hardly tell; skew=0 is uniform routing.
DEFAULT_SKEW = 0.5


class Curve(Protocol):
    """Microseconds of one all-reduce by message size."""

    def at(self, size_bytes: ArrayLike) -> Estimate:
        """Return the estimate at each size."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to price, one array element each. ``setting`` indexes ``settings``."""

    batch_size: Floats
    draft_tokens: Floats
    context_tokens: Floats
    setting: NDArray[np.intp]
    settings: tuple[str, ...]
    shape: Shape = CHAIN

    @classmethod
    def make(
        cls, batch_size: ArrayLike, draft_tokens: ArrayLike, context_tokens: ArrayLike, settings: Sequence[str],
        shape: Shape = CHAIN,
    ) -> Self:  # fmt: skip
        """Build rows from broadcastable numbers and one setting name per row (or one for all)."""
        names = tuple(dict.fromkeys(settings))
        index = np.array([names.index(s) for s in settings], dtype=np.intp)
        b, d, c, s = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(x, float)) for x in (batch_size, draft_tokens, context_tokens)), index
        )
        return cls(b, d, c, s, names, shape)

    @property
    def num_tokens(self) -> Floats:
        """Tokens of the target forward."""
        return self.batch_size * self.draft_tokens

    @property
    def num_steps(self) -> Floats:
        """Draft steps: draft tokens less one in a chain, the tree's own otherwise; 0 in plain decode."""
        steps = self.draft_tokens - 1 if self.shape.num_steps is None else float(self.shape.num_steps)
        return np.where(self.draft_tokens > 1, steps, 0.0)

    def __len__(self) -> int:
        return len(self.batch_size)


@dataclass(frozen=True, slots=True)
class System:
    """A model on a machine. ``curves`` may lack settings: those are priced from ``reference`` by an inferred ratio."""

    model: Model
    drafter: Drafter | None
    num_ranks: int
    memory_bytes_per_s: float
    curves: Mapping[str, Curve]
    reference: str
    basis: str
    """How the curves were obtained: measured, published or analytic (spread of the communication scale)."""
    guesses: Mapping[str, Curve] = field(default_factory=dict)
    """Curves of unmeasured settings by NCCL's own model; their ratio stays a free parameter, as without one."""
    skew: float = DEFAULT_SKEW
    correlation: float = 0.0

    @property
    def one_token_bytes(self) -> float:
        """Message of one all-reduce for one token."""
        return float(self.model.allreduce_bytes(1))

    def inferred(self, settings: Sequence[str]) -> list[str]:
        """Those of ``settings`` that have no curve of their own."""
        return [s for s in dict.fromkeys(settings) if s not in self.curves] if self.num_ranks > 1 else []
