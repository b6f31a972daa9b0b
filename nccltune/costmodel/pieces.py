"""Alpha-beta pieces of one setting's curve: ``time = alpha + bytes * beta`` between free joins. Pure numpy.

A setting's protocol, algorithm and channels may change with size, and time may even fall there, so the pieces are not
forced to meet. Each is fitted on relative error (rows divided by the measured time) with both parameters non-negative.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel.estimate import Floats
from nccltune.schemas.fit import Piece

# Relative scatter that a straight line is allowed before another piece pays: two harnesses on one machine agree
# within 3% (2x H200, docs/fit.md). A piece costs ln(n) per parameter (the Bayesian information criterion), three each:
# alpha, beta and where it starts.
SCATTER = 0.03
PARAMETERS = 3


def fit_pieces(size_bytes: Floats, time_us: Floats, protos: Sequence[str | None] | None = None) -> list[Piece]:
    """Split rising sizes into pieces and fit each; a piece never spans two known protocols.

    ``protos``: protocol in force per size, None where unknown. A piece of one point is flat: nothing shows its slope.
    """
    n = size_bytes.size
    names = [proto or "unknown" for proto in protos] if protos is not None else ["unknown"] * n
    alpha, beta, cost = _all_intervals(size_bytes, time_us)
    groups = np.cumsum([0, *(a != b for a, b in zip(names[1:], names[:-1], strict=True))]) if n else np.empty(0)
    cost = np.where(groups[:, None] == groups[None, :], cost, np.inf)
    spans = _segment(cost, PARAMETERS * np.log(max(n, 2)))
    pieces = [_piece(names[i], size_bytes[i : j + 1], time_us[i : j + 1], alpha[i, j], beta[i, j]) for i, j in spans]
    return _joined(pieces)


def fit_line(size_bytes: Floats, time_us: Floats) -> tuple[float, float]:
    """Fit (alpha_us, us_per_byte) of one line, both non-negative, least squares on relative error."""
    alpha, beta, _ = _all_intervals(size_bytes, time_us)
    return float(alpha[0, -1]), float(beta[0, -1])


def _all_intervals(size: Floats, time: Floats) -> tuple[Floats, Floats, Floats]:
    """Alpha, beta and squared residual (in units of SCATTER) for every span i..j of points.

    Two unknowns need no iteration: the least-squares line where both are positive, otherwise the better of the flat
    line and the line through zero. Sizes are scaled to keep the sums in range.
    """
    scale = size.max() if size.size else 1.0
    a, b = 1 / time, size / scale / time

    def spans(values: Floats) -> Floats:
        total = np.concatenate(([0.0], np.cumsum(values)))
        return total[None, 1:] - total[:-1, None]

    count, aa, ab, bb, a1, b1 = (spans(v) for v in (np.ones_like(a), a * a, a * b, b * b, a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        det = aa * bb - ab * ab
        both = (a1 * bb - b1 * ab) / det, (b1 * aa - a1 * ab) / det
        flat, through = a1 / aa, b1 / bb
        # Residual of the relative model sum((1 - alpha*a - beta*b)^2) at each candidate.
        flat_cost, through_cost = count - a1 * flat, count - b1 * through
        alpha = np.where(flat_cost <= through_cost, flat, 0.0)
        beta = np.where(flat_cost <= through_cost, 0.0, through)
        cost = np.minimum(flat_cost, through_cost)
        fits = (count >= 2) & (det > 1e-12 * aa * bb) & (both[0] >= 0) & (both[1] >= 0)
        alpha, beta = np.where(fits, both[0], alpha), np.where(fits, both[1], beta)
        cost = np.where(fits, count - both[0] * a1 - both[1] * b1, cost)
    single = count == 1
    alpha, beta = np.where(single, flat, alpha), np.where(single, 0.0, beta)
    cost = np.where(single, 0.0, np.maximum(cost, 0.0))
    valid = np.arange(a.size)[:, None] <= np.arange(a.size)[None, :]
    return alpha, beta / scale, np.where(valid, cost / SCATTER**2, np.inf)


def _segment(cost: Floats, penalty: float) -> list[tuple[int, int]]:
    """Cheapest split of 0..n-1 into spans, each costing its residual plus ``penalty`` (dynamic programming)."""
    n = cost.shape[0]
    best, start = np.zeros(n + 1), np.zeros(n, dtype=int)
    for end in range(n):
        totals: NDArray[np.float64] = best[: end + 1] + cost[: end + 1, end] + penalty
        start[end] = int(np.argmin(totals))
        best[end + 1] = totals[start[end]]
    spans, end = [], n - 1
    while end >= 0:
        spans.append((int(start[end]), end))
        end = int(start[end]) - 1
    return spans[::-1]


def _piece(proto: str, size: Floats, time: Floats, alpha: float, beta: float) -> Piece:
    error = np.abs((alpha + beta * size) / time - 1).max() * 100
    return Piece(
        proto=proto, from_bytes=int(size[0]), to_bytes=int(size[-1]), alpha_us=float(alpha), us_per_byte=float(beta),
        max_error_percent=float(error),
    )  # fmt: skip


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Let neighbours meet where their lines cross, if that lies between their points; otherwise the right one starts at its first point."""
    result = list(pieces)
    for index in range(len(result) - 1):
        left, right = result[index], result[index + 1]
        slope = left.us_per_byte - right.us_per_byte
        cross = (right.alpha_us - left.alpha_us) / slope if slope else np.inf
        join = round(cross) if left.to_bytes <= cross <= right.from_bytes else right.from_bytes
        result[index] = left.model_copy(update={"to_bytes": join})
        result[index + 1] = right.model_copy(update={"from_bytes": join})
    return result
