"""Curves for tests."""

import numpy as np

from nccltune.costmodel.curve import CommCurve
from nccltune.schemas.setting import BASE


def flat(time_us, num_ranks=8, setting=BASE):
    """The same time at every size, exactly known."""
    time = np.full(2, float(time_us))
    return CommCurve(setting, num_ranks, "test", np.array([1024.0, 2.0**30]), time, time, time, "measured")
