"""Every term of one row with its source, for ``--explain``."""

import numpy as np

from nccltune.costmodel.basis import Basis
from nccltune.costmodel.forward import Priced
from nccltune.costmodel.posterior import Posterior
from nccltune.costmodel.terms import Term, evaluate
from nccltune.schemas.common import SOURCES
from nccltune.schemas.prediction import TermLine

# A parameter whose spread fell below this share of its prior's was told something by the points.
_TOLD = 0.95


def explain_row(priced: Priced, basis: Basis, index: int) -> list[TermLine]:
    """List the terms of row ``index``, largest first within each group, and the smooth correction as a last line."""
    theta = priced.posterior.parameters
    lines = []
    for term in priced.terms:
        value = float(evaluate(term, theta)[index])
        if value > 0:
            lines.append(TermLine(group=term.group, term=term.name, value_ms=value * float(priced.fix.factor[index]),
                                  base=_base(term, index), parameter=_parameters(term, basis, index), source=_source(term, index)))  # fmt: skip
    groups = [line.group for line in lines]
    lines.sort(key=lambda line: (groups.index(line.group), -line.value_ms))
    factor = float(priced.fix.factor[index])
    if priced.posterior.seen is not None:
        lines.append(TermLine(group="correction", term="smooth correction", value_ms=float(priced.cycle.value[index]) * (factor - 1),
                              base=f"x {factor:.4f}, already in every term", parameter="", source="what the terms do not express at the calibrated points"))  # fmt: skip
    return lines


def _base(term: Term, index: int) -> str:
    base = float(np.broadcast_to(term.base_ms, np.shape(term.base_ms))[index])
    return f"{base:.3f} ms{', ' + term.note if term.note else ''}"


def _parameters(term: Term, basis: Basis, index: int) -> str:
    posterior = basis.posterior
    texts = []
    for name, power in term.powers.items():
        weight = float(np.broadcast_to(np.asarray(power, float), np.shape(term.base_ms))[index])
        if weight == 0.0:
            continue
        i = posterior.names.index(name)
        prior = posterior.priors[i]
        value = posterior.theta[i] if prior.exponent else np.exp(posterior.theta[i])
        texts.append(f"{name} {value:.3g} ({_origin(posterior, i, float(value))})")
    return ", ".join(texts)


def _origin(posterior: Posterior, index: int, value: float) -> str:
    """Where the value of a parameter came from; ``prior`` only where it is the prior's, to the printed digits."""
    prior = posterior.priors[index]
    if np.sqrt(posterior.covariance[index, index]) < _TOLD * prior.spread:
        return "fitted"
    if f"{value:.3g}" == f"{prior.median:.3g}":
        return "prior"
    return f"{'hardly told by the points' if posterior.seen is not None else 'carried over'}, prior {prior.median:.3g}"


def _source(term: Term, index: int) -> str:
    source = np.broadcast_to(np.asarray(term.source), np.shape(term.base_ms))[index]
    return SOURCES[int(source)]
