"""Every term of one row with its source, for ``--explain``."""

import numpy as np

from nccltune.costmodel.basis import Basis
from nccltune.costmodel.forward import Priced
from nccltune.costmodel.terms import Term, evaluate
from nccltune.schemas.common import SOURCES
from nccltune.schemas.prediction import TermLine


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
        moved = np.sqrt(posterior.covariance[i, i]) < 0.95 * prior.spread
        origin = "fitted" if moved else "prior"
        texts.append(f"{name} {value:.3g} ({origin})")
    return ", ".join(texts)


def _source(term: Term, index: int) -> str:
    source = np.broadcast_to(np.asarray(term.source), np.shape(term.base_ms))[index]
    return SOURCES[int(source)]
