"""Fit the parameters to engine points: the most probable values under the priors, and their covariance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel.forward import GROUPS, features_of, terms_of
from nccltune.costmodel.posterior import DRAFT, Features, Posterior, Seen, correction, point_covariance
from nccltune.costmodel.priors import all_priors
from nccltune.costmodel.system import Rows, System
from nccltune.costmodel.terms import Sum, Term, add_up
from nccltune.errors import InputError, QualityError
from nccltune.schemas.points import Point

Floats = NDArray[np.float64]

_PHASE_GROUPS = {
    "decode": ("comm", "compute", "overhead"),
    "verify": ("comm", "compute", "overhead"),
    "draft": ("draft",),
    "cycle": GROUPS,
}
# Weight of the belief about the scatter, in points: with four, a misfit twice as large as believed in two points
# raises the variance by half.
_SCALE_WEIGHT = 4.0
_SCALE_RANGE = (0.5, 6.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted posterior, and what it says at the points."""

    posterior: Posterior
    setting_ids: dict[str, int]
    model_ms: Floats
    fitted_ms: Floats
    prior_ms: Floats
    """What the priors alone said of the points."""


def calibrate_points(system: System, points: Sequence[Point], default_context: int) -> Calibration:
    """Fit every parameter to the points. Raises InputError for no points, QualityError if the fit fails."""
    if not points:
        raise InputError("there are no points to calibrate on", "", "give --points FILE or --point decode:1:11.26")
    names = [p.setting.name for p in points]
    rows = Rows.make(
        [p.batch_size for p in points],
        [p.draft_tokens for p in points],
        [context_of(p, default_context) for p in points],
        names,
    )
    setting_ids = {name: i for i, name in enumerate(dict.fromkeys(names))}
    prior = Posterior.from_priors(all_priors(system.model, system.basis, system.inferred(names)))
    features = _with_draft_kind(features_of(rows, setting_ids), points)
    measured = np.log([p.time_ms for p in points])
    terms = _PhaseTerms(terms_of(system, rows), [p.phase for p in points])
    theta, covariance = _most_probable(prior, terms, measured, point_covariance(features))
    fitted = replace(prior, theta=theta)
    total = terms.total(fitted)
    residual = measured - np.log(total.value)
    gradient = total.gradient / total.value[:, None]
    whole = point_covariance(features)
    misfit = float(residual @ np.linalg.solve(whole, residual))
    scale = float(np.clip((_SCALE_WEIGHT + misfit) / (_SCALE_WEIGHT + len(points)), *_SCALE_RANGE))
    fitted = replace(
        fitted,
        covariance=covariance,
        seen=Seen(features, residual, gradient, tuple(p.phase for p in points), tuple(p.draft_tokens for p in points)),
        scale=scale,
    )
    return Calibration(fitted, setting_ids, total.value, total.value * correction(fitted, features).factor,
                       terms.total(prior).value)  # fmt: skip


def context_of(point: Point, default_context: int) -> int:
    """Context of a point, or the default where the file does not say."""
    return default_context if point.context_tokens is None else point.context_tokens


class _PhaseTerms:
    """Terms of each point's phase: a draft point holds only the drafter, a verify point only the target."""

    def __init__(self, terms: Sequence[Term], phases: Sequence[str]) -> None:
        self._terms = terms
        self._masks = {g: np.array([g in _PHASE_GROUPS[p] for p in phases], dtype=float) for g in GROUPS}
        self._num = len(phases)

    def total(self, posterior: Posterior) -> Sum:
        """Milliseconds and gradient at every point."""
        result: Sum | None = None
        for group, mask in self._masks.items():
            part = add_up([t for t in self._terms if t.group == group], posterior.names, posterior.parameters, self._num)  # fmt: skip
            part = Sum(part.value * mask, part.gradient * mask[:, None], part.variance * mask)
            result = part if result is None else result + part
        assert result is not None
        return result


def _with_draft_kind(features: Features, points: Sequence[Point]) -> Features:
    kind = features.kind.copy()
    kind[[p.phase == "draft" for p in points]] = DRAFT
    return replace(features, kind=kind)


def _most_probable(prior: Posterior, terms: _PhaseTerms, measured: Floats, scatter: Floats) -> tuple[Floats, Floats]:
    from scipy.optimize import least_squares

    center, spread = prior.theta, np.sqrt(np.diag(prior.covariance))
    whiten = np.linalg.inv(np.linalg.cholesky(scatter))

    def residuals(theta: Floats) -> Floats:
        value = np.maximum(terms.total(replace(prior, theta=theta)).value, 1e-12)
        return np.concatenate([whiten @ (measured - np.log(value)), (theta - center) / spread])

    def jacobian(theta: Floats) -> Floats:
        total = terms.total(replace(prior, theta=theta))
        slope = total.gradient / np.maximum(total.value, 1e-12)[:, None]
        return np.vstack([-whiten @ slope, np.diag(1.0 / spread)])

    found: Any = least_squares(residuals, center, jac=jacobian, method="trf", x_scale=spread, max_nfev=500)
    if not found.success or not np.isfinite(found.x).all():
        raise QualityError("the calibration did not converge", str(found.message), "check the times of the points")
    return np.asarray(found.x, float), np.linalg.inv(found.jac.T @ found.jac)
