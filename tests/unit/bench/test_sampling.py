"""The stop rule and the size of a replay."""

import numpy as np
import pytest

from nccltune.bench.libnccl import version_text
from nccltune.bench.sampling import StopRule, allreduces_per_replay, sample


class Ranks:
    """Two ranks whose replays take known times."""

    def __init__(self, times: list[list[float]], compute: list[list[float]] | None = None) -> None:
        self.times, self.compute, self.calls = times, compute, 0

    def call(self, op, timeout_s, *, num):
        assert op == "replay"
        part = slice(self.calls * num, (self.calls + 1) * num)
        self.calls += 1
        return [
            {"full_us": self.times[r][part], "compute_us": self.compute[r][part] if self.compute else []}
            for r in range(2)
        ]


def test_the_slowest_rank_of_each_replay_is_the_sample():
    ranks = Ranks([[100.0, 300.0] * 10, [200.0, 100.0] * 10])
    result = sample(ranks, 10, StopRule(), 1.0)  # type: ignore[arg-type]
    assert result.per_allreduce_us.tolist() == [20.0, 30.0] * 10


def test_in_forward_subtracts_the_compute_of_the_same_replay():
    ranks = Ranks([[1000.0] * 20, [1100.0] * 20], [[600.0] * 20, [500.0] * 20])
    result = sample(ranks, 10, StopRule(), 1.0)  # type: ignore[arg-type]
    # slowest rank with all-reduces 1100, slowest without 600: (1100 - 600) / 10 = 50
    assert result.per_allreduce_us.tolist() == [50.0] * 20
    assert result.compute_us == 60.0
    assert result.stop_reason == "interval"


def test_noisy_samples_run_to_the_limit_and_quiet_ones_stop():
    rng = np.random.default_rng(0)
    noisy = list(rng.uniform(100, 1000, 200))
    result = sample(Ranks([noisy, noisy]), 1, StopRule(max_replays=60), 1.0)  # type: ignore[arg-type]
    assert (result.per_allreduce_us.size, result.stop_reason) == (60, "max_replays")


@pytest.mark.parametrize(("model_us", "expected"), [(7.0, 50), (100.0, 8), (1e5, 4), (None, 40)])
def test_a_replay_is_long_enough_for_its_events_and_short_for_large_messages(model_us, expected):
    assert allreduces_per_replay("back-to-back", model_us) == expected


@pytest.mark.parametrize(("code", "text"), [(22809, "2.28.9"), (21805, "2.18.5"), (2804, "2.8.4"), (23007, "2.30.7")])
def test_version_numbers(code, text):
    assert version_text(code) == text
