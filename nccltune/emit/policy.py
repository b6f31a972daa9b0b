"""The best choice per size of a fit as rules for a tuner plugin, with a row for every collective and every size. Pure."""

import math
from dataclasses import dataclass

from nccltune.emit.document import Rule
from nccltune.emit.gain import curve
from nccltune.emit.tuner_csv import COLLECTIVES, MAX_BYTES
from nccltune.errors import NoBasisError
from nccltune.schemas.fit import CurvePoint, Fit


@dataclass(frozen=True, slots=True)
class _Best:
    """The choice to use at one measured size."""

    size_bytes: int
    algo: str
    proto: str
    num_channels: int


def rules(fit: Fit) -> tuple[list[Rule], list[str]]:
    """Return the rules and notes on what in them was not measured; raises NoBasisError without NCCL's choices."""
    best = _best_per_size(fit)
    if not best:
        raise NoBasisError(
            "no tuner rules can be made from this run",
            "none of its points says which algorithm, protocol and channels NCCL used",
            "scan with the nccl back end, which reads NCCL's own log",
        )
    most = max(b.num_channels for b in best)
    found = [_rule(fit, "allreduce", low, high, b) for low, high, b in _bands(best)]
    last = best[-1]
    low_latency = max((b.size_bytes for b in best if b.proto == "LL"), default=0)
    notes = []
    if last.proto != "Simple":
        notes.append(f"all-reduce above {last.size_bytes} B was not measured: Ring Simple on {most} channels")
        found[-1] = _rule(fit, "allreduce", found[-1].min_bytes, last.size_bytes, last)
        found.append(_rule(fit, "allreduce", last.size_bytes + 1, MAX_BYTES, _Best(0, "Ring", "Simple", most)))
    else:
        notes.append(f"all-reduce above {last.size_bytes} B was not measured: the choice at that size is carried on")
    notes.append(
        f"other collectives and rank counts were not measured: Ring on {most} channels, "
        + (f"LL up to {low_latency} B as for all-reduce, Simple above" if low_latency else "Simple")
    )
    # All-reduce too: for other rank counts, and where NCCL lacks the pair of an earlier row and goes on to the next.
    for collective in ("allreduce", *(c for c in COLLECTIVES if c != "allreduce")):
        if low_latency:
            found.append(_rule(fit, collective, 0, low_latency, _Best(0, "Ring", "LL", most), anywhere=True))
        found.append(_rule(fit, collective, 0, MAX_BYTES, _Best(0, "Ring", "Simple", most), anywhere=True))
    return found, notes


def _rule(fit: Fit, collective: str, low: int, high: int, best: _Best, *, anywhere: bool = False) -> Rule:
    """One row; measured rows hold for the measured rank count on one node, the others for any communicator."""
    ranks, nodes = (-1, -1) if anywhere else (fit.num_ranks, 1)
    return Rule(collective, low, high, best.algo, best.proto, best.num_channels, ranks, nodes)


def _best_per_size(fit: Fit) -> list[_Best]:
    candidates: dict[int, list[tuple[CurvePoint, bool]]] = {}
    for entry in fit.settings:
        if not entry.usable or entry.timing != fit.timing:
            continue
        for point in curve(fit, entry):
            known = point.choice is not None and point.choice.algo and point.choice.proto and point.choice.num_channels
            if known and point.source == "measured":
                candidates.setdefault(point.size_bytes, []).append((point, not entry.setting.env))
    found = []
    for size in sorted(candidates):
        point = _choose(candidates[size])
        choice = point.choice
        assert choice is not None
        assert choice.algo is not None
        assert choice.proto is not None
        assert choice.num_channels is not None
        found.append(_Best(size, choice.algo, _proto(choice.proto), choice.num_channels))
    return found


def _choose(points: list[tuple[CurvePoint, bool]]) -> CurvePoint:
    """The fastest, unless the base is within noise of it: then NCCL's own choice."""
    fastest = min((p for p, _ in points), key=lambda p: p.time_us)
    for point, is_base in points:
        if is_base and point.low_us <= fastest.high_us:
            return point
    return fastest


def _proto(text: str) -> str:
    return {"ll": "LL", "ll128": "LL128", "simple": "Simple"}.get(text.lower(), text)


def _bands(best: list[_Best]) -> list[tuple[int, int, _Best]]:
    """Size ranges without gaps, equal neighbours joined; a boundary is the geometric mean of two measured sizes."""
    bands: list[tuple[int, int, _Best]] = []
    for number, item in enumerate(best):
        low = 0 if number == 0 else math.isqrt(best[number - 1].size_bytes * item.size_bytes) + 1
        high = MAX_BYTES if number == len(best) - 1 else math.isqrt(item.size_bytes * best[number + 1].size_bytes)
        previous = bands[-1] if bands else None
        if previous and (previous[2].algo, previous[2].proto, previous[2].num_channels) == (
            item.algo,
            item.proto,
            item.num_channels,
        ):
            bands[-1] = (previous[0], high, item)
        else:
            bands.append((low, high, item))
    return bands
