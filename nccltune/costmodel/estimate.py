"""Arrays of numbers with intervals and sources: what every term of the model is made of."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nccltune.schemas.common import SOURCES, Source, Value

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Values with 90% intervals. All arrays share one shape; ``source`` holds indices into SOURCES (0 = measured)."""

    value: Floats
    low: Floats
    high: Floats
    source: NDArray[np.int8]

    @classmethod
    def exact(cls, value: ArrayLike, source: Source) -> Self:
        """An estimate without spread."""
        v = np.asarray(value, dtype=float)
        return cls(v, v, v, np.full(v.shape, SOURCES.index(source), dtype=np.int8))

    @classmethod
    def make(cls, value: ArrayLike, low: ArrayLike, high: ArrayLike, source: Source) -> Self:
        """Build from arrays with one source for all."""
        v, lo, hi = np.broadcast_arrays(np.asarray(value, float), np.asarray(low, float), np.asarray(high, float))
        return cls(v, np.minimum(lo, v), np.maximum(hi, v), np.full(v.shape, SOURCES.index(source), dtype=np.int8))

    def scaled(self, factor: ArrayLike) -> "Estimate":
        """Multiply by an exact non-negative factor."""
        f = np.asarray(factor, dtype=float)
        v = self.value * f
        return Estimate(v, self.low * f, self.high * f, np.broadcast_to(self.source, v.shape))

    def item(self, index: tuple[int, ...] | int = ()) -> Value:
        """Return one element as a Value."""
        return Value(
            value=float(self.value[index]),
            low=float(min(self.low[index], self.value[index])),
            high=float(max(self.high[index], self.value[index])),
            source=SOURCES[int(self.source[index])],
        )
