"""The drift monitor: the base measured again and again, and what that says about the cases in between."""

from dataclasses import dataclass

import numpy as np

from nccltune import stats
from nccltune.schemas.measurement import Measurement

# A window whose base moved by more is flagged. Every repetition is a launch of its own, and two launches of one setting
# differ by up to 12% in a forward at 14 KiB on 2x H200 (8.3 to 9.5 us, docs/measuring.md): less is a launch, not drift.
MAX_DRIFT = 0.15


@dataclass(frozen=True, slots=True)
class Drift:
    """How the base moved between its first measurement and a repetition, at one size."""

    size_bytes: int
    relative: float
    order: int
    flagged: bool
    since: int = 0
    """Position of the monitor before: what lies between may have been measured on either side of the move."""

    def text(self) -> str:
        """One line for people."""
        return f"the base moved by {100 * self.relative:+.1f}% at {self.size_bytes} B by case {self.order}"


def drift(first: Measurement, repeat: Measurement) -> Drift:
    """Compare a repetition with the first measurement of the same size."""
    a, b = np.asarray(repeat.samples_us), np.asarray(first.samples_us)
    base = float(np.median(b))
    relative = (float(np.median(a)) - base) / base if base > 0 else 0.0
    moved = stats.compare(a, b, same_within=MAX_DRIFT) in ("faster", "slower")
    return Drift(first.size_bytes, relative, repeat.order, moved and abs(relative) > MAX_DRIFT)
