"""From 2 and 4 ranks to 8: against machines that follow the ring exactly, and against published tables."""

import csv
from pathlib import Path

import numpy as np
import pytest

from nccltune.costmodel.curve import CommCurve
from nccltune.costmodel.ranks import extrapolate_ranks
from nccltune.errors import InputError, NoBasisError
from nccltune.schemas.common import SOURCES
from nccltune.schemas.setting import BASE, Setting

SIZE = 2.0 ** np.arange(9, 28)
TABLE = Path(__file__).parents[3] / "benchmarks" / "data" / "allreduce.csv"


def curve(num_ranks, time, size=SIZE, setting=BASE):
    return CommCurve(setting, num_ranks, "test", size, time, time, time, "measured")


def ring(num_ranks, size=SIZE):
    """Base 3 us, then 2(n-1) steps of 1.5 us and size/n bytes at 25 GB/s."""
    return 3.0 + 2 * (num_ranks - 1) * (1.5 + size / num_ranks / 25e3)


@pytest.mark.parametrize(("known", "target"), [((2, 4), 8), ((2, 4), 6), ((4, 8), 2), ((2, 8), 4), ((4, 8), 16)])
def test_a_machine_that_is_a_ring_is_predicted(known, target):
    got = extrapolate_ranks([curve(n, ring(n)) for n in known], target, "pcie")
    assert got.num_ranks == target
    # Latency is the median of the messages up to 16 KiB (here 512 B to 16 KiB), which moves the fixed part by what the
    # middle one of them, 3 KiB, takes on the link: about 0.1 of 6 us on 2 ranks.
    assert got.time_us == pytest.approx(ring(target, got.size_bytes), rel=0.02)
    assert got.time_us[-5:] == pytest.approx(ring(target, got.size_bytes)[-5:], rel=1e-3)
    assert SOURCES[int(got.at(14336).source)] == "extrapolated"
    assert (got.low_us < got.time_us).all()
    assert (got.high_us > got.time_us * 1.1).all()


def test_sizes_that_no_measured_step_covers_are_left_out():
    # 2 ranks at s need the 4-rank step of 2s: the largest size would need twice the largest measured.
    got = extrapolate_ranks([curve(4, ring(4)), curve(8, ring(8))], 2, "pcie")
    assert got.size_bytes[-1] * 4 / 2 <= SIZE[-1]


def test_in_switch_reduction_is_in_the_interval_only_where_it_can_be():
    known = [curve(n, 3.0 + 2 * (n - 1) * (0.8 + SIZE / n / 350e3)) for n in (2, 4)]
    with_nvls = extrapolate_ranks(known, 8, "nvlink")
    without = extrapolate_ranks(known, 8, "nvlink", nvls=False)
    off = Setting.make({"NCCL_ALGO": "Ring"})
    named = extrapolate_ranks([curve(c.num_ranks, c.time_us, setting=off) for c in known], 8, "nvlink")
    assert with_nvls.time_us[-1] < 0.95 * without.time_us[-1]
    assert named.time_us == pytest.approx(without.time_us)
    assert with_nvls.time_us[0] == pytest.approx(without.time_us[0])
    assert extrapolate_ranks(known, 8, "pcie").time_us == pytest.approx(without.time_us)


def test_one_rank_count_is_enough_and_wider():
    two = extrapolate_ranks([curve(2, ring(2)), curve(4, ring(4))], 8, "pcie")
    one = extrapolate_ranks([curve(4, ring(4))], 8, "pcie")
    assert (np.log(one.high_us / one.low_us) > np.log(two.high_us / two.low_us)).all()
    assert ((one.low_us <= ring(8)) & (ring(8) <= one.high_us)).all()


def test_a_measured_rank_count_comes_back_as_it_is():
    four = curve(4, ring(4))
    assert extrapolate_ranks([curve(2, ring(2)), four], 4, "pcie") is four


@pytest.mark.parametrize(
    ("curves", "target", "error", "match"),
    [
        ([], 8, NoBasisError, "no all-reduce curve"),
        ([curve(2, ring(2))], 1, InputError, "no all-reduce"),
        ([curve(2, ring(2)), curve(2, ring(2))], 8, InputError, "cannot be joined"),
        (
            [curve(2, ring(2)), curve(4, ring(4), setting=Setting.make({"NCCL_PROTO": "LL"}))],
            8,
            InputError,
            "cannot be joined",
        ),
    ],
)
def test_what_cannot_be_extrapolated_is_refused(curves, target, error, match):
    with pytest.raises(error, match=match):
        extrapolate_ranks(curves, target, "pcie")


@pytest.mark.parametrize(
    ("system", "links"), [("b200_sxm", "nvlink"), ("h200_sxm", "nvlink"), ("rtx_pro_6000_server", "pcie")]
)
def test_published_tables_from_two_and_four_to_eight_ranks(system, links):
    with TABLE.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["system"] == system and r["library"] == "nccl"]
    tables = {
        n: {int(r["size_bytes"]): float(r["time_us"]) for r in rows if r["num_ranks"] == str(n)} for n in (2, 4, 8)
    }
    known = [curve(n, np.array(list(tables[n].values())), np.array(list(tables[n]), float)) for n in (2, 4)]
    got = extrapolate_ranks(known, 8, links)
    truth = np.array([tables[8][int(s)] for s in got.size_bytes])
    assert np.median(np.abs(got.time_us / truth - 1)) < 0.08
    assert np.mean((got.low_us <= truth) & (truth <= got.high_us)) >= 0.85
