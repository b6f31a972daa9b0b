"""Terms of a time: each is a positive array times powers of parameters, so that the gradient is the term itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Term:
    """``value = base_ms * exp(sum of power * parameter)`` for every row; a parameter is a logarithm or an exponent."""

    name: str
    group: str
    """comm, compute, overhead, draft or host: the column of the answer that it belongs to."""
    base_ms: Floats
    powers: Mapping[str, float | Floats]
    source: NDArray[np.int8] | int
    """Index into SOURCES of the base, before any calibration."""
    note: str = ""
    variance: Floats | float = 0.0
    """Relative variance of the base that no parameter explains (interval of a curve)."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of terms per row: milliseconds, gradient by parameter (rows x parameters), variance in ms squared."""

    value: Floats
    gradient: Floats
    variance: Floats = field(repr=False)

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.value + other.value, self.gradient + other.gradient, self.variance + other.variance)


def evaluate(term: Term, theta: Mapping[str, float]) -> Floats:
    """Milliseconds of one term for every row."""
    exponent: float | Floats = 0.0
    for name, power in term.powers.items():
        exponent = exponent + power * theta[name]
    return np.asarray(term.base_ms * np.exp(exponent), dtype=float)


def add_up(terms: Sequence[Term], names: Sequence[str], theta: Mapping[str, float], num_rows: int) -> Sum:
    """Sum terms with their gradient; ``names`` fixes the order of the parameters."""
    index = {name: i for i, name in enumerate(names)}
    value = np.zeros(num_rows)
    gradient = np.zeros((len(names), num_rows))
    variance = np.zeros(num_rows)
    for term in terms:
        ms = evaluate(term, theta)
        value += ms
        for name, power in term.powers.items():
            gradient[index[name]] += power * ms
        variance += term.variance * ms**2
    return Sum(value, gradient.T, variance)
