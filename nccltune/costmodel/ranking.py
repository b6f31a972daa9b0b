"""Rank a run's settings by the communication of the decode forwards, and say which differences are beyond noise. Pure."""

from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from nccltune.costmodel.curve import curve_from_points
from nccltune.costmodel.estimate import Floats
from nccltune.schemas.fit import SettingFit, VersusBase
from nccltune.schemas.model import Model
from nccltune.schemas.run import Manifest
from nccltune.schemas.setting import BASE

# Decode and verify forwards of small batches: 4 requests with 4 draft tokens. Larger ones are prefill's business.
DECODE_MAX_TOKENS = 16
# Without a model the sizes themselves are ranked; this is 16 tokens of 7168 x 2 bytes, rounded up.
DECODE_MAX_BYTES = 262144
# Times within 1% are the same, as in stats.compare.
SAME_PERCENT = 1.0
LEVEL = 0.90


@dataclass(frozen=True)
class Columns:
    """What is added up per setting: one column per forward (or per size, without a model)."""

    labels: list[str]
    size_bytes: Floats
    num_allreduces: int
    decode: list[bool]
    decode_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ranking:
    """Settings in order, the best one that beats the base beyond noise, and those that tie with it."""

    settings: list[SettingFit]
    best: str | None
    tied: list[str]


@dataclass(frozen=True)
class _Score:
    value: float
    below: float
    above: float


def decode_columns(model: Model | None, manifest: Manifest, base_sizes: list[int]) -> Columns:
    """Choose the forwards to add up: the run's tokens inside the sizes that the base was measured at."""
    sizes = sorted(set(base_sizes) or set(manifest.size_bytes))
    if model is None:
        decode = [size <= DECODE_MAX_BYTES for size in sizes]
        return Columns([], np.array(sizes, float), 1, decode if any(decode) else [True] * len(sizes))
    one = model.allreduce_bytes(1)
    tokens = sorted(set(manifest.tokens)) or sorted({size // one for size in sizes if size % one == 0})
    tokens = [t for t in tokens if sizes and sizes[0] <= t * one <= sizes[-1]]
    decode = [t <= DECODE_MAX_TOKENS for t in tokens]
    decode = decode if any(decode) else [True] * len(tokens)
    chosen = [t for t, d in zip(tokens, decode, strict=True) if d]
    return Columns([str(t) for t in tokens], np.array(tokens, float) * one, model.num_allreduces, decode, chosen)


def with_forward(fit: SettingFit, columns: Columns, num_ranks: int) -> SettingFit:
    """Add the all-reduces of one forward, per number of tokens that lies inside the setting's own sizes."""
    if not fit.points or not columns.labels:
        return fit
    curve = curve_from_points(fit.setting, fit.points, num_ranks, "")
    inside = (columns.size_bytes >= curve.size_bytes[0]) & (columns.size_bytes <= curve.size_bytes[-1])
    labels = [label for label, i in zip(columns.labels, inside, strict=True) if i]
    times = curve.at(columns.size_bytes[inside]).scaled(columns.num_allreduces)
    value = dict(zip(labels, times.value.tolist(), strict=True))
    interval = dict(zip(labels, zip(times.low.tolist(), times.high.tolist(), strict=True), strict=True))
    return fit.model_copy(update={"forward_us": value, "forward_interval_us": interval})


def rank(fits: list[SettingFit], columns: Columns, num_ranks: int) -> Ranking:
    """Order the settings of one timing and compare each with the base.

    A setting is ``best`` only if it is faster than the base by more than 1% and by more than the noise of the fastest
    of as many candidates: with 40 settings, the luckiest of 40 equal ones must not win.
    """
    scores = {index: score for index, fit in enumerate(fits) if (score := _score(fit, columns, num_ranks)) is not None}
    base = next((index for index in scores if fits[index].setting.id == BASE.id), None)
    ordered = sorted(scores, key=lambda i: (scores[i].value, len(fits[i].setting.env), fits[i].setting.name))
    if base is not None:
        fits = [
            fit.model_copy(update={"versus_base": _versus(fit, scores[i], scores[base], i == base)})
            if i in scores
            else fit
            for i, fit in enumerate(fits)
        ]
    rest = [i for i in range(len(fits)) if i not in scores]
    settings = [
        fits[i] for i in (*ordered, *(i for i in rest if fits[i].usable), *(i for i in rest if not fits[i].usable))
    ]
    best = _best(fits, ordered, scores, base) if base is not None else None
    if best is None or base is None:
        return Ranking(settings, None, [])
    limit = scores[best].value + scores[best].above
    tied = [
        fits[i].setting.name for i in ordered
        if i not in (best, base) and not _is_base(fits[i]) and scores[i].value - scores[i].below <= limit
    ]  # fmt: skip
    return Ranking(settings, fits[best].setting.name, tied)


def compare(fit: SettingFit, other: SettingFit | None, columns: Columns, num_ranks: int) -> VersusBase | None:
    """Compare the decode forwards of two curves; None where one has no time for all of them."""
    score = _score(fit, columns, num_ranks)
    reference = _score(other, columns, num_ranks) if other is not None else None
    return None if score is None or reference is None else _verdict(score, reference)


def _score(fit: SettingFit, columns: Columns, num_ranks: int) -> _Score | None:
    """Sum over the decode columns; None if any of them lies outside the setting's own sizes.

    The spread from launch to launch moves all sizes of a setting together, so half-widths add up.
    """
    if not fit.usable or not fit.points or not any(columns.decode):
        return None
    if columns.labels:
        keys = [str(tokens) for tokens in columns.decode_tokens]
        if not all(key in fit.forward_us for key in keys):
            return None
        rows = [(fit.forward_us[key], *fit.forward_interval_us[key]) for key in keys]
    else:
        size = columns.size_bytes[np.array(columns.decode, dtype=bool)]
        curve = curve_from_points(fit.setting, fit.points, num_ranks, "")
        if size[0] < curve.size_bytes[0] or size[-1] > curve.size_bytes[-1]:
            return None
        times = curve.at(size)
        rows = list(zip(times.value.tolist(), times.low.tolist(), times.high.tolist(), strict=True))
    value, low, high = (sum(column) for column in zip(*rows, strict=True))
    return _Score(value, value - low, high - value)


def _is_base(fit: SettingFit) -> bool:
    return fit.setting.id == BASE.id or fit.same_as == BASE.name


def _difference(score: _Score, base: _Score, factor: float = 1.0) -> tuple[float, float, float]:
    """Percent against the base with its interval, the two being independent."""
    value = score.value - base.value
    low, high = value - factor * np.hypot(score.below, base.above), value + factor * np.hypot(score.above, base.below)
    return tuple(float(100 * x / base.value) for x in (value, low, high))  # type: ignore[return-value]


def _versus(fit: SettingFit, score: _Score, base: _Score, is_base: bool) -> VersusBase:
    if is_base or _is_base(fit):
        return VersusBase(percent=0.0, low_percent=0.0, high_percent=0.0, verdict="base" if is_base else "same")
    return _verdict(score, base)


def _verdict(score: _Score, base: _Score) -> VersusBase:
    value, low, high = _difference(score, base)
    faster, slower = value < -SAME_PERCENT and high < 0, value > SAME_PERCENT and low > 0
    return VersusBase(
        percent=value,
        low_percent=low,
        high_percent=high,
        verdict="faster" if faster else "slower" if slower else "unclear",
    )


def _best(fits: list[SettingFit], ordered: list[int], scores: dict[int, _Score], base: int) -> int | None:
    """Fastest setting that beats the base at a level shared out over all candidates (Bonferroni)."""
    candidates = [i for i in ordered if not _is_base(fits[i]) and fits[i].same_as is None] or ordered
    normal = NormalDist()
    factor = normal.inv_cdf(1 - (1 - LEVEL) / 2 / len(candidates)) / normal.inv_cdf((1 + LEVEL) / 2)
    for index in ordered:
        value, _, high = _difference(scores[index], scores[base], factor)
        if not _is_base(fits[index]) and value < -SAME_PERCENT and high < 0:
            return index
    return None
