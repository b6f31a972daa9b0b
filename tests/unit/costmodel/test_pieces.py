"""Alpha-beta pieces against lines that are known and against scipy's NNLS."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.costmodel.pieces import fit_line, fit_pieces

SIZE = 2.0 ** np.arange(13, 24)


def test_one_line_is_one_piece():
    (piece,) = fit_pieces(SIZE, 7 + 2e-5 * SIZE)
    assert (piece.from_bytes, piece.to_bytes, piece.proto) == (8192, 8388608, "unknown")
    assert piece.alpha_us == pytest.approx(7)
    assert piece.us_per_byte == pytest.approx(2e-5)
    assert piece.max_error_percent < 1e-6


def test_change_of_line_is_found_without_being_told():
    # 8 + 4e-5 s up to 128 KiB, then 18 + 5e-6 s.
    time = np.where(SIZE <= 131072, 8 + 4e-5 * SIZE, 18 + 5e-6 * SIZE)
    first, second = fit_pieces(SIZE, time)
    assert (first.alpha_us, second.alpha_us) == (pytest.approx(8), pytest.approx(18))
    # The lines cross at 10 / 3.5e-5 = 285,714 B, outside the gap from 128 to 256 KiB: the second starts at its first point.
    assert first.to_bytes == second.from_bytes == 262144


def test_pieces_meet_where_their_lines_cross_between_two_points():
    # 10 + 1e-4 s meets 20 at 100,000 B, between 64 and 128 KiB.
    time = np.where(SIZE < 100000, 10 + 1e-4 * SIZE, 20.0 + 0 * SIZE)
    first, second = fit_pieces(SIZE, time)
    assert first.to_bytes == second.from_bytes == 100000
    assert second.us_per_byte == pytest.approx(0, abs=1e-12)


def test_noise_of_two_percent_makes_no_pieces():
    noise = 1 + 0.02 * np.random.default_rng(1).standard_normal(SIZE.size)
    assert len(fit_pieces(SIZE, (7 + 2e-5 * SIZE) * noise)) == 1


def test_a_piece_never_spans_two_protocols():
    pieces = fit_pieces(SIZE, 7 + 2e-5 * SIZE, ["LL"] * 4 + [None] * 3 + ["Simple"] * 4)
    assert [p.proto for p in pieces] == ["LL", "unknown", "Simple"]
    assert [p.from_bytes for p in pieces] == [8192, 131072, 1048576]


def test_single_points_and_nothing():
    (piece,) = fit_pieces(np.array([14336.0]), np.array([7.3]))
    assert (piece.alpha_us, piece.us_per_byte, piece.max_error_percent) == (pytest.approx(7.3), 0.0, pytest.approx(0.0))
    assert fit_pieces(np.empty(0), np.empty(0)) == []


def test_falling_times_give_no_negative_slope():
    alpha, beta = fit_line(np.array([1000.0, 2000, 4000]), np.array([12.0, 11, 10]))
    assert beta == 0
    # Relative least squares of a constant: sum(1/y) / sum(1/y^2) = (1/12 + 1/11 + 1/10) / (1/144 + 1/121 + 1/100).
    assert alpha == pytest.approx(0.2742424 / 0.0252089, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(512, 1 << 29), st.floats(1, 1e5)), min_size=2, max_size=9, unique_by=lambda p: p[0]
    ).map(sorted)
)
def test_line_agrees_with_nnls(rows):
    from scipy.optimize import nnls

    size, time = (np.array(column, float) for column in zip(*rows, strict=True))
    expected, residual = nnls(np.c_[1 / time, size / size.max() / time], np.ones(size.size))
    alpha, beta = fit_line(size, time)
    ours = np.linalg.norm(1 - (alpha + beta * size) / time)
    assert ours == pytest.approx(residual, rel=1e-5, abs=1e-6)
    assert (alpha, beta * size.max()) == (
        pytest.approx(expected[0], rel=1e-3, abs=1e-4),
        pytest.approx(expected[1], rel=1e-3, abs=1e-4),
    )
