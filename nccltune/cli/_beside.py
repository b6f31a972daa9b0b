"""What an engine could use instead of NCCL, in words: below the ranked table of ``scan`` and ``fit``."""

from nccltune.schemas.fit import BesideFit, Fit
from nccltune.units import format_percent

_OFF = "SGLang: --disable-custom-all-reduce --enforce-disable-flashinfer-allreduce-fusion"
_MAX_REASON = 60


def verdict(fit: BesideFit) -> tuple[str, str]:
    """The two cells that settings have: percent against the base, and a word or the reason for none."""
    versus = fit.versus_base
    if versus is None:
        return "-", (fit.reason or ("not at every decode size" if fit.usable else "not measured"))[:_MAX_REASON]
    return format_percent(versus.percent), versus.verdict


def summary(fit: Fit) -> list[str]:
    """Say which wins at decode sizes, the best NCCL setting or another method, and what was not measured."""
    if not fit.beside:
        return []
    reference = f"the best NCCL setting ({fit.best})" if fit.best else "NCCL's base"
    ranked = sorted(
        ((b.versus_best.percent, b) for b in fit.beside if b.versus_best is not None), key=lambda pair: pair[0]
    )
    lines = [_winner(ranked[0][1], reference)] if ranked else []
    return lines + [f"beside NCCL, not measured: {b.label}: {b.reason}" for b in fit.beside if not b.usable]


def _winner(fastest: BesideFit, reference: str) -> str:
    versus = fastest.versus_best
    assert versus is not None
    gap = f"{format_percent(versus.percent)}, {format_percent(versus.low_percent)} to {format_percent(versus.high_percent)}"
    if versus.verdict == "faster":
        return (
            f"beside NCCL: {fastest.label} beats {reference} at decode sizes ({gap}). NCCL settings matter on this machine "
            f"only where the engine's own all-reduce is off ({_OFF})"
        )
    how = (
        f"beats every other method at decode sizes; the nearest is {fastest.label} ({gap})"
        if versus.verdict == "slower"
        else f"and {fastest.label} are within noise at decode sizes ({gap})"
    )
    return (
        f"beside NCCL: {reference} {how}. An engine may use its own all-reduce all the same, and then no NCCL setting "
        f"reaches it ({_OFF})"
    )
