"""Robust statistics of latency samples: pure numpy, no I/O.

All-reduce times are right-skewed, so the headline is the median; the interval is a bootstrap of the median.
"""

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# 1.4826 makes the median absolute deviation estimate the standard deviation of a normal distribution;
# 3.5 is the modified z-score limit of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
MAD_TO_SIGMA = 1.4826
OUTLIER_Z = 3.5
BOOTSTRAP_DRAWS = 400

Verdict = Literal["same", "faster", "slower", "unclear"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of one sample set; all times in the unit of the samples. ``low``/``high``: 90% interval of the median."""

    n: int
    median: float
    low: float
    high: float
    mad: float
    mean: float
    stdev: float
    min: float
    p5: float
    p25: float
    p75: float
    p95: float
    p99: float
    max: float
    num_outliers: int

    def to_dict(self) -> dict[str, float]:
        """Return the summary as a plain dictionary."""
        return asdict(self)


def median_interval(samples: Floats, *, level: float = 0.90, seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval of the median at ``level``; one sample gives a degenerate interval."""
    samples = np.asarray(samples, dtype=float)
    if samples.size == 1:
        return float(samples[0]), float(samples[0])
    rng = np.random.default_rng(seed)
    draws = np.median(samples[rng.integers(0, samples.size, (BOOTSTRAP_DRAWS, samples.size))], axis=1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summarize(samples: Floats | list[float], *, seed: int = 0) -> Summary:
    """Summarize a non-empty list of finite samples; raises ValueError otherwise."""
    x = np.asarray(samples, dtype=float)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError("summarize needs at least one sample, all finite")
    low, high = median_interval(x, seed=seed)
    p5, p25, median, p75, p95, p99 = (float(q) for q in np.quantile(x, [0.05, 0.25, 0.5, 0.75, 0.95, 0.99]))
    mad = float(np.median(np.abs(x - median)))
    return Summary(
        n=int(x.size), median=median, low=low, high=high, mad=mad, mean=float(x.mean()),
        stdev=float(x.std(ddof=1)) if x.size > 1 else 0.0, min=float(x.min()), p5=p5, p25=p25, p75=p75, p95=p95,
        p99=p99, max=float(x.max()), num_outliers=int(outliers(x).sum()),
    )  # fmt: skip


def outliers(samples: Floats) -> NDArray[np.bool_]:
    """Mark samples whose modified z-score is above 3.5; with a zero MAD nothing is marked."""
    x = np.asarray(samples, dtype=float)
    deviation = np.abs(x - np.median(x))
    mad = np.median(deviation)
    if mad == 0:
        return np.zeros(x.shape, dtype=bool)
    return deviation / (MAD_TO_SIGMA * mad) > OUTLIER_Z


def difference_interval(a: Floats, b: Floats, *, level: float = 0.90, seed: int = 0) -> tuple[float, float, float]:
    """Return (value, low, high) of ``median(a) - median(b)`` by bootstrap over both sample sets."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    rng = np.random.default_rng(seed)
    draw_a = np.median(a[rng.integers(0, a.size, (BOOTSTRAP_DRAWS, a.size))], axis=1)
    draw_b = np.median(b[rng.integers(0, b.size, (BOOTSTRAP_DRAWS, b.size))], axis=1)
    low, high = np.quantile(draw_a - draw_b, [(1 - level) / 2, (1 + level) / 2])
    return float(np.median(a) - np.median(b)), float(low), float(high)


def compare(a: Floats, b: Floats, *, same_within: float = 0.01, seed: int = 0) -> Verdict:
    """Say whether ``a`` is the same, faster or slower than ``b`` (smaller is faster), or that it is unclear.

    ``same`` needs the whole interval of the relative difference inside ``same_within``; ``faster`` and ``slower``
    need it wholly beyond zero and the median beyond ``same_within``. Everything else is ``unclear``.
    """
    base = float(np.median(b))
    value, low, high = (d / base for d in difference_interval(a, b, seed=seed))
    if -same_within <= low and high <= same_within:
        return "same"
    if high < 0 and value < -same_within:
        return "faster"
    if low > 0 and value > same_within:
        return "slower"
    return "unclear"
