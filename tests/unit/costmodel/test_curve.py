"""Curves: exact on points, straight between them, between flat and proportional outside."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.costmodel.curve import CommCurve, analytic_curve, curve_from_fit, curve_from_published, leave_one_out
from nccltune.costmodel.nccl_model import allreduce_us, candidates, generation
from nccltune.errors import InputError, NoBasisError
from nccltune.schemas.common import SOURCES
from nccltune.schemas.fit import CurvePoint, SettingFit
from nccltune.schemas.setting import BASE, Setting
from nccltune.schemas.topology import AllreduceCurve


def make(size, time, spread=0.02, source="measured"):
    t = np.asarray(time, float)
    return CommCurve(BASE, 8, "test", np.asarray(size, float), t, t * (1 - spread), t * (1 + spread), source)


def source_of(estimate, index=()):
    return SOURCES[int(estimate.source[index])]


def test_points_come_back_with_their_own_interval_and_source():
    curve = make([1000, 2000, 4000], [10, 11, 13])
    on = curve.at([1000, 2000, 4000])
    assert on.value.tolist() == [10, 11, 13]
    assert on.low == pytest.approx([9.8, 10.78, 12.74])
    assert on.high == pytest.approx([10.2, 11.22, 13.26])
    assert {source_of(on, i) for i in range(3)} == {"measured"}


def test_an_affine_cost_is_interpolated_and_extrapolated_exactly():
    size = np.array([14336.0, 28672, 57344, 114688])
    curve = make(size, 10 + 1e-4 * size)
    asked = np.array([7168.0, 20000, 100000, 300000])
    assert curve.at(asked).value == pytest.approx(10 + 1e-4 * asked)
    assert [source_of(curve.at(asked), i) for i in range(4)] == [
        "extrapolated",
        "interpolated",
        "interpolated",
        "extrapolated",
    ]


def test_interval_widens_between_points_and_with_distance_outside():
    size = np.array([14336.0, 28672, 57344, 114688])
    curve = make(size, 10 + 1e-4 * size)

    def width(s):
        e = curve.at(s)
        return float((e.high - e.low) / e.value)

    assert width(14336) < width(20000) > width(28672)
    assert width(114688) < width(2e5) < width(1e6) < width(1e8)
    assert width(14336) < width(5000) < width(100)


def test_a_curve_that_falls_makes_no_overshoot():
    # 8x RTX PRO 6000, NCCL default: 156.11 us at 512 KiB, 131.52 at 1 MiB (AIConfigurator).
    curve = make([262144, 524288, 1048576, 2097152], [84.79, 156.11, 131.52, 221.24])
    inside = curve.at(np.linspace(524288, 1048576, 101)).value
    assert inside.max() <= 156.11
    assert inside.min() >= 131.52
    assert curve.at(786432).value == pytest.approx((156.11 + 131.52) / 2)


points = st.lists(
    st.tuples(st.integers(1, 1 << 30), st.floats(0.5, 1e6)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(sorted)


@given(points, st.lists(st.floats(1, 1e12), min_size=1, max_size=20))
def test_estimates_are_positive_ordered_and_between_neighbours(table, asked):
    size, time = (np.array(column, float) for column in zip(*table, strict=True))
    curve = make(size, time)
    e = curve.at(asked)
    assert np.isfinite(e.high).all()
    assert (e.low > 0).all()
    assert (e.low <= e.value).all()
    assert (e.value <= e.high).all()
    assert e.value[np.asarray(asked) <= size[-1]].max(initial=0) <= time.max() * (1 + 1e-9)


def test_one_point_alone_gives_limits_not_a_slope():
    e = make([10000], [10], spread=0).at([5000, 40000])
    # Flat 10, proportional 5 and 40: the middle is 10 x sqrt(1/2) and 10 x sqrt(4).
    assert e.value == pytest.approx([7.0711, 20.0], rel=1e-4)
    assert e.low[1] < 12.5
    assert e.high[1] > 35


def test_scalar_and_shape_are_kept():
    curve = make([1000, 2000], [10, 11])
    assert curve.at(1500).value.shape == ()
    assert curve.at(1500).item().value == pytest.approx(10.5)
    assert curve.at(np.ones((3, 2)) * 1500).value.shape == (3, 2)


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_no_message_has_no_time(size):
    with pytest.raises(InputError, match="positive number of bytes"):
        make([1000, 2000], [10, 11]).at([1000, size])


@pytest.mark.parametrize(
    ("size", "time"),
    [
        ([], []),
        ([2, 1], [1, 1]),
        ([1, 1], [1, 1]),
        ([0, 1], [1, 1]),
        ([1, 2], [1, 0]),
        ([1, 2], [1, np.nan]),
        ([1], [1, 2]),
    ],
)
def test_broken_tables_are_refused(size, time):
    with pytest.raises(ValueError):
        make(size, time)


def test_leave_one_out_by_hand():
    # (1, 10), (2, 12), (4, 13): left and right of 2 give 10 + 3 x 1/3 = 11, so -1/12.
    assert leave_one_out(np.array([1.0, 2, 4]), np.array([10.0, 12, 13])) == pytest.approx([11 / 12 - 1])
    assert leave_one_out(np.array([1.0, 2]), np.array([10.0, 12])).size == 0


def fit_of(timing="in-forward", **fields):
    rows = [
        CurvePoint(size_bytes=s, time_us=t, low_us=t - 0.1, high_us=t + 0.1) for s, t in ((2000, 11.0), (1000, 10.0))
    ]
    return SettingFit(**{"setting": BASE, "timing": timing, "usable": True, "points": rows, **fields})


def test_fit_points_are_sorted_and_only_back_to_back_times_are_widened():
    inside = curve_from_fit(fit_of(), 8, "run x")
    assert inside.size_bytes.tolist() == [1000, 2000]
    assert inside.high_us == pytest.approx([10.1, 11.1])
    beside = curve_from_fit(fit_of("back-to-back"), 8, "run x")
    assert beside.time_us == pytest.approx([10, 11])
    assert beside.high_us[0] == pytest.approx(10 + np.hypot(0.1, 4.2))


@pytest.mark.parametrize("fields", [{"usable": False, "reason": "wrong results at 1 KiB"}, {"points": []}])
def test_unusable_setting_has_no_curve(fields):
    with pytest.raises(NoBasisError, match="no usable all-reduce times"):
        curve_from_fit(fit_of(**fields), 8, "run x")


def test_published_eager_tables_are_wider_than_graph_tables():
    def half(mode):
        table = AllreduceCurve(
            library="nccl", version="2", mode=mode, num_ranks=8, size_bytes=[1000, 2000], time_us=[10, 11], source="s"
        )
        e = curve_from_published(table, "published").at(1000)
        return float(e.value - e.low), float(e.high - e.value), source_of(e)

    assert half("in-forward")[:2] == pytest.approx((0.3, 0.3))
    assert half("graph")[:2] == pytest.approx((0.5, 4.2))
    assert half("eager")[:2] == pytest.approx((1.5, 5.0))
    assert half("eager")[2] == "measured"


def test_nccl_model_by_hand():
    # Ring LL, 8 ranks: 6.6 + 14 x 0.6 = 15.0 on NVLink, 6.6 + 14 x 1.0 = 20.6 on PCIe (latency only).
    assert allreduce_us(1e-9, "Ring", "LL", 8, "nvlink", 9, 4e11) == pytest.approx(15.0)
    assert allreduce_us(1e-9, "Ring", "LL", 8, "pcie", 10, 5e10) == pytest.approx(20.6)
    # Ring Simple, 2 ranks, 1e6 B at 50 GB/s: 8.4 + 2 x 5.7 + 1e6 x 1 / 50e9 s = 19.8 + 20.
    assert allreduce_us(1e6, "Ring", "Simple", 2, "pcie", 10, 5e10) == pytest.approx(39.8)


@pytest.mark.parametrize(
    ("text", "major"), [("9.0", 9), ("90", 9), ("sm_100", 10), ("12.0", 10), ("8.6", 8), ("6.1", 7), ("", 9)]
)
def test_generation(text, major):
    assert generation(text) == major


@pytest.mark.parametrize(
    ("env", "kind", "expected"),
    [
        ({"NCCL_PROTO": "LL", "NCCL_ALGO": "allreduce:ring"}, "pcie", {("Ring", "LL")}),
        ({}, "pcie", {(a, p) for a in ("Ring", "Tree") for p in ("LL", "Simple")}),
        ({"NCCL_PROTO": "^LL128;allreduce:LL128"}, "pcie", {("Ring", "LL128"), ("Tree", "LL128")}),
        ({"NCCL_ALGO": "^tree", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0"}, "nvlink", {("Ring", "Simple")}),
        ({"NCCL_ALGO": "NVLS"}, "nvlink", {("NVLS", "Simple")}),
        ({"NCCL_ALGO": "NVLS"}, "pcie", set()),
        ({"NCCL_ALGO": "broadcast:tree"}, "pcie", {(a, p) for a in ("Ring", "Tree") for p in ("LL", "Simple")}),
    ],
)
def test_candidates_follow_nccl_grammar(env, kind, expected):
    assert set(candidates(env, kind, 9, 8)) == expected


def test_analytic_curve_is_marked_wide_and_follows_the_setting():
    best = analytic_curve("pcie", "12.0", 8, BASE, 64e9)
    simple = analytic_curve("pcie", "12.0", 8, Setting.make({"NCCL_PROTO": "Simple"}), 64e9)
    e = best.at([14336, 1 << 20])
    assert (best.time_us <= simple.time_us + 1e-9).all()
    assert best.time_us[0] == pytest.approx(20.6, rel=0.01)
    assert simple.time_us[0] == pytest.approx(8.4 + 14 * 4.0, rel=0.01)  # Tree Simple: 4.0 us a hop
    assert source_of(e, 0) == "analytic"
    assert (e.high / e.low > 3).all()
    with pytest.raises(NoBasisError, match="no all-reduce algorithm"):
        analytic_curve("pcie", "12.0", 8, Setting.make({"NCCL_ALGO": "NVLS"}), 64e9)


def test_import_stays_light():
    code = "import sys, nccltune.costmodel.curve, nccltune.costmodel.ranks; print([m for m in ('scipy', 'pandas', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
