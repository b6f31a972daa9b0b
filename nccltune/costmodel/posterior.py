"""What is believed after the points seen so far, and what it says about any row: values, gradients, intervals.

A time is ``sum of terms x exp(g) x exp(noise)``: ``g`` is a smooth correction (Gaussian process over tokens, context,
kind of forward and setting) for what the terms cannot express. It vanishes far from the points, where its spread
returns, so intervals are tight between calibrated points and honest beyond them (Kennedy and O'Hagan 2001).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.priors import Prior
from nccltune.costmodel.terms import Sum

Floats = NDArray[np.float64]

Z90 = 1.645
# 5% of what the terms cannot express, 2.2% scatter of one measured time; a misfit of the points larger or smaller than
# that rescales both. The first was chosen on the published decode curves under benchmarks/data. The second is wide enough
# that 90% intervals hold 83% of 356 left-out points of 153 curves of AIConfigurator's table (1.4% held 71%): points
# taken on other days and builds scatter more than one careful series does.
SPREAD = 0.05
NOISE = 0.022
_TOKENS_LENGTH = 1.2  # in ln(tokens): a factor of about 3
_CONTEXT_LENGTH = 1.5
_KIND_CORRELATION = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
# What differs between settings is communication, which has its own curve: little is left for the correction.
_SETTING_CORRELATION = 0.9
DECODE, VERIFY, DRAFT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Features:
    """Where a row lies for the smooth correction. ``kind``: DECODE, VERIFY (and cycle) or DRAFT."""

    num_tokens: Floats
    context_tokens: Floats
    kind: NDArray[np.intp]
    setting: NDArray[np.intp]

    def covariance(self, other: "Features") -> Floats:
        """Correlation of the correction between two sets of rows."""
        tokens = np.log(self.num_tokens)[:, None] - np.log(other.num_tokens)[None, :]
        context = np.log(self.context_tokens + 1000.0)[:, None] - np.log(other.context_tokens + 1000.0)[None, :]
        smooth = np.exp(-0.5 * (tokens / _TOKENS_LENGTH) ** 2 - 0.5 * (context / _CONTEXT_LENGTH) ** 2)
        same = np.where(self.setting[:, None] == other.setting[None, :], 1.0, _SETTING_CORRELATION)
        return np.asarray(smooth * same * _KIND_CORRELATION[self.kind[:, None], other.kind[None, :]], dtype=float)


@dataclass(frozen=True, slots=True)
class Seen:
    """The points behind a posterior: their features, log residuals against the terms, and gradients of the log."""

    features: Features
    residual: Floats
    gradient: Floats
    phases: tuple[str, ...]
    draft_tokens: tuple[int, ...]
    """Width of each point: 2 requests of 3 draft tokens are as many tokens as 1 of 6, and another measurement."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Parameters (on the scale of the fit), their covariance, and the points they were fitted to."""

    priors: tuple[Prior, ...]
    theta: Floats
    covariance: Floats
    seen: Seen | None = None
    scale: float = 1.0

    @classmethod
    def from_priors(cls, priors: Sequence[Prior]) -> "Posterior":
        """Return the belief without any point."""
        spread = np.array([p.spread for p in priors])
        return cls(tuple(priors), np.array([p.center for p in priors]), np.diag(spread**2))

    @property
    def names(self) -> list[str]:
        """Parameter names in order."""
        return [p.name for p in self.priors]

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters by name, on the scale of the fit."""
        return dict(zip(self.names, map(float, self.theta), strict=True))

    def transferred(
        self, priors: Sequence[Prior], reset: Sequence[str], widen: float, as_they_are: Sequence[str] = ()
    ) -> "Posterior":
        """Carry the parameters to another system: named ones return to their prior or stay, the others widen.

        The smooth correction belongs to the calibrated system and is dropped.
        """
        index = {name: i for i, name in enumerate(self.names)}
        theta = np.array([p.center for p in priors])
        covariance = np.diag([p.spread**2 for p in priors])
        kept = [(i, index[p.name]) for i, p in enumerate(priors) if p.name in index and p.name not in reset]
        for i, old in kept:
            theta[i] = self.theta[old]
            for j, other in kept:
                covariance[i, j] = self.covariance[old, other]
            covariance[i, i] += 0.0 if priors[i].name in as_they_are else widen**2
        return Posterior(tuple(priors), theta, covariance)


def noise_free_covariance(features: Features) -> Floats:
    """Covariance of the correction at the points."""
    return SPREAD**2 * features.covariance(features)


def point_covariance(features: Features) -> Floats:
    """Covariance of the points' log times around the terms: correction and scatter."""
    return noise_free_covariance(features) + NOISE**2 * np.eye(len(features.num_tokens))


@dataclass(frozen=True, slots=True)
class Correction:
    """The smooth correction at some rows: factor, gradient shift and remaining relative variance."""

    factor: Floats
    shift: Floats
    variance: Floats


def correction(posterior: Posterior, features: Features) -> Correction:
    """Condition the smooth correction on the points seen (none: factor 1 and the full spread)."""
    rows, num = len(features.num_tokens), len(posterior.priors)
    if posterior.seen is None:
        return Correction(np.ones(rows), np.zeros((rows, num)), np.full(rows, SPREAD**2))
    seen = posterior.seen
    cross = SPREAD**2 * features.covariance(seen.features)
    solved = np.linalg.solve(point_covariance(seen.features), cross.T).T
    variance = posterior.scale * np.maximum(SPREAD**2 - np.einsum("ij,ij->i", solved, cross), 0.0)
    return Correction(np.exp(solved @ seen.residual), solved @ seen.gradient, variance)


def interval(posterior: Posterior, total: Sum, fix: Correction | None, *, noise: bool) -> tuple[Floats, Floats, Floats]:
    """Return (value, low, high) of a sum of terms; ``fix`` and ``noise`` for what a measurement would show."""
    safe = np.maximum(total.value, 1e-12)
    slope = total.gradient / safe[:, None]
    variance = total.variance / safe**2
    value = total.value
    if fix is not None:
        slope = slope - fix.shift
        variance = variance + fix.variance
        value = value * fix.factor
    variance = variance + _quadratic(slope, posterior.covariance)
    if noise:
        variance = variance + posterior.scale * NOISE**2
    half = Z90 * np.sqrt(np.maximum(variance, 0.0))
    return value, value * np.exp(-half), value * np.exp(half)


def ratio_sd(posterior: Posterior, a: Floats, b: Floats, independent: Floats) -> Floats:
    """Standard deviation of ``ln(A / B)`` from two log gradients: what both share cancels."""
    difference = a - b
    shared = _quadratic(difference, posterior.covariance)
    return np.sqrt(np.maximum(shared + independent, 0.0))


def estimate(values: tuple[Floats, Floats, Floats], source: NDArray[np.int8]) -> Estimate:
    """Wrap (value, low, high) with sources."""
    value, low, high = values
    return Estimate(value, np.minimum(low, value), np.maximum(high, value), source)


def _quadratic(rows: Floats, covariance: Floats) -> Floats:
    """Variance of each row's linear form."""
    return np.asarray(((rows @ covariance) * rows).sum(axis=1), dtype=float)
