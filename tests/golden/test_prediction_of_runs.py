"""Predictions from the stored 2x H200 runs: what ``predict`` says of communication is what ``fit`` printed of the same run."""

import shutil
from pathlib import Path

import pytest

from nccltune import api

DATA = Path(__file__).parents[2] / "reports" / "2026-11-30-h200-x2" / "data"
# Measured of a server on that machine, NCCL carrying the all-reduce: Qwen3-30B-A3B, 128 in, 192 out (docs/model.md).
SERVED_MS = {1: 4.57, 4: 6.00, 16: 9.09}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "p2p"
    shutil.copytree(DATA / "p2p", path)
    api.fit(path)
    return path


def test_communication_is_that_of_the_forward_and_not_of_back_to_back_times(run):
    """The run has both; 123 x 9.33 us in a forward are 1.148 ms, back to back 0.938 ms."""
    found = api.predict([1, 3], run=run)
    fit = api.fit(run)
    base = next(s for s in fit.settings if s.setting.name == "base" and s.timing == fit.timing)
    for row in found.rows:
        printed = base.forward_us[str(row.draft_tokens)] / 1e3
        # beside the all-reduces, half of one for the logits
        assert printed < row.comm_ms.value < 1.05 * printed


def test_a_server_of_that_machine_without_any_engine_point(run):
    found = api.predict([1], run=run, model="qwen3-30b-a3b", setting="base", batch=list(SERVED_MS), context=224)
    for row in found.rows:
        measured = SERVED_MS[row.batch_size]
        assert row.cycle_ms.value == pytest.approx(measured, rel=0.15)
        assert row.cycle_ms.low <= measured <= row.cycle_ms.high


def test_eight_ranks_from_two_are_marked_and_wider(run):
    two, eight = (api.predict([1, 4], run=run, ranks=n, topology=t) for n, t in ((2, None), (8, "h200-x8")))
    for a, b in zip(two.rows, eight.rows, strict=True):
        assert b.comm_ms.source == "extrapolated"
        assert b.comm_ms.high / b.comm_ms.low > 1.5 * a.comm_ms.high / a.comm_ms.low
    assert any("8 ranks" in text for text in eight.what_if)
