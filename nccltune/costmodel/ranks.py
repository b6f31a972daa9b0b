"""From the rank counts that were measured to one that was not, by the steps and the volume of the algorithms. Pure numpy.

A ring all-reduce on n ranks is 2(n-1) dependent steps of ``size / n`` bytes each (a one-node tree is a chain of as many),
after a fixed part: ``t(n, s) = base + 2(n-1) * step(s / n)``. Measured on m ranks, ``step`` is known at ``s / m``, so
``t(n, s) = base + (n-1)/(m-1) * (t(m, s * m/n) - base)``: at small sizes the latency grows with the steps, at large ones
the time with the volume, 2(n-1)/n. No constant in it is fitted. Worked: 4 ranks 13.0 us and 2 ranks 6.3 us at small
sizes give base = 6.3 - (13.0 - 6.3) / 2 = 2.95, and 8 ranks 2.95 + 7/3 * (13.0 - 2.95) = 26.4 us.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nccltune.costmodel import nccl_model
from nccltune.costmodel.curve import CommCurve
from nccltune.costmodel.estimate import Floats
from nccltune.costmodel.nccl_model import num_hops, ring_volume
from nccltune.errors import InputError, NoBasisError
from nccltune.schemas.common import weakest

# Messages up to this are latency: on every published table they cost the same as the smallest within 10%.
SMALL_BYTES = 16384
# In-switch reduction moves every byte once each way whatever the ranks; mean of NCCL's two efficiencies, 0.85 and 0.74.
NVLS_SHARE = 0.8
# With one rank count the fixed part and the steps cannot be told apart. Measured steps cost 1.4 (8x H200), 1.7 (RTX PRO
# 6000) and 2.0 (B200) times NCCL's own constant: the middle, then least and most.
STEP_FACTORS = (1.7, 1.0, 2.5)
# Nor does one rank count show what the ranks share: on 8x RTX PRO 6000 a pair moves 39 GB/s per GPU, four 26 and eight 25.
PCIE_CONTENTION = 1.5


@dataclass(frozen=True, slots=True)
class Widths:
    """How far the truth may lie from the ring form, 90%.

    ``floor``: relative, everywhere; twice as much from a single rank count, which shows no contention. ``spread``: share of the way to the furthest other form (other measured rank
    counts, a straight line in ranks at the same size, in-switch reduction). Chosen on two machines and scored on the
    third in benchmarks/allreduce_accuracy.py.
    """

    floor: float = 0.15
    spread: float = 0.75


WIDTHS = Widths()


def extrapolate_ranks(
    curves: Sequence[CommCurve], num_ranks: int, links_kind: str, *, nvls: bool = True, widths: Widths = WIDTHS
) -> CommCurve:
    """Predict a setting's curve on ``num_ranks`` from curves on other rank counts of one node.

    ``nvls``: NCCL may reduce inside the switch (False where the base environment turns it off, as SGLang's does).
    Every point is marked extrapolated, with a wide interval. A rank count that was measured comes back as it is.
    """
    known = _checked(curves, num_ranks)
    if num_ranks in known:
        return known[num_ranks]
    nearest = min(known.values(), key=lambda c: (abs(np.log(c.num_ranks / num_ranks)), -c.num_ranks))
    size = _sizes(nearest, num_ranks)
    base, alternatives = _latency(known, links_kind)
    rings = [_ring(curve, num_ranks, size, base) for curve in _around(known, nearest, num_ranks)]
    central = np.exp(np.mean([np.log(ring) for ring in rings], axis=0))
    others = [_ring(curve, num_ranks, size, b) for curve in known.values() for b in (base, *alternatives)]
    if len(known) > 1:
        others.append(_straight(known, num_ranks, size))
    elif links_kind == "pcie":
        others.append(
            base + (central - base) * (PCIE_CONTENTION if num_ranks > nearest.num_ranks else 1 / PCIE_CONTENTION)
        )
    if nvls and nccl_model.nvls_possible(nearest.setting.env, links_kind, 9, num_ranks):
        switch = np.minimum(_in_switch(known, size, base), central)
        others.append(switch)
        # NCCL takes it by a model of its own, and published machines are split on it: the middle, and both in the interval.
        central = np.sqrt(central * switch)
    floor = widths.floor * (2 if len(known) == 1 else 1)
    return _result(nearest, num_ranks, size, central, others, Widths(floor, widths.spread))


def _checked(curves: Sequence[CommCurve], num_ranks: int) -> dict[int, CommCurve]:
    if not curves:
        raise NoBasisError("no all-reduce curve to extrapolate from", "none was given", "measure 2 or 4 ranks first")
    if num_ranks < 2:
        raise InputError(f"{num_ranks} ranks have no all-reduce", "an all-reduce needs at least 2", "give 2 or more")
    known = {curve.num_ranks: curve for curve in sorted(curves, key=lambda c: c.num_ranks)}
    ids = {curve.setting.id for curve in curves}
    if len(known) != len(curves) or len(ids) > 1 or min(known) < 2:
        raise InputError(
            "these curves cannot be joined into one extrapolation",
            f"settings {', '.join(sorted(ids))} on {', '.join(str(c.num_ranks) for c in curves)} ranks",
            "give one setting, once per rank count",
        )
    return known


def _sizes(nearest: CommCurve, num_ranks: int) -> Floats:
    """Sizes whose share per step was measured; small messages are latency and need no smaller point."""
    size = nearest.size_bytes
    covered = size[size * nearest.num_ranks / num_ranks <= nearest.size_bytes[-1] * (1 + 1e-9)]
    return covered if covered.size else size[:1]


def _latency(known: dict[int, CommCurve], links_kind: str) -> tuple[float, list[float]]:
    """The fixed part of the small-message time, and other values it could have when one rank count cannot tell."""
    small = {
        n: float(np.median(c.time_us[c.size_bytes <= max(SMALL_BYTES, c.size_bytes[0])])) for n, c in known.items()
    }
    if len(small) > 1:
        hops, times = np.array([num_hops(n) for n in small], dtype=float), np.array(list(small.values()))
        hop = max(float(np.polyfit(hops, times, 1, w=1 / times)[0]), 0.0)
        return float(np.clip(times[0] - hop * hops[0], 0.0, times.min())), []
    ((ranks, time),) = small.items()
    own = nccl_model.HOP_US[links_kind]["Ring"]["LL"]
    central, *others = (max(time - num_hops(ranks) * own * factor, 0.0) for factor in STEP_FACTORS)
    return central, others


def _around(known: dict[int, CommCurve], nearest: CommCurve, num_ranks: int) -> list[CommCurve]:
    """The nearest curve, or the two on either side."""
    below, above = [n for n in known if n < num_ranks], [n for n in known if n > num_ranks]
    return [known[max(below)], known[min(above)]] if below and above else [nearest]


def _ring(curve: CommCurve, num_ranks: int, size: Floats, base: float) -> Floats:
    """Same bytes per step as measured on ``curve.num_ranks``, as many more steps (or fewer)."""
    share = np.clip(size * curve.num_ranks / num_ranks, curve.size_bytes[0], None)
    steps = np.maximum(curve.at(share).value - base, 0.0)
    return base + steps * num_hops(num_ranks) / num_hops(curve.num_ranks)


def _straight(known: dict[int, CommCurve], num_ranks: int, size: Floats) -> Floats:
    """The same message on every rank count, straight in ranks: what a link shared by all of them would do."""
    a, b = sorted(known, key=lambda n: abs(np.log(n / num_ranks)))[:2]
    inside = np.clip(size, known[a].size_bytes[0], None), np.clip(size, known[b].size_bytes[0], None)
    first, second = known[a].at(inside[0]).value, known[b].at(inside[1]).value
    line = first + (second - first) * (num_ranks - a) / (b - a)
    return np.maximum(line, 0.25 * np.minimum(first, second))


def _in_switch(known: dict[int, CommCurve], size: Floats, base: float) -> Floats:
    """In-switch reduction: NCCL's flat 25 us, and the volume of one message each way at the measured bandwidth."""
    fewest = known[min(known)]
    latency = float(np.median(fewest.time_us[fewest.size_bytes <= max(SMALL_BYTES, fewest.size_bytes[0])]))
    moved = np.maximum(fewest.at(np.clip(size, fewest.size_bytes[0], None)).value - max(latency, base), 0.0)
    return nccl_model.NVLS_US + moved / ring_volume(fewest.num_ranks) / NVLS_SHARE


def _result(
    nearest: CommCurve, num_ranks: int, size: Floats, central: Floats, others: list[Floats], widths: Widths
) -> CommCurve:
    share = np.clip(size * nearest.num_ranks / num_ranks, nearest.size_bytes[0], None)
    known = nearest.at(share)
    lowest, highest = np.min([*others, central], axis=0), np.max([*others, central], axis=0)
    below = np.hypot(
        np.hypot(widths.floor, widths.spread * np.log(central / lowest)),
        np.log(known.value / np.maximum(known.low, 1e-9)),
    )
    above = np.hypot(
        np.hypot(widths.floor, widths.spread * np.log(highest / central)), np.log(known.high / known.value)
    )
    return CommCurve(
        setting=nearest.setting,
        num_ranks=num_ranks,
        origin=f"from {nearest.num_ranks} to {num_ranks} ranks by ring steps and volume; {nearest.origin}",
        size_bytes=size,
        time_us=central,
        low_us=central * np.exp(-below),
        high_us=central * np.exp(above),
        point_source=weakest(nearest.point_source, "extrapolated"),
    )
