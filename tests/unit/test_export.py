"""A run as a table: pandas frame and CSV."""

from pathlib import Path

import pytest

import nccltune
from nccltune.errors import InputError, NccltuneError
from nccltune.export import write_csv

RUN = Path(__file__).parents[2] / "reports" / "2026-11-30-h200-x2" / "data" / "p2p"


@pytest.fixture(scope="module")
def frame():
    return nccltune.frame(RUN)


def test_one_row_a_case_in_the_order_of_the_walk(frame):
    assert frame["case_id"].is_unique
    assert frame["order"].is_monotonic_increasing
    cases = frame[(frame.method == "nccl") & (frame.repeat == 0)]
    assert len(cases) == 44 * 11 * 2
    assert set(frame.method) >= {"nccl", "sglang-custom-v2"}


def test_times_are_those_of_the_run_and_bus_bandwidth_is_nccl_tests(frame):
    row = frame[(frame.setting == "LL Ring") & (frame.timing == "back-to-back") & (frame.size_bytes == 7340032)].iloc[0]
    # busbw of 2 ranks = bytes / time: 7340032 B / 60.4 us = 121.5 GB/s
    assert row.busbw_gb_s == pytest.approx(7340032 / row.median_us / 1e3)
    assert (row.algo, row.proto) == ("Ring", "LL")
    assert row.low_us <= row.median_us <= row.high_us


def test_a_case_without_times_has_none(tmp_path):
    shm = nccltune.frame(RUN.parent / "shm")
    lost = shm[shm.status == "not_in_force"]
    assert len(lost) == 22
    assert lost.median_us.isna().all()


def test_csv_has_every_row_and_a_bad_place_is_one_clear_error(tmp_path):
    assert write_csv(RUN, tmp_path / "cases.csv") == len((tmp_path / "cases.csv").read_text().splitlines()) - 1
    with pytest.raises(NccltuneError, match="cannot write"):
        write_csv(RUN, tmp_path / "no" / "cases.csv")
    with pytest.raises(InputError):
        write_csv(tmp_path, tmp_path / "cases.csv")
